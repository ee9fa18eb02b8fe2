"""Graded by a model's number: OpenAI's ``score_model``, with the check's own messages."""

from __future__ import annotations

from protocol.messages import Score, Task
from protocol.rewards import ScoreModel

from services.grader.judge.form import Number, Verdict
from services.grader.judge.own_messages import Decision, ask
from services.grader.judge.samples import mean_score
from services.grader.tools import Tools

_RESULT = "result"


async def verify(task: Task, text: str, check: ScoreModel, tools: Tools) -> Score:
    """The mean of the numbers that the model gives, moved from the check's range to [0, 1]."""
    lowest, highest = check.range
    means = f"a number from {lowest:.15g} to {highest:.15g}"
    decision = Decision(_RESULT, Number(lowest, highest), means)
    answers = await ask(check, decision, task, text, tools)
    if not isinstance(answers, list):
        return answers

    def worth(verdict: Verdict) -> float:
        return min(1.0, (float(verdict[_RESULT]) - lowest) / (highest - lowest))

    return mean_score(answers, worth, parts=lambda verdict: {_RESULT: worth(verdict)})
