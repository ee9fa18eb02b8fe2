"""``weir grade --calibrate FILE``: what verifiers say of solutions that a person has graded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from protocol.messages import Graded
from protocol.rewards import Check, ModelJudge

from services.grader.judge.judge import Judge
from services.grader.judge.settings import URL, JudgeSettings
from services.grader.offline.agreement import Case
from services.grader.offline.in_order import in_order
from services.grader.offline.labelled import Labelled
from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS

_LOOK_AGAIN_S = 0.1
_UNTESTED = "starting"  # what a judge says of itself before its first self-test has ended
_JUDGED_AT_ONCE = 8

Label = Literal["outcome", "process"]


class JudgeDown(RuntimeError):
    """The judge is asked for, but is of no use; the text says why."""


@dataclass(frozen=True)
class Examined:
    """What one verifier says of every solution, against the label that it is about."""

    verifier: str
    label: Label
    cases: tuple[Case, ...]


async def calibrate(
    solutions: Sequence[Labelled], tools: Tools, *, at_once: int
) -> AsyncGenerator[Examined, None]:
    """Each verifier in turn; the model among them only if the tools hold a judge.

    Raises:
        JudgeDown: if the judge goes down meanwhile.
    """
    yield await _examined(Check(verifier="math_answer"), "outcome", solutions, tools, at_once)
    yield await _examined(Check(verifier="equation_steps"), "process", solutions, tools, at_once)
    if tools.judge is not None:
        work = _examined(ModelJudge(), "process", solutions, tools, _JUDGED_AT_ONCE)
        yield await _unless_down(tools.judge, work)


@asynccontextmanager
async def judge_of(settings: JudgeSettings | None) -> AsyncIterator[Judge | None]:
    """The judge once it has passed its self-test; None if there is none.

    Raises:
        JudgeDown: if it does not pass.
    """
    if settings is None:
        yield None
        return
    async with Judge(settings) as judge:
        watching = asyncio.create_task(judge.watch_forever())
        try:
            while not judge.is_up and judge.why_down == _UNTESTED:
                await asyncio.sleep(_LOOK_AGAIN_S)
            _refuse_if_down(judge)
            yield judge
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _unless_down(judge: Judge, work: Coroutine[Any, Any, Examined]) -> Examined:
    """Questions to a judge that is down would wait until it is up: here somebody is told."""
    working, watching = asyncio.create_task(work), asyncio.create_task(_watch_until_down(judge))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else watching.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _watch_until_down(judge: Judge) -> NoReturn:
    """Consumes the judge's state. Waits for: the judge to be down. Unblocked by: time.

    Raises:
        JudgeDown: then.
    """
    while True:
        _refuse_if_down(judge)
        await asyncio.sleep(_LOOK_AGAIN_S)


def _refuse_if_down(judge: Judge) -> None:
    if not judge.is_up:
        raise JudgeDown(f"the judge is not up: {judge.why_down}; start it, or unset {URL}")


async def _examined(
    check: Check, label: Label, solutions: Sequence[Labelled], tools: Tools, at_once: int
) -> Examined:
    async def work(solution: Labelled) -> Case:
        began = time.perf_counter()
        score = await VERIFIERS[check.verifier](solution.task, solution.response, check, tools)
        ms = 1000 * (time.perf_counter() - began)
        given = score.value if isinstance(score, Graded) else None
        return Case(solution.kind, float(getattr(solution, label)), given, ms, score.reason)

    async with aclosing(in_order(_each(solutions), work, at_once=at_once)) as cases:
        return Examined(check.verifier, label, tuple([case async for case in cases]))


async def _each(solutions: Sequence[Labelled]) -> AsyncIterator[Labelled]:
    for solution in solutions:
        yield solution
