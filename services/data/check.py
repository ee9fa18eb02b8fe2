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
        return f"line {self.line}: {'warning: ' if self.is_warning else ''}{self.text}"


async def check(path: Path) -> tuple[int, list[Finding]]:
    """Check a task file as a job does, and that the grader can read every answer.

    Returns:
        The number of tasks, and the findings by line.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        lines = list(check_lines(raw_lines(file)))
    if not lines:
        return 0, [Finding(1, "the file holds no task")]
    tasks = {line.number: line.task for line in lines if line.task}
    findings = [Finding(line.number, problem) for line in lines for problem in line.problems]
    findings += _find_repeated_prompts(tasks)
    unanswered = [number for number, task in tasks.items() if task.answer is None]
    if unanswered:
        text = f"no answer, in {len(unanswered)} tasks in all: only some graders can do without"
        findings.append(Finding(unanswered[0], text, is_warning=True))
    answers = {number: task.answer for number, task in tasks.items() if task.answer}
    faults = await find_answer_faults(answers)
    for number, fault in faults.items():
        findings.append(Finding(number, f"answer: {fault}: {answers[number][:100]!r}"))
    return len(tasks), sorted(findings, key=lambda finding: finding.line)


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
    contents = [task.prompt or ""]
    if task.messages is not None:
        contents = [message.content for message in task.messages]
    if not "".join(contents).strip():
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
            results = await asyncio.gather(
                *(_find_fault(answers[number], tools) for number in numbers)
            )
            for number, fault in zip(numbers, results, strict=True):
                if fault:
                    faults[number] = fault
    return faults


def _find_repeated_prompts(tasks: Mapping[int, Task]) -> Iterator[Finding]:
    first_lines: dict[object, int] = {}
    for number, task in tasks.items():
        first = first_lines.setdefault(task.prompt or task.messages, number)
        if first != number:
            yield Finding(number, f"the same prompt as line {first}", is_warning=True)


def _needs_algebra(answer: str) -> bool:
    value = read_answer(answer[: _MAX_ANSWER_CHARS + 1])
    return bool(answer.strip()) and not isinstance(value, Number | Words)


async def _find_fault(answer: str, tools: Tools) -> str | None:
    if len(answer) > _MAX_ANSWER_CHARS:
        return f"longer than {_MAX_ANSWER_CHARS} characters, which is too long to compare"
    outcome = await tools.pool.run(EXAMINE, answer, deadline_s=tools.compare_deadline_s)
    if isinstance(outcome, Failed) and outcome.cause is not Cause.ERROR:
        return f"comparing with it ends in a {outcome.cause}"
    if isinstance(outcome, Failed) or not outcome.value:
        return "math-verify cannot read it; only the same text would count as right"
    return None
