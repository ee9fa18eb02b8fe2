"""Graded by a judge told in a check's own messages: `score_model`, `label_model` of OpenAI."""

from __future__ import annotations

from protocol.messages import Score, Task
from protocol.rewards import LabelModel, ScoreModel

from services.grader.judge.prompt import quoted
from services.grader.judge.question import (
    ANALYSIS,
    Form,
    Turn,
    Verdict,
    number_within,
    one_of,
    words,
)
from services.grader.judge.scoring import Worth, judged
from services.grader.templates import NotGiven, fill
from services.grader.tools import Tools

_REASONS = words("your reasons, in at most 1500 characters")


async def verify(task: Task, text: str, check: ScoreModel, tools: Tools) -> Score:
    """The mean of the numbers that the model gives, moved from the check's range to [0, 1]."""
    lowest, highest = check.range

    def worth(verdict: Verdict) -> tuple[float, dict[str, float]]:
        value = min(1.0, (float(verdict["result"]) - lowest) / (highest - lowest))
        return value, {"result": value}

    form = Form({ANALYSIS: _REASONS, "result": number_within(lowest, highest)})
    return await _judged(task, text, check, tools, form, worth)


async def verify_label(task: Task, text: str, check: LabelModel, tools: Tools) -> Score:
    """The share of samples whose label is one of those that pass."""

    def worth(verdict: Verdict) -> tuple[float, dict[str, float]]:
        found = {name: float(name == verdict["label"]) for name in check.labels}
        return float(verdict["label"] in check.passing_labels), found

    form = Form({ANALYSIS: _REASONS, "label": one_of(check.labels)})
    return await _judged(task, text, check, tools, form, worth)


async def _judged(
    task: Task, text: str, check: ScoreModel | LabelModel, tools: Tools, form: Form, worth: Worth
) -> Score:
    def messages(task: Task, solution: str) -> tuple[Turn, ...]:
        """The check's messages filled in; the first one, of the system, also says how to answer."""
        turns = [
            {"role": turn.role, "content": fill(turn.content, task, solution, quoted)}
            for turn in check.input
        ]
        if turns[0]["role"] not in {"system", "developer"}:
            return ({"role": "system", "content": form.instructions}, *turns)
        turns[0]["content"] += f"\n\n{form.instructions}"
        return tuple(turns)

    try:
        return await judged(task, text, check, tools, form, messages, worth)
    except NotGiven as missing:
        return missing.score
