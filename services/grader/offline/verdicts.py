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
        asked = _Asked.of(line)
    except UnreadableLine as error:
        return Line(line.number, Verdict(None, "unreadable_line", None, 0.0), str(error))
    began = time.perf_counter()
    decision = await decide_response(asked.response, asked.answer, tools, problem=asked.problem)
    ms = round(1000 * (time.perf_counter() - began), 3)
    score = decision.score
    is_right = score.value == 1 if isinstance(score, Graded) else None
    return Line(line.number, Verdict(is_right, score.reason, decision.path, ms))


@dataclass(frozen=True)
class _Asked:
    """What a line says; the problem is empty if it says none."""

    response: str
    answer: str
    problem: str = ""

    @classmethod
    def of(cls, line: RawLine) -> _Asked:
        """Read a line; other keys are left alone.

        Raises:
            UnreadableLine: if it is no object, or a text is missing or none.
        """
        fields = line.fields()
        for name in ("response", "answer"):
            if name not in fields:
                raise UnreadableLine(f"{name}: missing")
        texts = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise UnreadableLine(f"{name}: must be text, in quotes")
        return cls(**texts)
