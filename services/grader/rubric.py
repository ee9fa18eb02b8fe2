"""How a group is graded: each response's outcome, and its process where the recipe asks for it."""

from __future__ import annotations

import asyncio

from prometheus_client import Counter, Histogram
from protocol.messages import Grade, Graded, RolloutGroup, Score, Task
from protocol.recipe import Reward, VerifierName

from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS

GRADES = Counter(
    "weir_grades_total", "Scores by verifier and verdict", ["verifier", "verdict", "reason"]
)
SECONDS = Histogram("weir_grade_seconds", "Time to score one response", ["verifier"])


async def grade(reward: Reward, group: RolloutGroup, tools: Tools) -> tuple[Grade, ...]:
    """One grade per response, in order. All responses are graded at once.

    Raises:
        Exception: what a verifier raised, after every other response has been graded.
    """
    task = group.request.task
    grades = await asyncio.gather(
        *(grade_response(reward, task, response.text, tools) for response in group.responses),
        return_exceptions=True,
    )
    return tuple(map(_or_raise, grades))


async def grade_response(reward: Reward, task: Task, text: str, tools: Tools) -> Grade:
    """The outcome, and the process if the recipe asks for it after this outcome."""
    outcome = await _score(reward.outcome, task, text, tools)
    if reward.process is None or not asks_for_process(reward, outcome):
        return Grade(outcome=outcome)
    return Grade(outcome=outcome, process=await _score(reward.process, task, text, tools))


def asks_for_process(reward: Reward, outcome: Score) -> bool:
    """Whether the process counts after this outcome; never where that could not be graded."""
    if reward.process_for == "all":
        return isinstance(outcome, Graded)
    return is_correct(outcome)


def is_correct(outcome: Score) -> bool:
    """A full score. What could not be graded is neither correct nor wrong."""
    return isinstance(outcome, Graded) and outcome.value == 1


async def _score(name: VerifierName, task: Task, text: str, tools: Tools) -> Score:
    with SECONDS.labels(name).time():
        score = await VERIFIERS[name](task, text, tools)
    GRADES.labels(name, _verdict(score), score.reason or "").inc()
    return score


def _verdict(score: Score) -> str:
    if not isinstance(score, Graded):
        return "ungradable"
    return {0.0: "wrong", 1.0: "correct"}.get(score.value, "partial")


def _or_raise(grade: Grade | BaseException) -> Grade:
    if isinstance(grade, BaseException):
        raise grade
    return grade
