"""``weir data check``: report every problem of a task file, with its line."""

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
# This many answers are compared at once.
_BATCH_SIZE = 256
_EMPTY = re.compile(r": (?:String|Tuple) should have at least 1 (?:character|item).*")


@dataclass(frozen=True)
class Finding:
    """A problem of a line, or a warning."""

    line: int
    text: str
    is_warning: bool = False

    def __str__(self) -> str:
        kind = "warning: " if self.is_warning else ""
        return f"line {self.line}: {kind}{self.text}"


async def check(path: Path) -> tuple[int, list[Finding]]:
    """Check a task file as a job does, and that the grader can read every answer.

    Returns:
        The number of tasks, and the findings by line.

    Raises:
        OSError: if the file cannot be read.
    """
    tasks: dict[int, Task] = {}
    findings: list[Finding] = []
    with path.open("rb") as file:
        for line in check_lines(raw_lines(file)):
            if line.task is not None:
                tasks[line.number] = line.task
            for problem in line.problems:
                findings.append(Finding(line.number, problem))
    if not tasks and not findings:
        findings.append(Finding(1, "the file holds no task"))
    findings += _find_repeated_prompts(tasks)
    findings += _find_unanswered(tasks)
    answers = {number: task.answer for number, task in tasks.items() if task.answer}
    faults = await find_answer_faults(answers)
    for number, fault in faults.items():
        excerpt = answers[number][:100]
        findings.append(Finding(number, f"answer: {fault}: {excerpt!r}"))
    findings.sort(key=lambda finding: finding.line)
    return len(tasks), findings


def check_lines(lines: Iterable[bytes]) -> Iterator[Line]:
    """Yield every line that is not blank, with all its problems."""
    for line in parse_lines(lines):
        remedy = ": empty; fill it in, or remove the task"
        problems = [_EMPTY.sub(remedy, problem) for problem in line.problems]
        if line.task is not None:
            problems += _find_blanks(line.task)
        yield replace(line, problems=tuple(problems))


def _find_blanks(task: Task) -> Iterator[str]:
    if task.answer is not None and not task.answer.strip():
        yield "answer: blank; give the answer, or remove the task"
    text = task.prompt or ""
    for message in task.messages or ():
        text += message.content
    if not text.strip():
        yield "prompt: blank; give the problem, or remove the task"


async def find_answer_faults(answers: Mapping[int, str]) -> dict[int, str]:
    """Return why the grader cannot compare with answers, by their numbers.

    Numbers and words are compared without algebra; only other answers need the pool.
    """
    faults: dict[int, str] = {}
    algebraic = [number for number, answer in answers.items() if _needs_algebra(answer)]
    if not algebraic:
        return faults
    async with Pool(Settings.from_environment().workers, warm_ups=[WARM_UP]) as pool:
        tools = Tools(pool)
        for start in range(0, len(algebraic), _BATCH_SIZE):
            numbers = algebraic[start : start + _BATCH_SIZE]
            searches = [_find_fault(answers[number], tools) for number in numbers]
            results = await asyncio.gather(*searches)
            for number, fault in zip(numbers, results, strict=True):
                if fault:
                    faults[number] = fault
    return faults


def _find_unanswered(tasks: Mapping[int, Task]) -> Iterator[Finding]:
    unanswered = [number for number, task in tasks.items() if task.answer is None]
    if unanswered:
        text = f"no answer, in {len(unanswered)} tasks in all: only some graders can do without"
        yield Finding(unanswered[0], text, is_warning=True)


def _find_repeated_prompts(tasks: Mapping[int, Task]) -> Iterator[Finding]:
    first_lines: dict[object, int] = {}
    for number, task in tasks.items():
        first = first_lines.setdefault(task.prompt or task.messages, number)
        if first != number:
            yield Finding(number, f"the same prompt as line {first}", is_warning=True)


def _needs_algebra(answer: str) -> bool:
    if not answer.strip():
        return False
    value = read_answer(answer[: _MAX_ANSWER_CHARS + 1])
    return not isinstance(value, Number | Words)


async def _find_fault(answer: str, tools: Tools) -> str | None:
    if len(answer) > _MAX_ANSWER_CHARS:
        return f"longer than {_MAX_ANSWER_CHARS} characters, which is too long to compare"
    outcome = await tools.pool.run(EXAMINE, answer, deadline_s=tools.compare_deadline_s)
    if isinstance(outcome, Failed):
        if outcome.cause is not Cause.ERROR:
            return f"comparing with it ends in a {outcome.cause}"
    elif outcome.value:
        return None
    return "math-verify cannot read it; only the same text would count as right"
