"""A client's ``grade(sample, item)``, called in the sandbox."""

from __future__ import annotations

import importlib
import linecache
import math
import traceback
from typing import Any

from services.chassis.pool.sandbox import can_read_python

WARM_UP = "services.grader.client_code:warm_up"
GRADE = "services.grader.client_code:grade"
_FILE = "source"
_MAX_ERROR_CHARS = 2_000
_UNREADABLE = (
    "the grader's sandbox cannot read Python's modules; its operator must install Weir and Python "
    "where every user may read, not below a private home folder\n"
)
_COMMON_MODULES = (
    "collections datetime decimal difflib fractions itertools json math random rapidfuzz re "
    "statistics string unicodedata"
)


def warm_up() -> None:
    """Import modules before workers are forked, since each serves one call."""
    for name in _COMMON_MODULES.split():
        importlib.import_module(name)


def grade(source: str, sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Return the ``value`` of the source's function for a sample, or an ``error``.

    If ``is_of_sample``, the error came from code that the source took from the sample.
    """
    names: dict[str, Any] = {"__name__": "grader"}
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    try:
        exec(compile(source, _FILE, "exec"), names)
        value = names["grade"](sample, item)
        if not isinstance(value, int | float):
            return {"error": f"grade returned {type(value).__name__}, not a number"}
        if not math.isfinite(value):
            return {"error": f"grade returned {value}, not a finite number"}
        return {"value": float(value)}
    except MemoryError:
        raise
    except BaseException as error:
        message = _format_error(error)[-_MAX_ERROR_CHARS:]
        return {"error": message, "is_of_sample": _is_from_sample(error)}


def _is_from_sample(error: BaseException) -> bool:
    """Return whether the error passed code that is neither the source nor Python's own."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        files.append(error.filename or "")
    return not all(file.startswith((_FILE, "<frozen", "/")) for file in files)


def _format_error(error: BaseException) -> str:
    """Return the error and its lines in the source, without paths of this machine."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame[0] == _FILE]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    if isinstance(error, ImportError) and not can_read_python():
        lines.append(_UNREADABLE)
    return "".join(lines)
