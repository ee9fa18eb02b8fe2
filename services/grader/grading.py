"""Grades a group: the outcome of each response, and its process if the recipe asks for it."""

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
    Mark,
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

# Limits of one score.
MAX_MARKS = 100
MAX_COMMENT_CHARS = 2_000
T = TypeVar("T")
log = logging.getLogger(__name__)

GRADES = Counter(
    "weir_grades_total", "Scores by verifier and verdict", ["verifier", "verdict", "reason"]
)
SECONDS = Histogram("weir_grade_seconds", "Time to score one response", ["verifier"])
_SCORE: TypeAdapter[Score] = TypeAdapter(Score)  # an extension's verifier may return anything


class Scored(NamedTuple):
    check: Check
    score: Score


async def grade(reward: Reward, group: RolloutGroup, tools: Tools) -> tuple[Grade, ...]:
    """Return one grade per response, in order; raise `WorkerFault` if the pool is gone."""
    task = group.request.task
    prefix = OPENS_THINKING if group.begins_thinking else ""
    grading: list[Awaitable[Grade]] = []
    for response in group.responses:
        own_tools = replace(tools, episode=response.episode)
        grading.append(grade_response(reward, task, prefix + response.text, own_tools))
    grades = await _gather(grading)
    if not prefix:
        return grades
    return tuple(_shift_marks(grade, len(prefix)) for grade in grades)


def _shift_marks(grade: Grade, offset: int) -> Grade:
    """Move marks to their places in the response, without the part that the prompt began."""

    def shift(mark: Mark) -> Mark:
        start = max(0, mark.start - offset)
        end = max(0, mark.end - offset)
        return mark.model_copy(update={"start": start, "end": end})

    scores: dict[str, Score] = {}
    for name, score in (("outcome", grade.outcome), ("process", grade.process)):
        if isinstance(score, Graded):
            marks = tuple(map(shift, score.marks))
            scores[name] = score.model_copy(update={"marks": marks})
    return grade.model_copy(update=scores)


async def grade_response(reward: Reward, task: Task, text: str, tools: Tools) -> Grade:
    if tools.episode is not None and tools.episode.problem:
        return Grade(outcome=Ungradable(reason=tools.episode.problem))
    outcome, _ = await grade_outcome(reward, task, text, tools)
    process = await grade_process(reward, outcome, task, text, tools)
    return Grade(outcome=outcome, process=process)


async def grade_outcome(
    reward: Reward,
    task: Task,
    text: str,
    tools: Tools,
    *,
    at_once: bool = True,
) -> tuple[Score, Sequence[Scored]]:
    """Return the score, and its parts. Checks run at the same time if ``at_once``."""
    scoring = [_score_check(check, task, text, tools) for check in reward.outcome]
    if at_once:
        parts: Sequence[Scored] = await _gather(scoring)
    else:
        parts = [await part for part in scoring]
    return combine(parts, num_checks=len(reward.outcome), formula=reward.formula), parts


async def grade_process(
    reward: Reward,
    outcome: Score,
    task: Task,
    text: str,
    tools: Tools,
) -> Score | None:
    """Return None if the recipe asks for no process score of a response with this outcome."""
    checks = select_process_checks(reward, outcome)
    if not checks:
        return None
    parts = await _gather(_score_check(check, task, text, tools) for check in checks)
    return combine(parts, num_checks=len(reward.process))


def select_process_checks(reward: Reward, outcome: Score) -> tuple[Check, ...]:
    if not isinstance(outcome, Graded):
        return ()
    if is_right(outcome.value):
        return reward.process
    if reward.process_for == "correct":
        return ()
    return tuple(check for check in reward.process if check.sees == "all")


async def _score_check(check: Check, task: Task, text: str, tools: Tools) -> Scored:
    with SECONDS.labels(check.verifier).time():
        score = await _verify(check, task, text, tools)
    verdict = _verdict(score)
    GRADES.labels(check.verifier, verdict, score.reason or "").inc()
    return Scored(check, score)


async def _verify(check: Check, task: Task, text: str, tools: Tools) -> Score:
    verify = VERIFIERS[check.verifier]
    try:
        return _SCORE.validate_python(await verify(task, text, check, tools))
    except WorkerFault:
        raise  # another grader gets the group
    except Exception:
        log.exception("a verifier failed", extra={"verifier": check.verifier, "task": task.id})
        return Ungradable(reason="verifier_failed")


def _verdict(score: Score) -> str:
    if not isinstance(score, Graded):
        return "ungradable"
    if is_right(score.value):
        return "correct"
    return "partial" if score.value else "wrong"


async def _gather(awaitables: Iterable[Awaitable[T]]) -> tuple[T, ...]:
    """Return all results once all are done, or raise the first error."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return tuple(result for result in results if not isinstance(result, BaseException))


def combine(
    parts: Sequence[Scored],
    *,
    num_checks: int,
    formula: str | None = None,
) -> Score:
    """Return the weighted mean of at least one score, or the formula's value, clipped to [0, 1].

    ``num_checks`` is the number of checks in the recipe; a single one's score is unchanged. An
    ungradable score makes the whole ungradable, unless its check is left out then. The reason is
    that of the lowest value; everything else comes from all checks, under their labels.
    """
    if num_checks == 1 and formula is None:
        return _limit_size(parts[0].score)
    ungradable = [part for part in parts if isinstance(part.score, Ungradable)]
    decisive = [part for part in ungradable if part.check.if_ungradable == "ungradable"]
    if decisive or len(ungradable) == len(parts):
        return (decisive or ungradable)[0].score
    graded = [(part.check, part.score) for part in parts if isinstance(part.score, Graded)]
    try:
        value = _combine_values(graded, formula)
    except FormulaError:
        return Ungradable(reason="formula_undefined")
    value = min(1.0, max(0.0, value))
    return _limit_size(_merge(graded, value))


def _combine_values(parts: Sequence[tuple[Check, Graded]], formula: str | None) -> float:
    if formula is not None:
        numbers = {check.label: check.to_scale(score.value) for check, score in parts}
        return read_formula(formula).value(numbers)
    total_weight = sum(check.weight for check, _ in parts)
    return sum(check.weight * score.value for check, score in parts) / total_weight


def _merge(parts: Sequence[tuple[Check, Graded]], value: float) -> Graded:
    _, lowest = min(parts, key=lambda part: part[1].value)
    breakdown: dict[str, float] = {}
    comments: dict[str, str] = {}
    marks: list[Mark] = []
    for check, score in parts:
        breakdown[check.label] = score.value
        for name, number in score.breakdown.items():
            breakdown[f"{check.label}.{name}"] = number
        for name, comment in score.comments.items():
            comments[f"{check.label}.{name}"] = comment
        marks += score.marks
    return Graded(
        value=value,
        reason=lowest.reason,
        breakdown=breakdown,
        marks=tuple(marks),
        comments=comments,
    )


def _limit_size(score: Score) -> Score:
    if isinstance(score, Ungradable):
        return score
    max_chars = MAX_COMMENT_CHARS // max(1, len(score.comments))
    marks = score.marks[:MAX_MARKS]
    comments = {name: comment[:max_chars] for name, comment in score.comments.items()}
    return score.model_copy(update={"marks": marks, "comments": comments})
