"""``weir grade --calibrate FILE``: what verifiers say of solutions that a person has graded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import BinaryIO, Literal

from protocol.messages import Graded, Task
from protocol.recipe import explain
from protocol.rewards import Check, MathAnswer, ModelJudge
from protocol.tasks import raw_lines
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.grader.offline.agreement import Case
from services.grader.offline.verdicts import MAX_LINE_BYTES, UnreadableLine, json_object
from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS

Label = Literal["outcome", "process"]
CALIBRATED: tuple[tuple[Check, Label], ...] = (
    (MathAnswer(), "outcome"),
    (Check(verifier="equation_steps"), "process"),
    (ModelJudge(), "process"),
)


class LabelledError(ValueError):
    """A calibration file that cannot be used; the text names the line and what is wrong."""


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
        LabelledError: of the first line that is none, or if there is no line.
        OSError: if it cannot be read.
    """
    found: list[Labelled] = []
    for number, line in enumerate(raw_lines(file, MAX_LINE_BYTES), start=1):
        try:
            if line.strip():
                found.append(Labelled.model_validate(json_object(line)))
        except (UnreadableLine, ValidationError) as error:
            why = explain(error) if isinstance(error, ValidationError) else error
            raise LabelledError(f"line {number}: {why}") from error
    if not found:
        raise LabelledError("line 1: the file holds no labelled solution")
    return found


async def cases_of(
    check: Check, label: Label, solutions: Sequence[Labelled], tools: Tools
) -> list[Case]:
    """What one verifier says of every solution, against the label that it is about."""

    async def case_of(solution: Labelled) -> Case:
        score = await VERIFIERS[check.verifier](solution.task, solution.response, check, tools)
        given = score.value if isinstance(score, Graded) else None
        labelled = float(getattr(solution, label))
        return Case(solution.kind, solution.outcome, labelled, given, score.reason)

    return await asyncio.gather(*map(case_of, solutions))
