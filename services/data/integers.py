r"""``weir data integers``: a model finds an answer's format, and the problem asks for an integer.

As DAPO did with its data (arXiv:2503.14476, section 3.5): for 11-2√6 it is $k-m\sqrt{n}$, and the
problem asks for k+m+n. Nothing else that the model writes reaches a task, and a format only if it
is the answer as that was written, once its integers are put in.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from answers import read_answer
from answers.values import Choice, Number, Words
from protocol.messages import Task, Ungradable
from protocol.tasks import Line

from services.grader.judge.judge import Answer, Judge
from services.grader.judge.question import Form, Question, encode_json, number_field, text_field
from services.grader.judge.settings import JudgeSettings

REWRITTEN = "rewritten"
_REPLY = Form(
    {
        "analysis": text_field("your reasons"),
        "format": text_field("the format, in LaTeX without dollar signs"),
        "integers": text_field("the integers, as k = 11, m = 2"),
        "answer": number_field(0, 1e15),
    }
)
_INSTRUCTIONS = rf"""You make problems ask for a single integer. Given a problem and its answer:
1. Extract the answer's format: the answer as it is written, but with a letter for each integer, as
\frac{{k-m\sqrt{{n}}}}{{p}} for \frac{{11-2\sqrt{{6}}}}{{5}}. Signs, exponents, words, units, \pi
and variables stay. Take letters that are not in the problem, each once, and neither a, e nor i.
2. Solve for the integers.
3. Give their sum, which is the answer of the new problem.
If the answer has no such format, leave format and integers empty, and give 0.
{_REPLY.instructions}"""
_LETTER = re.compile(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])")  # no part of a word or a command
_MATH = re.compile(r"(?<!\\)(?:\$+|\\[()\[\]])")  # every other one begins it
_EXPONENT = re.compile(r"[\^_](?! *(?:\d|\{-?\d+\}|\{?\\circ))")  # or index, of more than digits
_VALUE = re.compile(r"\b([a-z]) ?= ?(\d{1,12})\b")

Outcome = tuple[dict[str, Any], str]  # the fields of a task; `REWRITTEN`, or why they are as before


async def rewrite_all(lines: Sequence[Line], server: JudgeSettings, replies: Path) -> list[Outcome]:
    """Rewrite the tasks of sound lines; `JudgeDown` if the model cannot be asked.

    An interrupted run does not ask for what is in the file ``replies``.
    """
    async with Judge(replace(server, patient=False)) as judge:
        model = Model(judge, replies)
        tasks = [(line.task, line.fields) for line in lines if line.task is not None]
        return await asyncio.gather(*(_rewritten(*task, model) for task in tasks))


class Model:
    """The model, and the file of its replies, where a line that was cut off is none."""

    def __init__(self, judge: Judge, replies: Path) -> None:
        self._judge, self._replies = judge, replies
        self._known: dict[str, Answer] = {}
        for line in replies.read_bytes().splitlines() if replies.exists() else ():
            try:
                self._known |= [json.loads(line)]
            except (TypeError, ValueError):
                continue

    async def ask(self, task: Task) -> Answer:
        given = f"Problem:\n{task.problem}\n\nAnswer:\n{task.answer}"
        turns = {"role": "system", "content": _INSTRUCTIONS}, {"role": "user", "content": given}
        question = Question(turns, _REPLY)
        asked = encode_json({"model": self._judge.settings.model, **question.request})
        if (key := hashlib.sha256(asked).hexdigest()) in self._known:
            return self._known[key]
        [reply] = await self._judge.ask(question)
        if not isinstance(reply, Ungradable):
            with self._replies.open("ab") as file:
                file.write(b"\n" + encode_json([key, reply]))
        return reply


async def _rewritten(task: Task, fields: dict[str, Any], model: Model) -> Outcome:
    if reason := _why_not_asked(task.answer or ""):
        return fields, reason
    reply = await model.ask(task)
    if isinstance(reply, Ungradable):
        return fields, f"the model gives no reply ({reply.reason})"
    form = str(reply["format"]).strip("$ \n")
    integers = {name: int(digits) for name, digits in _VALUE.findall(str(reply["integers"]))}
    if reason := _why_not_taken(task, form, integers):
        return fields, reason
    total, listed = sum(integers.values()), ", ".join(f"${name}$" for name in integers)
    if total != reply["answer"]:
        return fields, "the model's answer is not the sum of its integers"
    text = f"In simplest form the answer is ${form}$ with integers {listed}. "
    text += f"Find ${'+'.join(integers)}$."
    name = "answer" if "answer" in fields else "reference_answer"
    return {**fields, **_asking(task, text), name: str(total)}, REWRITTEN


def _why_not_asked(answer: str) -> str | None:
    value = read_answer(answer)
    if isinstance(value, Number) and value.value.denominator == 1:
        return "an integer already"
    if isinstance(value, Words | Choice) or not answer:
        return "no answer, or one in words"
    has_marks = re.search(r"\.\d|\d\{?,\}?\d{3}(?!\d)", answer)
    return "a decimal, or a number with commas" if has_marks else None


def _why_not_taken(task: Task, form: str, integers: Mapping[str, int]) -> str | None:
    names, letters, answer = integers.keys(), _LETTER.findall(form), task.answer or ""
    put_in = _LETTER.sub(lambda letter: f" {integers.get(letter[0], letter[0])} ", form)
    value = read_answer(answer)
    parts = value.value.as_integer_ratio() if isinstance(value, Number) else ()
    faults = {
        "the model finds no format": not names or not names <= {*letters},
        "the problem uses a letter of the format": names & _letters_of(task.problem),
        "the format may fit other integers": _EXPONENT.search(form),
        "the integers do not make the answer": _spelled(put_in) != _spelled(answer),
        "the fraction is not in lowest terms": parts
        and sorted(map(abs, parts)) != sorted(integers.values()),
    }
    return next((reason for reason, is_so in faults.items() if is_so), None)


def _letters_of(problem: str) -> set[str]:
    """Those by themselves, and in formulas also those of products."""
    formulas = re.sub(r"\\[A-Za-z]+", "", "".join(_MATH.split(problem)[1::2]))
    return {*_LETTER.findall(problem), *formulas}


def _spelled(latex: str) -> tuple[str, list[str]]:
    r"""Without spaces, the size of \frac and braces around one character; and the numbers in it."""
    plain = re.sub(r"\\(?:left|right)(?![a-z])|\\[,;! ]|[\s$]", "", latex)
    plain = re.sub(r"\\[dt]frac", r"\\frac", plain)
    return re.sub(r"\{(\w)\}", r"\1", plain), re.findall(r"\d+", latex)


def _asking(task: Task, text: str) -> dict[str, Any]:
    if task.messages is None:
        return {"prompt": f"{task.prompt}\n\n{text}"}
    turns = [turn.model_dump() for turn in task.messages]
    turns[-1]["content"] += f"\n\n{text}"
    return {"messages": turns}
