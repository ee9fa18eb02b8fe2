"""``weir data integers``: rewrite problems so that answers are integers (arXiv:2503.14476, 3.5).

A rule is tried first, then a model if there is one. Either way the named integers are put together
again and compared with the old answer by the grader; what does not agree is left out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx
from protocol.messages import Graded, Task
from protocol.tasks import Line
from pydantic import JsonValue

from services.grader.answers.exact import TooHard
from services.grader.answers.formulas import read_number
from services.grader.data.decimals import rounded_decimal
from services.grader.data.forms import Form, form_of, name_letters, sentence
from services.grader.data.reading import Quantity, no_number, split_unit
from services.grader.data.rewriter import NoProposal, NoReply, Proposal, Rewriter
from services.grader.pool import Failed
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from services.grader.verifiers.math_answer import problem_of

_EXAMINE = "services.grader.data.algebra:examine"
_EXAMINE_DEADLINE_S = 10.0
_PROPOSALS = 2
_BATCH = 64


class How(StrEnum):
    """The way that a task went."""

    KEPT = "kept as they are"
    RULE = "rewritten by rule"
    MODEL = "by model"
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


@dataclass(frozen=True)
class Workshop:
    """What rewriting works with; without a rewriter, rules alone."""

    tools: Tools
    rewriter: Rewriter | None
    http: httpx.AsyncClient


async def rewrite_all(
    lines: Sequence[Line], tools: Tools, rewriter: Rewriter | None
) -> AsyncIterator[Outcome]:
    """Rewrite each task, in order.

    Raises:
        RewriterError: if the model's endpoint cannot be used, behind what was finished till then.
    """
    async with httpx.AsyncClient() as http:
        workshop = Workshop(tools, rewriter, http)
        for start in range(0, len(lines), _BATCH):
            batch = [rewrite(line, workshop) for line in lines[start : start + _BATCH]]
            ended = await asyncio.gather(*batch, return_exceptions=True)
            for outcome in ended:
                if isinstance(outcome, Outcome):
                    yield outcome
            for failure in ended:
                if isinstance(failure, BaseException):
                    raise failure


async def rewrite(line: Line, workshop: Workshop) -> Outcome:
    """Rewrite one task, or say why it is left out."""
    task = line.task
    if task is None:
        return Outcome(line, How.LEFT_OUT, reason="; ".join(line.problems))
    try:
        if task.answer is None or "answer" not in line.fields:
            raise LeftOut("it has no field 'answer'")
        if (kind := no_number(task.answer)) is not None:
            raise LeftOut(f"the answer is {kind}")
        return await _rewrite_number(line, task, task.answer, workshop)
    except LeftOut as error:
        return Outcome(line, How.LEFT_OUT, reason=str(error))


async def _rewrite_number(line: Line, task: Task, answer: str, workshop: Workshop) -> Outcome:
    quantity = split_unit(answer)
    if decimal := rounded_decimal(quantity.latex, quantity.unit, problem_of(task)):
        raise LeftOut(f"{decimal} may be rounded, and the problem asks for no rounding")
    try:
        number = read_number(quantity.latex)
        if (whole := number.rational) is not None and whole.denominator == 1:
            await _compare(answer, str(int(whole)), workshop.tools)
            return _keep(line, task, int(whole), quantity)
        form, how = form_of(number), How.RULE
    except TooHard as error:
        form, how = await _ask_model(task, quantity, workshop, f"no rule: {error}"), How.MODEL
    await _compare(answer, form.rebuilt(), workshop.tools)
    return Outcome(line, how, _with_form(_fields(line, task), form, quantity.unit), form)


def _fields(line: Line, task: Task) -> dict[str, Any]:
    """The line as written, but for messages whose content is in parts: they are plain text."""
    if task.messages is None:
        return line.fields
    return line.fields | {"messages": [turn.model_dump() for turn in task.messages]}


def _keep(line: Line, task: Task, whole: int, quantity: Quantity) -> Outcome:
    """An integer needs no form; with a unit it needs to be said which."""
    fields = {**_fields(line, task), "answer": str(whole)}
    if quantity.unit is None:
        return Outcome(line, How.KEPT, fields)
    demand = f"Give the answer in {quantity.unit}, as an integer without the unit."
    return Outcome(line, How.RULE, _with_sentence(fields, demand))


async def _compare(gold: str, rebuilt: str, tools: Tools) -> None:
    score = await math_answer.compare(gold, rebuilt, tools)
    if not isinstance(score, Graded) or score.value != 1:
        raise LeftOut(f"the grader does not take {rebuilt} for {gold} ({score.reason})")


async def _ask_model(task: Task, quantity: Quantity, workshop: Workshop, no_rule: str) -> Form:
    """A form that a model proposed and the pool examined; a bad one is asked for once more."""
    if workshop.rewriter is None:
        raise LeftOut(no_rule)
    reason = ""
    for attempt in range(_PROPOSALS):
        try:
            proposal = await workshop.rewriter.propose(
                workshop.http, problem_of(task), quantity.latex, attempt
            )
            return await _examined(proposal, quantity, workshop.tools)
        except NoProposal as error:
            reason = str(error)
        except NoReply as error:
            raise LeftOut(f"{no_rule}; {error}") from error
    raise LeftOut(f"{no_rule}; {reason}")


async def _examined(proposal: Proposal, quantity: Quantity, tools: Tools) -> Form:
    """The form of a proposal that is right and unique.

    Raises:
        NoProposal: if it is not.
        LeftOut: if that cannot be found out.
    """
    values: dict[str, JsonValue] = {**proposal.values}
    call = _EXAMINE, proposal.form, proposal.ask, values, quantity.latex
    examined = await tools.pool.run(*call, deadline_s=_EXAMINE_DEADLINE_S)
    if isinstance(examined, Failed):
        raise LeftOut(f"the model's form ends in a {examined.cause}")
    parts: Any = examined.value
    if "refused" in parts:
        raise NoProposal(f"the model's form is refused: {parts['refused']}")
    if parts["integer"] != proposal.answer:
        raise NoProposal(f"the model's {proposal.ask} is not {proposal.answer}")
    return Form(**{**parts, "denominators": tuple(parts["denominators"])}, values=proposal.values)


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
