"""A judge asked with a check's own messages: OpenAI's ``score_model`` and ``label_model``."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import LabelModel, ScoreModel

from services.grader.judge.form import ANALYSIS, Blank, Form, Text
from services.grader.judge.judge import Answer
from services.grader.judge.prompt import defanged
from services.grader.judge.question import Question, Turn
from services.grader.judge.said import said
from services.grader.templates import NoOutput, UnknownField, fill
from services.grader.tools import Tools

_ANALYSIS_CHARS = 1500
Asking = ScoreModel | LabelModel


@dataclass(frozen=True)
class Decision:
    """What the judge decides, behind its analysis: the field's name, what it holds, in words."""

    name: str
    blank: Blank
    means: str


async def ask(
    check: Asking, decision: Decision, task: Task, text: str, tools: Tools
) -> list[Answer] | Score:
    """The judge's answers; or a score, where there is nothing to ask."""
    judge = tools.named_judges.get(check.model)
    if judge is None:
        return Ungradable(reason="no_judge")
    solution = said(text)
    if isinstance(solution, Graded):
        return solution
    try:
        messages = _messages(check, decision, task, solution)
    except UnknownField:
        return Ungradable(reason="unknown_field")
    except NoOutput:
        return Graded(value=0, reason="no_output")
    form = Form({ANALYSIS: Text(), decision.name: decision.blank})
    return await judge.ask(Question.of(check, messages, form), check.samples)


def _messages(check: Asking, decision: Decision, task: Task, solution: str) -> tuple[Turn, ...]:
    """The check's messages filled in; the first one, of the system, also says how to answer."""
    filled = tuple(
        {"role": turn.role, "content": fill(turn.content, task, solution, defanged)}
        for turn in check.input
    )
    how = (
        "Answer with one JSON object and nothing else. Its fields, in this order:\n"
        f'- "{ANALYSIS}": your reasons, in at most {_ANALYSIS_CHARS} characters\n'
        f'- "{decision.name}": {decision.means}'
    )
    if filled[0]["role"] in {"system", "developer"}:
        first, *others = filled
        return ({**first, "content": f"{first['content']}\n\n{how}"}, *others)
    return ({"role": "system", "content": how}, *filled)
