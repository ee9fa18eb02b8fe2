"""Graded by a model and a rubric: the judge picks levels, the rubric says what they are worth."""

from __future__ import annotations

from functools import partial

from protocol.messages import Score, Task, Ungradable
from protocol.rewards import ModelJudge

from services.grader.judge.prompt import load_rubric, rubric_form, rubric_messages
from services.grader.judge.question import Verdict
from services.grader.judge.scoring import judged
from services.grader.tools import Tools


async def verify(task: Task, text: str, check: ModelJudge, tools: Tools) -> Score:
    """The mean of what the check's samples find in the response without its thinking."""
    rubric = load_rubric(check.rubric) if isinstance(check.rubric, str) else check.rubric
    if rubric.needs_solution and not (task.solution or "").strip():
        return Ungradable(reason="no_reference")

    def worth(verdict: Verdict) -> tuple[float, dict[str, float]]:
        levels = {each.name: str(verdict[each.name]) for each in rubric.criteria}
        parts = {each.name: each.score_of(levels[each.name]) for each in rubric.criteria}
        return rubric.score(levels), parts

    form, messages = rubric_form(rubric), partial(rubric_messages, rubric)
    return await judged(task, text, check, tools, form, messages, worth)
