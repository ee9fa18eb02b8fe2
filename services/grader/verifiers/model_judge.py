"""Graded by a model and a rubric: the judge picks levels, the rubric says what they are worth."""

from __future__ import annotations

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import ModelJudge
from protocol.rubric import Rubric

from services.grader.judge.form import Verdict
from services.grader.judge.prompt import rubric_form, rubric_messages
from services.grader.judge.question import Question
from services.grader.judge.rubric_files import load
from services.grader.judge.said import said
from services.grader.judge.samples import mean_score
from services.grader.tools import Tools


async def verify(task: Task, text: str, check: ModelJudge, tools: Tools) -> Score:
    """The mean of what the check's samples find in the response without its thinking."""
    judge = tools.named_judges.get(check.model)
    if judge is None:
        return Ungradable(reason="no_judge")
    rubric = load(check.rubric) if isinstance(check.rubric, str) else check.rubric
    if rubric.needs_solution and not (task.solution or "").strip():
        return Ungradable(reason="no_reference")
    solution = said(text)
    if isinstance(solution, Graded):
        return solution
    messages = rubric_messages(rubric, task, solution)
    question = Question.of(check, messages, rubric_form(rubric))
    answers = await judge.ask(question, check.samples)
    return mean_score(
        answers,
        worth=lambda verdict: rubric.score(_levels(rubric, verdict)),
        parts=lambda verdict: _scores(rubric, verdict),
    )


def _levels(rubric: Rubric, verdict: Verdict) -> dict[str, str]:
    return {each.name: str(verdict[each.name]) for each in rubric.criteria}


def _scores(rubric: Rubric, verdict: Verdict) -> dict[str, float]:
    return {each.name: each.score_of(str(verdict[each.name])) for each in rubric.criteria}
