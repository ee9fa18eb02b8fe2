"""``python -m docs.reference.recipe``: write ``docs/reference/recipe.md``.

Types, defaults and meanings are those of the pydantic models, formulas those of the learner.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from protocol import rewards
from protocol.names import Table
from protocol.recipe import Recipe
from protocol.rubric import Rubric
from pydantic_core import PydanticUndefined

from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.loss import AGGREGATIONS, CORRECTIONS, DIVERGENCES, OBJECTIVES

PAGE = Path(__file__).with_suffix(".md")
_HEAD = """\
# Recipe

A recipe says what to learn, from which tasks, and by which algorithm. It is a TOML file, or the
`recipe` of a submitted job. `name` and the tables `[model]`, `[tasks]`, `[rollout]` and
`[training]` are required. Unknown keys are refused, and so is a setting that the chosen formula
does not read. Paths are relative to the current directory; a submitted recipe has ids of uploaded
files as its tasks. `weir plan RECIPE` shows a recipe with all its defaults.
`python -m docs.reference.recipe` writes this page from the code.

## Files that extend others

```toml
extends = "../papo/qwen2.5-7b.toml"  # relative to the folder of this file
without = ["evaluation.every"]       # settings of the parent to remove
name = "mine"
algorithm.lambda_process = 0.5
```

A file starts from the settings of its parent, removes those in `without`, and adds its own. Tables
merge key by key; any other value, such as a list, replaces the parent's.

`extends` may list several files: each one changes the result of those before it. Both keys stand
above the first table. They work only in files, also in those of `weir sft` and
`WEIR_RECIPE_DEFAULTS`: a submitted recipe has all its settings. `weir plan RECIPE` shows the result
as TOML, and `weir plan RECIPE --json` as JSON.
"""
_OF_CHECKS: Mapping[str, type[Table]] = {
    "every check": rewards.Check,
    "`model_judge`, `score_model`, `label_model`": rewards.AskedOfAJudge,
    **{f"`{name}`": table for name, table in sorted(rewards.WITH_SETTINGS.items())},
}
_TYPES = {"string": "text", "boolean": "`true`, `false`", "object": "table"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_BEYOND = 2**20  # no recipe comes near it
_FORMULAS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "`advantage`": ADVANTAGES,
    "`advantage`, with `[critic]`": CRITIC_ADVANTAGES,
    "`objective`": OBJECTIVES,
    "`aggregation`": AGGREGATIONS,
    "`correction`": CORRECTIONS,
    "`divergence`": DIVERGENCES,
}
_COLUMNS = "setting | type | default | meaning"


def page() -> str:
    """The text of ``docs/reference/recipe.md``."""
    seen: set[type] = {Table}
    sections = [_HEAD, _section("Settings", "", _COLUMNS, _rows(Recipe, "", seen))]
    checks: dict[str, list[str]] = {}
    for of, table in _OF_CHECKS.items():
        for row in _rows(table, "", set(seen)):
            checks.setdefault(row, []).append(of)
        seen |= set(table.__mro__)
    told = "A check is a verifier's name, or a table with `verifier` and these settings. A rubric\n"
    told += "of your own is shown in [a judge](../how-to/judge.md)."
    rows = (f"{', '.join(of)} | {row}" for row, of in checks.items())
    sections.append(_section("Checks", told, f"of | {_COLUMNS}", rows))
    told = "`settings` are those of `[algorithm]` that a formula reads, or of the sampling."
    sections.append(_section("Formulas", told, "of | name | meaning | settings", _formulas()))
    return "\n".join(sections)


def _section(title: str, text: str, columns: str, rows: Iterator[str]) -> str:
    lines = [f"## {title}", "", *([text, ""] if text else []), f"| {columns} |"]
    lines += ["|---" * len(columns.split("|")) + "|", *(f"| {row} |" for row in rows)]
    return "\n".join(lines) + "\n"


def _rows(table: type[Table], prefix: str, seen: set[type]) -> Iterator[str]:
    """A row for each setting of a table and of the tables in it, but for classes in ``seen``.

    A table that is always there has no row of its own.

    Raises:
        ValueError: if a setting has no description.
    """
    schema = table.model_json_schema()["properties"]
    classes = [each for each in reversed(table.__mro__) if each not in seen]
    seen |= set(classes)
    for name in dict.fromkeys(name for each in classes for name in inspect.get_annotations(each)):
        if name not in schema or (name == "verifier" and table is not rewards.Check):
            continue
        field, type_ = table.model_fields[name], _type(schema[name])
        below = _table_in(field.annotation)
        if not (meaning := field.description or _first_line(below)):
            raise ValueError(f"{table.__name__}.{name} has no description")
        default = "required" if field.is_required() else _default(field.get_default())
        if not below or default == "none" or type_ != "table":
            yield f"`{prefix}{name}` | {type_} | {default} | {_in_a_cell(meaning)}"
        if below and below not in seen:
            by_name = "NAME." if type_ == "table" and name == "others" else ""
            yield from _rows(below, f"{prefix}{name}.{by_name}", seen)


def _table_in(annotation: Any) -> type[Table] | None:
    """The class of tables that a field holds, but for checks and rubrics."""
    if inspect.isclass(annotation) and issubclass(annotation, Table):
        return None if issubclass(annotation, rewards.Check | Rubric) else annotation
    return next(filter(None, map(_table_in, get_args(annotation))), None)


def _type(schema: Mapping[str, Any]) -> str:
    """The type and the bounds of a setting in words."""
    several = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    if several:
        return _type(several[0])
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if "prefixItems" in schema:
        return f"[{', '.join(map(_type, schema['prefixItems']))}]"
    if "items" in schema:
        return f"{_type(schema['items'])}s"
    if "oneOf" in schema:
        is_text = any(each.get("type") == "string" for each in schema["oneOf"])
        return "text or table" if is_text else "check"
    kind = schema.get("type", "object")
    bounds = ((sign, schema[key]) for key, sign in _BOUNDS.items() if key in schema)
    told = ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if abs(bound) < _BEYOND)
    return f"{_TYPES.get(kind, kind)} {told}".strip()


def _default(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return "none"
    if isinstance(value, Table):
        return "its defaults"
    return f"`{json.dumps(value, default=lambda check: check.verifier)}`"


def _formulas() -> Iterator[str]:
    for of, table in _FORMULAS.items():
        for name, function in table.items():
            text = re.sub(r", \[[^]]*\](?=[.,: ]|$)", "", _first_line(function))
            parameters = inspect.signature(function).parameters.values()
            settings = (f"`{each.name}`" for each in parameters if each.kind is each.KEYWORD_ONLY)
            yield f"{of} | `{name}` | {_in_a_cell(text)} | {', '.join(settings)}"


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").split("\n")[0].removesuffix(".")


def _in_a_cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
