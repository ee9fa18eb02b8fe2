"""Graded by the label that a model picks: OpenAI's ``label_model``."""

from __future__ import annotations

import json

from protocol.messages import Score, Task
from protocol.rewards import LabelModel

from services.grader.judge.form import Choice
from services.grader.judge.own_messages import Decision, ask
from services.grader.judge.samples import mean_score
from services.grader.tools import Tools

_LABEL = "label"


async def verify(task: Task, text: str, check: LabelModel, tools: Tools) -> Score:
    """The share of samples whose label is one of those that pass."""
    names = ", ".join(json.dumps(label, ensure_ascii=False) for label in check.labels)
    decision = Decision(_LABEL, Choice(check.labels), f"one of {names}")
    answers = await ask(check, decision, task, text, tools)
    if not isinstance(answers, list):
        return answers
    return mean_score(
        answers,
        worth=lambda verdict: float(verdict[_LABEL] in check.passing_labels),
        parts=lambda verdict: {label: float(verdict[_LABEL] == label) for label in check.labels},
    )
