"""``weir grade FILE``: the verdict on each response of a file, by the code of the service."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import BinaryIO

from protocol.messages import Graded

from services.grader.offline.in_order import in_order
from services.grader.offline.lines import RawLine, UnreadableLine, lines_of
from services.grader.tools import Tools
from services.grader.verifiers.math_answer import decide_response


@dataclass(frozen=True)
class Verdict:
    """What a line of output says, and what is wrong with the line of input, if anything.

    ``verdict`` is None for what could not be graded; ``path`` names what decided; ``ms`` is the
    time from when its turn came, in milliseconds.
    """

    verdict: bool | None
    reason: str | None
    path: str | None
    ms: float

    def as_json(self) -> str:
        """One line of output."""
        return f"{json.dumps(asdict(self))}\n"


@dataclass(frozen=True)
class Line:
    """The verdict on one line, and its problem if it could not be read."""

    number: int
    verdict: Verdict
    problem: str | None = None


async def verdicts(file: BinaryIO, tools: Tools, *, at_once: int) -> AsyncGenerator[Line, None]:
    """One verdict for each line, in order.

    Raises:
        OSError: if the file cannot be read, behind the verdicts on what could.
    """

    async def work(line: RawLine) -> Line:
        return await _graded(line, tools)

    async with aclosing(in_order(lines_of(file), work, at_once=at_once)) as graded:
        async for line in graded:
            yield line


async def _graded(line: RawLine, tools: Tools) -> Line:
    try:
        response, answer = _texts(line)
    except UnreadableLine as error:
        return Line(line.number, Verdict(None, "unreadable_line", None, 0.0), str(error))
    began = time.perf_counter()
    decision = await decide_response(response, answer, tools)
    ms = round(1000 * (time.perf_counter() - began), 3)
    score = decision.score
    is_right = score.value == 1 if isinstance(score, Graded) else None
    return Line(line.number, Verdict(is_right, score.reason, decision.path, ms))


def _texts(line: RawLine) -> tuple[str, str]:
    fields = line.fields()
    for name in ("response", "answer"):
        if name not in fields:
            raise UnreadableLine(f"{name}: missing")
        if not isinstance(fields[name], str):
            raise UnreadableLine(f"{name}: must be text, in quotes")
    return fields["response"], fields["answer"]
