"""Recipe files: TOML files that extend each other, and errors that name a field and its remedy."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_FILE_KEYS = ("extends", "without")

Tables = dict[str, Any]


class RecipeError(ValueError):
    """An invalid recipe; the message names each wrong field with its problem."""


def explain(
    error: ValidationError,
    whole: str = "recipe",
    suggest: Callable[[str], str] = lambda _: "remove it or check its spelling",
) -> str:
    """Return one line per problem: the field's dotted name, or ``whole``, and the message.

    ``suggest`` returns the remedy for an unknown key.
    """
    lines: list[str] = []
    for problem in error.errors():
        parts = map(str, problem["loc"])
        field = ".".join(part for part in parts if not part.startswith("<")) or whole
        if problem["type"] == "extra_forbidden" and field in _FILE_KEYS:
            lines.append(
                f"{field}: works only in a file, as for `weir run FILE`; "
                "give all settings here, as `weir plan FILE` shows them"
            )
        elif problem["type"] == "extra_forbidden":
            lines.append(f"{field}: unknown key; {suggest(field)}")
        elif problem["type"] == "missing":
            lines.append(f"{field}: required, but missing")
        else:
            lines.append(f"{field}: {problem['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


def suggest_setting(tables: type[BaseModel], field: str) -> str:
    """Return the remedy for an unknown key: the most similar setting of the tables."""
    settings = list(_walk_settings(tables))
    elsewhere = [path for path in settings if path.endswith("." + field.rpartition(".")[2])]
    depth = field.count(".")
    similar = [path for path in settings if path.count(".") >= depth]
    near = difflib.get_close_matches(field, similar, n=1, cutoff=0.8) or elsewhere
    return f"did you mean {near[0]!r}?" if near else "remove it or check its spelling"


def _walk_settings(table: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings below a table."""
    for name, setting in table.model_fields.items():
        yield prefix + name
        for kind in (setting.annotation, *get_args(setting.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _walk_settings(kind, f"{prefix}{name}.")


def load_tables(path: Path) -> Tables:
    """Read a TOML file and the files that it extends, or raise a `RecipeError`."""
    return _apply_file(path, {}, children=())


def _apply_file(path: Path, tables: Tables, children: tuple[Path, ...]) -> Tables:
    """Apply the changes of a file's parents to the tables, in order, and then its own."""
    changes = _read_toml(path)
    children = (*children, path.resolve())
    for parent in _pop_texts(changes, "extends", path):
        file = path.parent / parent
        if not file.is_file():
            raise RecipeError(
                f"{path}: extends: {file}: no such file; give a path from the folder of this file"
            )
        if file.resolve() in children:
            raise RecipeError(f"{path}: extends: {parent} is this file or extends it; remove one")
        tables = _apply_file(file, tables, children)
    for setting in _pop_texts(changes, "without", path):
        if not _remove_setting(tables, setting):
            raise RecipeError(
                f"{path}: without: no parent sets {setting}; remove it or check its spelling"
            )
    return merge_tables(tables, changes)


def _read_toml(path: Path) -> Tables:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: no such file") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecipeError(f"{path}: not UTF-8: {error}; save the file as UTF-8") from error
    try:
        return tomllib.loads(text)
    except ValueError as error:  # syntax, or a number of thousands of digits
        raise RecipeError(f"{path}: {explain_toml(text, error)}") from error


def explain_toml(text: str, error: ValueError) -> str:
    """Return why a text is not valid TOML, with the place and the character."""
    reason = f"not valid TOML: {error}"
    place = re.search(r"at line (\d+), column (\d+)", reason)
    if place is None:
        return reason
    line = text.split("\n")[int(place[1]) - 1]
    character = line[int(place[2]) - 1 :][:1]
    return f"{reason}: {character!r} in {line.strip()!r}" if character else reason


def _pop_texts(tables: Tables, key: str, path: Path) -> list[str]:
    value = tables.pop(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RecipeError(f"{path}: {key}: must be a text or a list of texts")
    return texts


def _remove_setting(tables: Tables, setting: str) -> bool:
    """Remove a setting from its table; return False if the table lacks it."""
    *outer, last = setting.split(".")
    table: Any = tables
    for name in outer:
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict) or last not in table:
        return False
    del table[last]
    return True


def merge_tables(
    tables: Mapping[str, Any], changes: Mapping[str, Any], together: Collection[str] = ()
) -> Tables:
    """Merge tables key by key, but replace tables named in ``together`` and all other values."""
    merged = {
        key: merge_tables(tables[key], value, together)
        for key, value in changes.items()
        if key not in together and isinstance(value, dict) and isinstance(tables.get(key), dict)
    }
    return {**tables, **changes, **merged}
