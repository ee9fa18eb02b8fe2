r"""``weir data integers``: rewrite problems to ask for an integer, with formats that a model finds.

As DAPO did with its data (arXiv:2503.14476, section 3.5): the format of 11-2√6 is $k-m\sqrt{n}$, so
the problem asks for k+m+n. A format is used only if it equals the answer's text with its integers
put in. No other text of the model reaches a task.
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
_FORM = Form(
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
{_FORM.instructions}"""
# A letter that is no part of a word or a command.
_LETTER = re.compile(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])")
_MATH_DELIMITER = re.compile(r"(?<!\\)(?:\$+|\\[()\[\]])")
# An exponent or index with more than digits.
_EXPONENT = re.compile(r"[\^_](?! *(?:\d|\{-?\d+\}|\{?\\circ))")
_INTEGER = re.compile(r"\b([a-z]) ?= ?(\d{1,12})\b")

# The fields of a task, and `REWRITTEN` or the reason why they are unchanged.
Outcome = tuple[dict[str, Any], str]


async def rewrite_all(lines: Sequence[Line], server: JudgeSettings, replies: Path) -> list[Outcome]:
    """Rewrite the tasks of valid lines; `JudgeDown` if the model does not respond.

    The file ``replies`` keeps the replies, so that an interrupted run does not request them again.
    """
    async with Judge(replace(server, patient=False)) as judge:
        model = _Model(judge, replies)
        tasks = [(line.task, line.fields) for line in lines if line.task is not None]
        return await asyncio.gather(*(_rewrite(task, fields, model) for task, fields in tasks))


class _Model:
    """The model, and the file of its replies, in which a line may be cut off."""

    def __init__(self, judge: Judge, path: Path) -> None:
        self._judge = judge
        self._path = path
        self._replies: dict[str, Answer] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    key, reply = json.loads(line)
                except (TypeError, ValueError):
                    continue
                self._replies[key] = reply

    async def ask(self, task: Task) -> Answer:
        content = f"Problem:\n{task.problem}\n\nAnswer:\n{task.answer}"
        turns = (
            {"role": "system", "content": _INSTRUCTIONS},
            {"role": "user", "content": content},
        )
        question = Question(turns, _FORM)
        request = encode_json({"model": self._judge.settings.model, **question.request})
        key = hashlib.sha256(request).hexdigest()
        if key in self._replies:
            return self._replies[key]
        (reply,) = await self._judge.ask(question)
        if not isinstance(reply, Ungradable):
            with self._path.open("ab") as file:
                file.write(b"\n" + encode_json([key, reply]))
        return reply


async def _rewrite(task: Task, fields: dict[str, Any], model: _Model) -> Outcome:
    reason = _answer_problem(task.answer or "")
    if reason:
        return fields, reason
    reply = await model.ask(task)
    if isinstance(reply, Ungradable):
        return fields, f"the model gives no reply ({reply.reason})"
    answer_format = str(reply["format"]).strip("$ \n")
    integers = {name: int(digits) for name, digits in _INTEGER.findall(str(reply["integers"]))}
    reason = _format_problem(task, answer_format, integers)
    if reason:
        return fields, reason
    total = sum(integers.values())
    if total != reply["answer"]:
        return fields, "the model's answer is not the sum of its integers"
    names = ", ".join(f"${name}$" for name in integers)
    request = (
        f"In simplest form the answer is ${answer_format}$ with integers {names}. "
        f"Find ${'+'.join(integers)}$."
    )
    answer_name = "answer" if "answer" in fields else "reference_answer"
    return {**fields, **_append(task, request), answer_name: str(total)}, REWRITTEN


def _answer_problem(answer: str) -> str | None:
    """Return why an answer is not rewritten."""
    value = read_answer(answer)
    if isinstance(value, Number) and value.value.denominator == 1:
        return "an integer already"
    if isinstance(value, Words | Choice) or not answer:
        return "no answer, or one in words"
    if re.search(r"\.\d|\d\{?,\}?\d{3}(?!\d)", answer):
        return "a decimal, or a number with commas"
    return None


def _format_problem(task: Task, answer_format: str, integers: Mapping[str, int]) -> str | None:
    """Return why a format of the model is refused."""
    answer = task.answer or ""
    names = integers.keys()
    if not names or not names <= set(_LETTER.findall(answer_format)):
        return "the model finds no format"
    if names & _find_letters(task.problem):
        return "the problem uses a letter of the format"
    if _EXPONENT.search(answer_format):
        return "the format may fit other integers"
    filled = _LETTER.sub(lambda letter: f" {integers.get(letter[0], letter[0])} ", answer_format)
    if _normalize(filled) != _normalize(answer):
        return "the integers do not make the answer"
    value = read_answer(answer)
    if isinstance(value, Number):
        parts = map(abs, value.value.as_integer_ratio())
        if sorted(parts) != sorted(integers.values()):
            return "the fraction is not in lowest terms"
    return None


def _find_letters(problem: str) -> set[str]:
    """Return letters that stand alone, and all letters of formulas."""
    formulas = "".join(_MATH_DELIMITER.split(problem)[1::2])
    return {*_LETTER.findall(problem), *re.sub(r"\\[A-Za-z]+", "", formulas)}


def _normalize(latex: str) -> tuple[str, list[str]]:
    r"""Drop spaces, sizes of \frac, and braces of single characters; also return the numbers."""
    text = re.sub(r"\\(?:left|right)(?![a-z])|\\[,;! ]|[\s$]", "", latex)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    return re.sub(r"\{(\w)\}", r"\1", text), re.findall(r"\d+", latex)


def _append(task: Task, text: str) -> dict[str, Any]:
    if task.messages is None:
        return {"prompt": f"{task.prompt}\n\n{text}"}
    messages = [message.model_dump() for message in task.messages]
    messages[-1]["content"] += f"\n\n{text}"
    return {"messages": messages}
