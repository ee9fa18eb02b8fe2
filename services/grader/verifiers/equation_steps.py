"""Process by program: the share of right steps in the reasoning. No model is needed.

Its weakness is known: it asks whether steps are right, not whether they lead anywhere. A task's
solution says how many steps are expected.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from protocol.messages import Graded, Mark, Score, Task, Ungradable
from protocol.rewards import Check

from services.grader.steps import MAX_STEPS, NotRead, Step, Verdict, distinct, steps
from services.grader.templates import problem_of
from services.grader.tools import Tools

_MAX_TEXT_CHARS = 1_000_000
_MAX_STEPS_SHOWN = 40
_MAX_STEP_CHARS = 60
_BETWEEN = re.compile(r"(?:\s|[$&]|\\\\(?:\[[^\]\n]{0,12}\])?)*")  # a side and a sign
_VERDICTS: dict[Verdict, Literal["right", "wrong", "unknown"]] = {
    "right": "right",
    "wrong": "wrong",
    "open": "unknown",
    "too_hard": "wrong",
}


async def verify(task: Task, text: str, check: Check, tools: Tools) -> Score:
    """The share of right steps among those written, or those that ``task.solution`` has."""
    solution = task.solution or ""
    if len(solution) > _MAX_TEXT_CHARS:
        return Ungradable(reason="solution_too_long")
    if len(text) > _MAX_TEXT_CHARS:
        return Graded(value=0, reason="too_long")
    try:
        problem = problem_of(task)
        expected = counted(distinct(await steps(solution, tools, problem)))
        found = await steps(text, tools, problem)
    except NotRead:
        return Ungradable(reason="equations_not_read")
    graded = score(distinct(found), required=len(expected))
    return graded.model_copy(update={"marks": tuple(marks(text, found))})


def marks(text: str, found: Sequence[Step]) -> Iterator[Mark]:
    """What each step is, also a repeated one; the side that two of a chain share is the first's."""
    end = 0
    for step in sorted(found, key=lambda step: step.start):
        begins = _BETWEEN.match(text, max(step.start, end), step.end)
        if begins and begins.end() < step.end:
            start, end = begins.end(), step.end
            note = "too hard" if step.verdict == "too_hard" else step.note
            yield Mark(start=start, end=end, verdict=_VERDICTS[step.verdict], note=note)


def counted(found: Sequence[Step]) -> list[Step]:
    """The steps that are right or wrong; the others say nothing."""
    return [step for step in found if step.verdict != "open"]


def score(found: Sequence[Step], required: int) -> Graded:
    """Right steps, at most those required, over these plus the wrong ones, at least those required.

    So neither more right steps than the solution has nor repeated ones make up for a wrong one, and
    leaving out a step costs as much as a wrong one. Without required steps it is right ÷ written.
    """
    if len(found) > MAX_STEPS:
        return Graded(value=0, reason="too_long", breakdown=_counts(found, required))
    written = counted(found)
    right = sum(step.verdict == "right" for step in written)
    wrong = len(written) - right
    enough = min(right, required) if required else right
    value = enough / max(required, enough + wrong, 1)
    breakdown = _counts(found, required) | _each(written)
    return Graded(value=value, reason=_reason(written, required), breakdown=breakdown)


def _reason(written: Sequence[Step], required: int) -> str | None:
    verdicts = {step.verdict for step in written}
    if not written:
        return "no_equations"
    if "wrong" in verdicts:
        return "wrong_equations"
    if "too_hard" in verdicts:
        return "too_hard"
    return "missing_steps" if len(written) < required else None


def _counts(found: Sequence[Step], required: int) -> dict[str, float]:
    number = Counter(step.verdict for step in found)
    wrong = number["wrong"] + number["too_hard"]
    return {
        "written": number["right"] + wrong,
        "right": number["right"],
        "wrong": wrong,
        "open": number["open"],
        "required": required,
    }


def _each(written: Sequence[Step]) -> dict[str, float]:
    return {
        f"step {number}: {_cut(step.text)}": float(step.verdict == "right")
        for number, step in enumerate(written[:_MAX_STEPS_SHOWN], start=1)
    }


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_STEP_CHARS else f"{text[: _MAX_STEP_CHARS - 1]}…"
