"""``python -m docs.reference.recipe``: write `recipe.toml`, and the formulas of `recipe.md`.

Types, defaults and meanings come from the pydantic models, formulas from the learner.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from protocol import rewards
from protocol.names import Table
from protocol.recipe import Recipe
from protocol.rubric import Rubric
from pydantic_core import PydanticUndefined

from services.learner.algorithms.advantages import ADVANTAGES
from services.learner.algorithms.gae import CRITIC_ADVANTAGES
from services.learner.algorithms.loss import AGGREGATIONS, CORRECTIONS, DIVERGENCES, OBJECTIVES

PAGE = Path(__file__).with_suffix(".md")
SETTINGS = Path(__file__).with_suffix(".toml")
_HEAD = """\
# Every setting of a recipe, written by `python -m docs.reference.recipe`. Settings behind `#`
# have the default that stands there. The others are required; `papo` also needs `reward.process`.
"""
_EXAMPLES = {
    "name": '"my-run"',
    "model.path": '"models/Qwen2.5-1.5B"',
    "tasks.train": '"data/train.jsonl"',
    "rollout.sampling.max_tokens": "1024",
    "reward.process": '["equation_steps"]',
    "training.steps": "100",
}
_CHECKS: Mapping[str, type[Table]] = {
    "every check": rewards.Check,
    "model_judge, score_model, label_model": rewards.JudgeCheck,
    **dict(sorted(rewards.WITH_SETTINGS.items())),
}
_TYPES = {"string": "text", "boolean": "true or false", "object": "table"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_MAX_PRINTED_BOUND = 2**20  # larger bounds only exclude absurd values
_FORMULAS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "`advantage`": ADVANTAGES,
    "`advantage`, with `[critic]`": CRITIC_ADVANTAGES,
    "`objective`": OBJECTIVES,
    "`aggregation`": AGGREGATIONS,
    "`correction`": CORRECTIONS,
    "`divergence`": DIVERGENCES,
}
_FORMULA_TABLE = re.compile(r"(<!-- formulas -->\n).*(<!-- /formulas -->)", re.DOTALL)


class Setting(NamedTuple):
    path: str
    type: str
    default: str
    meaning: str


def page() -> str:
    """Return the text of `recipe.md` with the formulas of the code."""
    rows = ["of | name | meaning | settings", "---|---|---|---", *_formulas()]
    table = "".join(f"| {row} |\n" for row in rows)
    return _FORMULA_TABLE.sub(lambda match: match[1] + table + match[2], PAGE.read_text())


def settings() -> str:
    """Return the text of `recipe.toml`, which is a valid recipe."""
    printed: set[type] = {Table}
    lines = [_HEAD]
    section = ""
    for setting in _settings(Recipe, "", printed):
        table, dot, key = setting.path.partition(".")
        if setting.type == "table" and not dot:
            lines += [f"\n# {setting.meaning}", f"#[{table}]"]
            section = table
            continue
        if dot and table != section:
            lines.append(f"\n[{table}]")
            section = table
        lines += _lines(setting, key or table, _EXAMPLES.get(setting.path))
    lines.append("\n# A check is a verifier's name, or a table:\n#[reward.outcome]")
    for verifiers, table in _CHECKS.items():
        lines.append(f"\n## {verifiers}")
        for setting in _settings(table, "", set(printed)):
            lines += _lines(setting, setting.path, None)
        printed |= set(table.__mro__)
    return "\n".join(lines) + "\n"


def _lines(setting: Setting, key: str, example: str | None) -> Iterator[str]:
    comment = f"{setting.type}: {setting.meaning}"
    yield from textwrap.wrap(comment, 98, initial_indent="# ", subsequent_indent="#   ")
    yield f"{key} = {example}" if example else f"#{key} = {setting.default}"


def _settings(table: type[Table], prefix: str, printed: set[type]) -> Iterator[Setting]:
    """Yield each setting of a table and of the tables in it, except for ``printed`` classes.

    A table that is always there has no entry of its own.

    Raises:
        ValueError: if a setting has no description.
    """
    schema = table.model_json_schema()["properties"]
    classes = [parent for parent in reversed(table.__mro__) if parent not in printed]
    printed |= set(classes)
    names = dict.fromkeys(name for parent in classes for name in inspect.get_annotations(parent))
    for name in names:
        if name not in schema or (name == "verifier" and table is not rewards.Check):
            continue
        field = table.model_fields[name]
        type_name = _type(schema[name])
        nested = _nested_table(field.annotation)
        meaning = field.description or _first_line(nested)
        if not meaning:
            raise ValueError(f"{table.__name__}.{name} has no description")
        default = "(required)" if field.is_required() else _default(field.get_default())
        if not nested or default == "(none)" or type_name != "table":
            yield Setting(f"{prefix}{name}", type_name, default, meaning)
        if nested and nested not in printed:
            by_name = "NAME." if type_name == "table" and name == "others" else ""
            yield from _settings(nested, f"{prefix}{name}.{by_name}", printed)


def _nested_table(annotation: Any) -> type[Table] | None:
    """Return the class of tables that a field holds, except for checks and rubrics."""
    if inspect.isclass(annotation) and issubclass(annotation, Table):
        return None if issubclass(annotation, rewards.Check | Rubric) else annotation
    return next(filter(None, map(_nested_table, get_args(annotation))), None)


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type and the bounds of a setting in words."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if choices:
        return _type(choices[0])
    if "enum" in schema:
        return ", ".join(
            f'"{value}"' if isinstance(value, str) else str(value) for value in schema["enum"]
        )
    if "prefixItems" in schema:
        return f"[{', '.join(map(_type, schema['prefixItems']))}]"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "oneOf" in schema:
        is_text = any(choice.get("type") == "string" for choice in schema["oneOf"])
        return "text or table" if is_text else "check"
    kind = schema.get("type", "object")
    bounds = [
        f"{sign} {schema[key]:g}" for key, sign in _BOUNDS.items() if _is_printed(schema.get(key))
    ]
    return f"{_TYPES.get(kind, kind)} {', '.join(bounds)}".strip()


def _is_printed(bound: float | None) -> bool:
    return bound is not None and abs(bound) < _MAX_PRINTED_BOUND


def _default(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return "(none)"
    if isinstance(value, Table):
        return "(its defaults)"
    return json.dumps(value, default=lambda check: check.verifier)


def _formulas() -> Iterator[str]:
    for setting, table in _FORMULAS.items():
        for name, function in table.items():
            text = re.sub(r", \[[^]]*\](?=[.,: ]|$)", "", _first_line(function))
            text = text.replace("``", "`").replace("|", "\\|")
            parameters = inspect.signature(function).parameters.values()
            keywords = [f"`{p.name}`" for p in parameters if p.kind is p.KEYWORD_ONLY]
            yield f"{setting} | `{name}` | {text} | {', '.join(keywords)}"


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").split("\n")[0].removesuffix(".")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SETTINGS.write_text(settings(), encoding="utf-8")
