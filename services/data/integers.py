"""``weir data integers``: rewrite problems so that answers are integers (arXiv:2503.14476, 3.5).

The named integers are put together again and compared with the old answer by the grader; what does
not agree is left out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from protocol.messages import Graded, Task
from protocol.tasks import Line

from services.data.decimals import rounded_decimal
from services.data.forms import Form, TooHard, form_of, name_letters, sentence
from services.data.reading import NumberWithUnit, read_quantity
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from services.grader.verifiers.math_answer import problem_of

_BATCH = 64


class How(StrEnum):
    """The way that a task went."""

    KEPT = "kept as they are"
    REWRITTEN = "rewritten"
    LEFT_OUT = "left out"


class LeftOut(ValueError):
    """A task has no checked integer answer; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """One task's way; ``fields`` is the new JSON object, ``reason`` why there is none.

    ``form`` is None for an integer.
    """

    line: Line
    how: How
    fields: dict[str, Any] = field(default_factory=dict)
    form: Form | None = None
    reason: str = ""


async def rewrite_all(lines: Sequence[Line], tools: Tools) -> AsyncIterator[Outcome]:
    """Rewrite each task, in order."""
    for start in range(0, len(lines), _BATCH):
        batch = (rewrite(line, tools) for line in lines[start : start + _BATCH])
        for outcome in await asyncio.gather(*batch):
            yield outcome


async def rewrite(line: Line, tools: Tools) -> Outcome:
    """Rewrite one task, or say why it is left out."""
    task = line.task
    if task is None:
        return Outcome(line, How.LEFT_OUT, reason="; ".join(line.problems))
    try:
        if task.answer is None or "answer" not in line.fields:
            raise LeftOut("it has no field 'answer'")
        return await _rewrite_number(line, task, task.answer, tools)
    except LeftOut as error:
        return Outcome(line, How.LEFT_OUT, reason=str(error))
    except TooHard as error:
        return Outcome(line, How.LEFT_OUT, reason=f"no number that has a rule: {error}")


async def _rewrite_number(line: Line, task: Task, answer: str, tools: Tools) -> Outcome:
    quantity = read_quantity(answer)
    if decimal := rounded_decimal(quantity.text, quantity.unit, problem_of(task)):
        raise LeftOut(f"{decimal} may be rounded, and the problem asks for no rounding")
    number = quantity.number
    if (whole := number.rational) is not None and whole.denominator == 1:
        await _compare(answer, str(int(whole)), tools)
        return _keep(line, task, int(whole), quantity)
    form = form_of(number)
    await _compare(answer, form.rebuilt(), tools)
    return Outcome(line, How.REWRITTEN, _with_form(_fields(line, task), form, quantity.unit), form)


def _fields(line: Line, task: Task) -> dict[str, Any]:
    """The line as written, but for messages whose content is in parts: they are plain text."""
    if task.messages is None:
        return line.fields
    return line.fields | {"messages": [turn.model_dump() for turn in task.messages]}


def _keep(line: Line, task: Task, whole: int, quantity: NumberWithUnit) -> Outcome:
    """An integer needs no form; with a unit it needs to be said which."""
    fields = {**_fields(line, task), "answer": str(whole)}
    if quantity.unit is None:
        return Outcome(line, How.KEPT, fields)
    demand = f"Give the answer in {quantity.unit}, as an integer without the unit."
    return Outcome(line, How.REWRITTEN, _with_sentence(fields, demand))


async def _compare(gold: str, rebuilt: str, tools: Tools) -> None:
    score = await math_answer.compare(gold, rebuilt, tools)
    if not isinstance(score, Graded) or score.value != 1:
        raise LeftOut(f"the grader does not take {rebuilt} for {gold} ({score.reason})")


def _with_form(fields: dict[str, Any], form: Form, unit: str | None) -> dict[str, Any]:
    problem = fields.get("prompt") or " ".join(turn["content"] for turn in fields["messages"])
    letters = name_letters(form, problem)
    if letters is None:
        raise LeftOut("the problem uses every letter that could name an integer")
    return _with_sentence({**fields, "answer": str(form.integer)}, sentence(form, letters, unit))


def _with_sentence(fields: dict[str, Any], text: str) -> dict[str, Any]:
    """The sentence goes to the end of the prompt, or of the last message of the user."""
    if fields.get("prompt") is not None:
        return {**fields, "prompt": f"{fields['prompt']}\n\n{text}"}
    turns = [dict(turn) for turn in fields["messages"]]
    users = [turn for turn in turns if turn["role"] == "user"]
    if not users:
        raise LeftOut("no message of the user to add a sentence to")
    users[-1]["content"] += f"\n\n{text}"
    return {**fields, "messages": turns}


def summary(ways: Counter[How]) -> str:
    """How many tasks went each way, in one line."""
    return ", ".join(f"{ways[how]} {how}" for how in How)
