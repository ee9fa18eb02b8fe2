"""``weir grade --calibrate FILE``: what verifiers say of solutions that a person has graded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import BinaryIO, Literal, NoReturn

from protocol.messages import Graded, Task
from protocol.recipe import explain
from protocol.rewards import Check, MathAnswer, ModelJudge
from protocol.tasks import raw_lines
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.grader.judge.health import UNTESTED
from services.grader.judge.judge import Judge
from services.grader.judge.settings import URL, JudgeSettings
from services.grader.offline.agreement import Case
from services.grader.offline.at_once import results_of
from services.grader.offline.verdicts import MAX_LINE_BYTES, UnreadableLine, json_object
from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS, equation_steps, math_answer

WARM_UPS = (math_answer.WARM_UP, equation_steps.WARM_UP)  # of the pool that verifiers ask

Label = Literal["outcome", "process"]
CALIBRATED: tuple[tuple[Check, Label], ...] = (
    (MathAnswer(), "outcome"),
    (Check(verifier="equation_steps"), "process"),
    (ModelJudge(), "process"),
)
_AT_ONCE = 8
_LOOK_AGAIN_S = 0.1


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


class JudgeDown(RuntimeError):
    """The judge is asked for, but is of no use; the text says why."""


async def cases_of(
    check: Check, label: Label, solutions: Sequence[Labelled], tools: Tools
) -> list[Case]:
    """What one verifier says of every solution, against the label that it is about."""

    async def case_of(solution: Labelled) -> Case:
        score = await VERIFIERS[check.verifier](solution.task, solution.response, check, tools)
        given = score.value if isinstance(score, Graded) else None
        labelled = float(getattr(solution, label))
        return Case(solution.kind, solution.outcome, labelled, given, score.reason)

    return await results_of(case_of, solutions, at_once=_AT_ONCE)


@asynccontextmanager
async def judge_of(settings: JudgeSettings | None) -> AsyncIterator[Judge | None]:
    """The judge once it has passed its self-test; None if there is none.

    Questions to a judge that is down would wait until it is up: here somebody is told.

    Raises:
        JudgeDown: if it does not pass, or goes down meanwhile.
    """
    if settings is None:
        yield None
        return
    try:
        async with Judge(settings) as judge, asyncio.TaskGroup() as beside:
            watching = beside.create_task(judge.watch_forever())
            while not judge.is_up and judge.why_down == UNTESTED:
                await asyncio.sleep(_LOOK_AGAIN_S)
            if not judge.is_up:
                raise _down(judge)
            ending = beside.create_task(_watch_until_down(judge))
            yield judge
            watching.cancel()
            ending.cancel()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


async def _watch_until_down(judge: Judge) -> NoReturn:
    """Consumes the judge's state. Waits for: the judge to be down. Unblocked by: time.

    Raises:
        JudgeDown: then.
    """
    while judge.is_up:
        await asyncio.sleep(_LOOK_AGAIN_S)
    raise _down(judge)


def _down(judge: Judge) -> JudgeDown:
    return JudgeDown(f"the judge is not up: {judge.why_down}; start it, or unset {URL}")
