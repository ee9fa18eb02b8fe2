"""Graded by a model's number: OpenAI's ``score_model``, with the check's own messages."""

from __future__ import annotations

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import ScoreModel

from services.grader.judge.form import ANALYSIS, Form, Number, Text, Verdict
from services.grader.judge.prompt import defanged
from services.grader.judge.question import Question, Turn
from services.grader.judge.said import said
from services.grader.judge.samples import mean_score
from services.grader.templates import UnknownField, fill
from services.grader.tools import Tools

_RESULT = "result"
_ANALYSIS_CHARS = 1500


async def verify(task: Task, text: str, check: ScoreModel, tools: Tools) -> Score:
    """The mean of the numbers that the model gives, moved from the check's range to [0, 1]."""
    if tools.judge is None:
        return Ungradable(reason="no_judge")
    solution = said(text)
    if isinstance(solution, Graded):
        return solution
    try:
        messages = messages_of(check, task, solution)
    except UnknownField:
        return Ungradable(reason="unknown_field")
    lowest, highest = check.range
    form = Form({ANALYSIS: Text(), _RESULT: Number(lowest, highest)})

    def worth(verdict: Verdict) -> float:
        return min(1.0, (float(verdict[_RESULT]) - lowest) / (highest - lowest))

    answers = await tools.judge.ask(Question.of(check, messages, form), check.samples)
    return mean_score(answers, worth, parts=lambda verdict: {_RESULT: worth(verdict)})


def messages_of(check: ScoreModel, task: Task, solution: str) -> tuple[Turn, ...]:
    """The check's messages filled in; the first one, of the system, also says how to answer.

    Raises:
        UnknownField: if a template names a field that the task does not have.
    """
    safe = defanged(solution)
    filled = tuple(
        {"role": turn.role, "content": fill(turn.content, task, safe)} for turn in check.input
    )
    if filled[0]["role"] in {"system", "developer"}:
        first, *others = filled
        return ({**first, "content": f"{first['content']}\n\n{_how(check)}"}, *others)
    return ({"role": "system", "content": _how(check)}, *filled)


def _how(check: ScoreModel) -> str:
    lowest, highest = check.range
    return (
        "Answer with one JSON object and nothing else. Its fields, in this order:\n"
        f'- "{ANALYSIS}": your reasons, in at most {_ANALYSIS_CHARS} characters\n'
        f'- "{_RESULT}": a number from {lowest:.15g} to {highest:.15g}'
    )
