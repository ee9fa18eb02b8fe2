"""How a group is graded: each response's outcome, and its process where the recipe asks for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from prometheus_client import Counter, Histogram
from protocol.formula import FormulaError, read_formula
from protocol.messages import (
    OPENS_THINKING,
    Grade,
    Graded,
    RolloutGroup,
    Score,
    Task,
    Ungradable,
    is_right,
)
from protocol.rewards import Check, Reward
from pydantic import TypeAdapter

from services.chassis.faults import WorkerFault
from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS

MAX_MARKS, MAX_COMMENT_CHARS = 100, 2_000  # of a score
T = TypeVar("T")
log = logging.getLogger(__name__)

GRADES = Counter(
    "weir_grades_total", "Scores by verifier and verdict", ["verifier", "verdict", "reason"]
)
_SCORE: TypeAdapter[Score] = TypeAdapter(Score)  # an extension's verifier may return anything
SECONDS = Histogram("weir_grade_seconds", "Time to score one response", ["verifier"])


class Scored(NamedTuple):
    check: Check
    score: Score


async def grade(reward: Reward, group: RolloutGroup, tools: Tools) -> tuple[Grade, ...]:
    """One grade per response, in order; `WorkerFault` after all if there is no pool."""
    task, begun = group.request.task, OPENS_THINKING * group.begins_thinking
    grades = await _all(
        grade_response(reward, task, begun + each.text, replace(tools, episode=each.episode))
        for each in group.responses
    )
    return tuple(_behind(grade, len(begun)) for grade in grades) if begun else grades


def _behind(grade: Grade, begun: int) -> Grade:
    """A grade with its marks where they are in the response, without what the prompt has begun."""
    moved: dict[str, Score] = {}
    for name in ("outcome", "process"):
        score: Score | None = getattr(grade, name)
        if isinstance(score, Graded):
            places = [
                (max(0, mark.start - begun), max(0, mark.end - begun)) for mark in score.marks
            ]
            marks = [
                mark.model_copy(update={"start": start, "end": end})
                for mark, (start, end) in zip(score.marks, places, strict=True)
            ]
            moved[name] = score.model_copy(update={"marks": tuple(marks)})
    return grade.model_copy(update=moved)


async def grade_response(reward: Reward, task: Task, text: str, tools: Tools) -> Grade:
    if tools.episode is not None and tools.episode.problem:  # whatever the checks would say
        return Grade(outcome=Ungradable(reason=tools.episode.problem))
    outcome, _ = await grade_outcome(reward, task, text, tools)
    return Grade(outcome=outcome, process=await grade_process(reward, outcome, task, text, tools))


async def grade_outcome(
    reward: Reward, task: Task, text: str, tools: Tools, *, at_once: bool = True
) -> tuple[Score, tuple[Scored, ...]]:
    parts = await _scored(reward.outcome, task, text, tools, at_once=at_once)
    return combined(parts, of=len(reward.outcome), formula=reward.formula), parts


async def grade_process(
    reward: Reward, outcome: Score, task: Task, text: str, tools: Tools
) -> Score | None:
    """None if the recipe asks for no score of such a response's steps."""
    if not (checks := process_checks(reward, outcome)):
        return None
    parts = await _scored(checks, task, text, tools)
    return combined(parts, of=len(reward.process))


def process_checks(reward: Reward, outcome: Score) -> tuple[Check, ...]:
    if not isinstance(outcome, Graded):
        return ()
    is_correct = is_right(outcome.value)
    if reward.process_for == "correct" and not is_correct:
        return ()
    return tuple(check for check in reward.process if is_correct or check.sees == "all")


async def _scored(
    checks: Sequence[Check], task: Task, text: str, tools: Tools, *, at_once: bool = True
) -> tuple[Scored, ...]:
    scoring = (_checked(check, task, text, tools) for check in checks)
    scores = await _all(scoring) if at_once else [await score for score in scoring]
    return tuple(Scored(*part) for part in zip(checks, scores, strict=True))


async def _checked(check: Check, task: Task, text: str, tools: Tools) -> Score:
    with SECONDS.labels(check.verifier).time():
        score = await _verified(check, task, text, tools)
    GRADES.labels(check.verifier, _verdict(score), score.reason or "").inc()
    return score


async def _verified(check: Check, task: Task, text: str, tools: Tools) -> Score:
    verify = VERIFIERS[check.verifier]
    try:
        return _SCORE.validate_python(await verify(task, text, check, tools))
    except WorkerFault:
        raise  # of no response: the group is for another grader
    except Exception:
        log.exception("a verifier failed", extra={"verifier": check.verifier, "task": task.id})
        return Ungradable(reason="verifier_failed")


def _verdict(score: Score) -> str:
    if not isinstance(score, Graded):
        return "ungradable"
    return "correct" if is_right(score.value) else "partial" if score.value else "wrong"


async def _all(scoring: Iterable[Awaitable[T]]) -> tuple[T, ...]:
    """Every result, once all are done; then the first error, if there was one."""
    results = await asyncio.gather(*scoring, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return tuple(result for result in results if not isinstance(result, BaseException))


def combined(parts: Sequence[Scored], *, of: int, formula: str | None = None) -> Score:
    """The weighted mean of at least one check, or the formula's value, cut to [0, 1].

    ``of`` is how many checks the recipe has; the score of a single one stays as it is. A check
    that could not grade makes the whole ungradable, unless the recipe leaves it out. The reason is
    that of the lowest value; all else is that of all checks, under their labels.
    """
    if of == 1 and formula is None:
        return _bounded(parts[0].score)
    lost = [part for part in parts if isinstance(part.score, Ungradable)]
    spoilt = [part for part in lost if part.check.if_ungradable == "ungradable"]
    if spoilt or len(lost) == len(parts):
        return (spoilt or lost)[0].score
    graded = [(part.check, part.score) for part in parts if isinstance(part.score, Graded)]
    try:
        value = _value(graded, formula)
    except FormulaError:
        return Ungradable(reason="formula_undefined")
    return _bounded(_together(graded, min(1.0, max(0.0, value))))


def _value(parts: Sequence[tuple[Check, Graded]], formula: str | None) -> float:
    if formula is not None:
        numbers = {check.label: check.as_meant(score.value) for check, score in parts}
        return read_formula(formula).value(numbers)
    total = sum(check.weight for check, _ in parts)
    return sum(check.weight * score.value for check, score in parts) / total


def _together(parts: Sequence[tuple[Check, Graded]], value: float) -> Graded:
    lowest = min(parts, key=lambda part: part[1].value)[1]
    breakdown: dict[str, float] = {}
    for check, score in parts:
        breakdown[check.label] = score.value
        breakdown |= {f"{check.label}.{key}": value for key, value in score.breakdown.items()}
    return Graded(
        value=value,
        reason=lowest.reason,
        breakdown=breakdown,
        marks=tuple(mark for _, score in parts for mark in score.marks),
        comments={
            f"{check.label}.{name}": words
            for check, score in parts
            for name, words in score.comments.items()
        },
    )


def _bounded(score: Score) -> Score:
    if isinstance(score, Ungradable) or not (score.comments or len(score.marks) > MAX_MARKS):
        return score
    share = MAX_COMMENT_CHARS // max(1, len(score.comments))
    cut = {name: words[:share] for name, words in score.comments.items()}
    return score.model_copy(update={"marks": score.marks[:MAX_MARKS], "comments": cut})
