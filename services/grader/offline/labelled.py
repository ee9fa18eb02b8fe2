"""Solutions that a person has graded: the lines of a calibration file."""

from __future__ import annotations

from typing import BinaryIO

from protocol.messages import Task
from protocol.recipe import explain
from protocol.tasks import raw_lines
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.grader.offline.lines import MAX_LINE_BYTES, RawLine, UnreadableLine


class LabelledError(ValueError):
    """A calibration file that cannot be used; the text names each line and what is wrong."""


class Labelled(BaseModel):
    """A response to a problem, and what a person says of it; other keys are left alone.

    ``outcome``: whether the answer is right. ``process``: the worth of the reasoning, in [0, 1].
    """

    model_config = ConfigDict(frozen=True, strict=True)

    id: str = Field(min_length=1)
    problem: str = Field(min_length=1)
    solution: str
    answer: str = Field(min_length=1)
    response: str
    kind: str = Field(min_length=1)
    outcome: bool
    process: float = Field(ge=0, le=1)

    @property
    def task(self) -> Task:
        """The task that the response answers."""
        return Task(id=self.id, prompt=self.problem, answer=self.answer, solution=self.solution)


def read_labelled(file: BinaryIO) -> list[Labelled]:
    """Every labelled solution of a file; blank lines are left out.

    Raises:
        LabelledError: with all problems, or if there is no line.
        OSError: if it cannot be read.
    """
    found: list[Labelled] = []
    problems: list[str] = []
    for number, raw in enumerate(raw_lines(file, MAX_LINE_BYTES), start=1):
        try:
            if raw.strip():
                found.append(Labelled.model_validate(RawLine(number, raw).fields()))
        except UnreadableLine as error:
            problems.append(f"line {number}: {error}")
        except ValidationError as error:
            problems += [f"line {number}: {line}" for line in explain(error).splitlines()]
    if not found and not problems:
        problems = ["line 1: the file holds no labelled solution"]
    if problems:
        raise LabelledError("\n".join(problems))
    return found
