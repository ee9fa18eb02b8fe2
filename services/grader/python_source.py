"""A client's ``grade(sample, item)``. Only inside a confined pool."""

from __future__ import annotations

import importlib
import traceback
from typing import Any

WARM_UP = "services.grader.python_source:warm_up"
GRADE = "services.grader.python_source:grade"
_MAX_CHARS = 2_000  # of an error
_OFTEN_USED = ("collections", "datetime", "decimal", "difflib", "fractions", "itertools", "json")
_OFTEN_USED += ("math", "random", "rapidfuzz", "re", "statistics", "string", "unicodedata")


def warm_up() -> None:
    """Import what graders often import: a worker lives for one call."""
    for name in _OFTEN_USED:
        importlib.import_module(name)


def grade(source: str, sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """What the source's function says of a sample: its ``value`` as a number, or an ``error``."""
    names: dict[str, Any] = {"__name__": "grader"}
    try:
        exec(compile(source, "source", "exec"), names)
        value = names["grade"](sample, item)
        return {"value": float(value)} if isinstance(value, int | float) else _no_number(value)
    except MemoryError:
        raise
    except BaseException:
        return {"error": traceback.format_exc(limit=-8)[-_MAX_CHARS:]}


def _no_number(value: object) -> dict[str, Any]:
    return {"error": f"grade returned {type(value).__name__}, which is no number"}
