"""``weir data check``: every problem of a task file, with its line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from answers import read_answer
from answers.values import Number, Words
from protocol.messages import Task
from protocol.tasks import Line, parse_lines, raw_lines

from services.chassis.pool import Cause, Failed, Pool
from services.grader.tools import Settings, Tools
from services.grader.verifiers.math_answer import EXAMINE, WARM_UP

_MAX_ANSWER_CHARS = 2_000
_BATCH = 256
_EMPTY = re.compile(r": (?:String|Tuple) should have at least 1 (?:character|item).*")


@dataclass(frozen=True)
class Finding:
    """Something to say about a line; a warning is no problem."""

    line: int
    text: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"line {self.line}: {'warning: ' if self.is_warning else ''}{self.text}"


async def check(path: Path) -> tuple[int, list[Finding]]:
    """Check a task file as a job would read it, and that the grader can read every answer.

    Returns:
        The number of tasks, and what was found, by line.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        lines = list(examined(raw_lines(file)))
    lines = lines or [Line(1, "", None, ("the file holds no task",))]
    tasks = {line.number: line.task for line in lines if line.task}
    found = [Finding(line.number, text) for line in lines for text in line.problems]
    found += _repeated_prompts(tasks)
    unanswered = [number for number, task in tasks.items() if task.answer is None]
    if unanswered:
        text = f"no answer, in {len(unanswered)} tasks in all: only some graders can do without"
        found.append(Finding(unanswered[0], text, is_warning=True))
    answers = {number: task.answer for number, task in tasks.items() if task.answer}
    for number, fault in (await faults_of(answers)).items():
        found.append(Finding(number, f"answer: {fault}: {answers[number][:100]!r}"))
    return len(tasks), sorted(found, key=lambda finding: finding.line)


def examined(lines: Iterable[bytes]) -> Iterator[Line]:
    """Every line that is not blank, with all that is wrong with it."""
    for line in parse_lines(lines):
        blanks = () if line.task is None else tuple(_blanks(line.task))
        yield replace(line, problems=(*map(_plain, line.problems), *blanks))


def _plain(problem: str) -> str:
    """An empty field, in the words of this report instead of the validator's."""
    return _EMPTY.sub(": empty; fill it in, or remove the task", problem)


def _blanks(task: Task) -> Iterator[str]:
    if task.answer is not None and not task.answer.strip():
        yield "answer: blank; give the answer, or remove the task"
    texts = [task.prompt] if task.messages is None else [turn.content for turn in task.messages]
    if not any((text or "").strip() for text in texts):
        yield "prompt: blank; give the problem, or remove the task"


async def faults_of(answers: Mapping[int, str]) -> dict[int, str]:
    """What keeps the grader from comparing with answers, by their numbers.

    What only algebra can read goes to the pool; without any there is no pool.
    """
    hard = [(number, answer) for number, answer in answers.items() if _needs_algebra(answer)]
    if not hard:
        return {}
    faults: dict[int, str] = {}
    async with Pool(Settings.from_environment().workers, warm_ups=[WARM_UP]) as pool:
        for start in range(0, len(hard), _BATCH):
            batch = hard[start : start + _BATCH]
            found = await asyncio.gather(*(_fault(answer, Tools(pool)) for _, answer in batch))
            pairs = zip(batch, found, strict=True)
            faults |= {number: fault for (number, _), fault in pairs if fault}
    return faults


def _repeated_prompts(tasks: Mapping[int, Task]) -> Iterator[Finding]:
    first_line_of: dict[object, int] = {}
    for number, task in tasks.items():
        earlier = first_line_of.setdefault(task.prompt or task.messages, number)
        if earlier != number:
            yield Finding(number, f"the same prompt as line {earlier}", is_warning=True)


def _needs_algebra(answer: str) -> bool:
    """Whether it is neither a number nor words, which are compared without algebra."""
    value = read_answer(answer[: _MAX_ANSWER_CHARS + 1])
    return bool(answer.strip()) and not isinstance(value, Number | Words)


async def _fault(answer: str, tools: Tools) -> str | None:
    if len(answer) > _MAX_ANSWER_CHARS:
        return f"longer than {_MAX_ANSWER_CHARS} characters, which is too long to compare"
    outcome = await tools.pool.run(EXAMINE, answer, deadline_s=tools.compare_deadline_s)
    if isinstance(outcome, Failed) and outcome.cause is not Cause.ERROR:
        return f"comparing with it ends in a {outcome.cause}"
    if isinstance(outcome, Failed) or not outcome.value:
        return "math-verify cannot read it; only the same text would count as right"
    return None
