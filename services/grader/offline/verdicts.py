"""``weir grade FILE``: the verdict on each response of a file, by the code of the service."""

from __future__ import annotations

import json
import time
from typing import Any

from protocol.messages import Graded

from services.grader.tools import Tools
from services.grader.verifiers.math_answer import decide_response

MAX_LINE_BYTES = 64 << 20
UNREADABLE = {"verdict": None, "reason": "unreadable_line", "path": None, "ms": 0.0}


class UnreadableLine(ValueError):
    """A line that cannot be used; the text says why."""


async def verdict_on(line: bytes, tools: Tools) -> dict[str, Any]:
    """The verdict on the response of a line; None for what could not be graded.

    ``path`` names what decided; ``ms`` is the time that it took, in milliseconds.

    Raises:
        UnreadableLine: if there is no response to an answer in it.
    """
    response, answer, problem = _texts(line)
    began = time.perf_counter()
    decision = await decide_response(response, answer, tools, problem=problem)
    ms = round(1000 * (time.perf_counter() - began), 3)
    score = decision.score
    is_right = score.value == 1 if isinstance(score, Graded) else None
    return {"verdict": is_right, "reason": score.reason, "path": decision.path, "ms": ms}


def json_object(line: bytes) -> dict[str, Any]:
    """The JSON object of a line, whatever its bytes are.

    Raises:
        UnreadableLine: if it is none.
    """
    if len(line) > MAX_LINE_BYTES:
        raise UnreadableLine(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise UnreadableLine(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableLine("no JSON object")
    return value


def _texts(line: bytes) -> list[str]:
    """The response, the answer, and the problem, empty if there is none; others are left alone."""
    fields = {"problem": "", **json_object(line)}
    names = ("response", "answer", "problem")
    for name in names:
        if name not in fields:
            raise UnreadableLine(f"{name}: missing")
        if not isinstance(fields[name], str):
            raise UnreadableLine(f"{name}: must be text, in quotes")
    return [fields[name] for name in names]
