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
_MAX_CHARS = 2_000  # of an error
_UNREADABLE = (
    "the grader's sandbox cannot read Python's modules; its operator must install Weir and Python "
    "where every user may read, not below a private home folder\n"
)
_OFTEN_USED = ("collections", "datetime", "decimal", "difflib", "fractions", "itertools", "json")
_OFTEN_USED += ("math", "random", "rapidfuzz", "re", "statistics", "string", "unicodedata")


def warm_up() -> None:
    for name in _OFTEN_USED:  # a worker lives for one call
        importlib.import_module(name)


def grade(source: str, sample: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """What the source's function says of a sample: its ``value`` as a number, or an ``error``.

    With ``is_of_sample`` the error came from code that the source has made of the sample.
    """
    names: dict[str, Any] = {"__name__": "grader"}
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    try:
        exec(compile(source, _FILE, "exec"), names)
        value = names["grade"](sample, item)
        if not isinstance(value, int | float):
            return {"error": f"grade returned {type(value).__name__}, which is no number"}
        if not math.isfinite(value):
            return {"error": f"grade returned {value}, which is no finite number"}
        return {"value": float(value)}
    except MemoryError:
        raise
    except BaseException as error:
        return {"error": _told(error)[-_MAX_CHARS:], "is_of_sample": _is_of_sample(error)}


def _is_of_sample(error: BaseException) -> bool:
    """Whether it passed through code that is neither the source nor a file of Python's."""
    places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append(error.filename or "")
    own = (_FILE, "<frozen", "/")
    return not all(place.startswith(own) for place in places)


def _told(error: BaseException) -> str:
    """The error, and where in the source it was; no place on this machine."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame[0] == _FILE]
    told = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    if isinstance(error, ImportError) and not can_read_python():
        told.append(_UNREADABLE)
    return "".join(told)
