"""``weir grade FILE``: the verdict on each response of a file, by the code of the service."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from protocol.messages import Graded

from services.grader.tools import Tools
from services.grader.verifiers.math_answer import decide_response

MAX_LINE_BYTES = 64 << 20


class UnreadableLine(ValueError):
    """A line that cannot be used; the text says why."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a line: the object of the line of output; what is wrong with the line, if so.

    ``verdict`` is None for what could not be graded; ``path`` names what decided; ``ms`` is the
    time from when its turn came, in milliseconds.
    """

    fields: dict[str, Any]
    problem: str | None = None


async def verdict_on(tools: Tools, numbered: tuple[int, bytes]) -> Verdict:
    """The verdict on the response of a line with its number."""
    number, line = numbered
    try:
        response, answer, problem = _texts(line)
    except UnreadableLine as error:
        none = {"verdict": None, "reason": "unreadable_line", "path": None, "ms": 0.0}
        return Verdict(none, f"line {number}: {error}")
    began = time.perf_counter()
    decision = await decide_response(response, answer, tools, problem=problem)
    ms = round(1000 * (time.perf_counter() - began), 3)
    score = decision.score
    is_right = score.value == 1 if isinstance(score, Graded) else None
    return Verdict({"verdict": is_right, "reason": score.reason, "path": decision.path, "ms": ms})


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
    """The response, the answer, and the problem, empty if there is none; other keys are left alone.

    Raises:
        UnreadableLine: if it is no object, or a text is missing or none.
    """
    fields = {"problem": "", **json_object(line)}
    names = ("response", "answer", "problem")
    for name in names:
        if name not in fields:
            raise UnreadableLine(f"{name}: missing")
        if not isinstance(fields[name], str):
            raise UnreadableLine(f"{name}: must be text, in quotes")
    return [fields[name] for name in names]
