"""References: tasks with answers that graders cannot read are left out, or the job is refused."""

from __future__ import annotations

import asyncio
import json
import math
import re
import secrets
import time
from collections.abc import Mapping, Sequence, Set
from itertools import chain, islice
from pathlib import Path

from protocol.exchange import Exchange
from protocol.messages import Graded, Score, Task, Trial, Ungradable
from protocol.rewards import Reward
from protocol.tasks import parse_lines, raw_lines

from services.learner.attempt import Attempt, JobFault, MachineFault
from services.learner.durable.checkpoint import write_whole
from services.learner.supply.evaluator import HeldOut

_PLAIN = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?", re.ASCII)  # every grader reads such a number
_MAX_SOLUTIONS = 200  # spread over the file; each takes a grader about 10 ms
_MIN_READABLE = 0.5  # with fewer, most right responses have a process score of 0, or none
_BATCH_SIZE = 16  # trials in flight
_MAX_WAITING = 32  # trials in Redis, of all clients
_RESULT_TIMEOUT_S = 20.0  # a lost trial is sent again afterwards
_TIMEOUT_S = 60.0  # a grader that runs answers much sooner
_MAX_NAMED = 3  # tasks in a message
_STARVED = Ungradable(reason="starved")
_UNREADABLE = Ungradable(reason="gold_not_parsable")
_ANSWERS = "answers.json"
# By the names of sources and of evaluations.
Tasks = tuple[Mapping[str, tuple[Task, ...]], HeldOut]


async def readable_tasks(
    attempt: Attempt, files: Path, tasks: Tasks, timeout_s: float = _TIMEOUT_S
) -> Tasks:
    """Leave out the tasks whose answers graders cannot read, in every attempt the same.

    The job's first attempt asks graders, and stores their verdicts.

    Raises:
        JobFault: if no task of a file is left, or `equation_steps` can judge too few solutions.
        MachineFault: if no grader answers within ``timeout_s``.
    """
    train, held_out = tasks
    stored = attempt.folder / "unreadable"
    if not train:
        return tasks
    if stored.exists():
        unreadable = frozenset(json.loads((stored / _ANSWERS).read_text()))
    else:
        trials = _Trials(attempt.exchange, timeout_s)
        trained = tuple(chain(*train.values()))
        await _check_solutions(attempt, trained, trials)
        all_tasks = (*trained, *chain(*held_out.values()))
        unreadable = await _unreadable_answers(attempt, all_tasks, trials)
    recipe = attempt.recipe
    readable: dict[str, tuple[Task, ...]] = {}
    for name, part in train.items():
        field = f"recipe.tasks.sources.{name}.train" if name else "training_file"
        path = files / f"{recipe.tasks.train_files[name]}.jsonl"
        readable[name] = await _leave_out(attempt, field, path, part, unreadable)
    num_unreadable = sum(len(part) - len(readable[name]) for name, part in train.items())
    await attempt.update(unreadable_answers=num_unreadable)
    readable_held_out: dict[str, Sequence[Task]] = {}
    for name, part in held_out.items():
        field = f"recipe.evaluation.others.{name}.held_out" if name else "validation_file"
        path = files / f"{recipe.held_out_files[name]}.jsonl"
        readable_held_out[name] = await _leave_out(attempt, field, path, tuple(part), unreadable)
    if not stored.exists():
        await _write(attempt, stored, unreadable)
    return readable, readable_held_out


class _Trials:
    def __init__(self, exchange: Exchange, timeout_s: float) -> None:
        self._exchange = exchange
        self._timeout_s = timeout_s

    async def run(self, verifier: str, trials: Sequence[tuple[Task, str | None]]) -> list[Score]:
        """Return the score of each text, or without a text, whether the answer can be read."""
        reward = Reward.model_validate({"outcome": verifier})
        scores: list[Score] = []
        for start in range(0, len(trials), _BATCH_SIZE):
            batch = trials[start : start + _BATCH_SIZE]
            scores += await asyncio.gather(
                *(self._score(reward, task, text) for task, text in batch)
            )
        return scores

    async def _score(self, reward: Reward, task: Task, text: str | None) -> Score:
        trial = Trial(id=secrets.token_hex(12), reward=reward, task=task, text=text)
        deadline = time.monotonic() + self._timeout_s
        while (remaining_s := deadline - time.monotonic()) > 0:
            if not await self._exchange.ask_trial(trial, _MAX_WAITING):
                await asyncio.sleep(min(remaining_s, 1.0))
                continue
            result = await self._exchange.trial_result(
                trial.id, min(remaining_s, _RESULT_TIMEOUT_S)
            )
            if result and result.outcome and result.outcome != _STARVED:
                return result.outcome
            await self._exchange.withdraw_trial(trial)
        raise MachineFault(
            f"no grader answered within {self._timeout_s:g} s whether it can read the tasks' "
            "answers and solutions; check that a grader of this release runs and has time"
        )


async def _check_solutions(attempt: Attempt, train: tuple[Task, ...], trials: _Trials) -> None:
    reward = attempt.recipe.reward
    checks = {"outcome": reward.outcome, "process": reward.process}
    uses = [
        (field, check)
        for field, field_checks in checks.items()
        for check in field_checks
        if check.verifier == "equation_steps"
    ]
    if not uses:
        return
    solved = [(task, task.solution) for task in train if task.solution]
    sample = solved[:: math.ceil(len(solved) / _MAX_SOLUTIONS) or 1]
    if not sample:
        message = "no task has a solution, so it is not known how many equation_steps can judge"
        await attempt.report("solutions", message)
        return
    scores = await trials.run("equation_steps", sample)
    num_readable = sum(isinstance(score, Graded) and score.value > 0 for score in scores)
    share = num_readable / len(sample)
    await attempt.update(readable_solutions=share)
    message = f"equation_steps can judge {num_readable} of {len(sample)} solutions of the tasks"
    needed = [field for field, check in uses if check.if_ungradable == "ungradable"]
    if needed and share < _MIN_READABLE:
        raise JobFault(
            f"recipe.reward.{needed[0]}: {message}, and needs half of them; use model_judge "
            "instead, or tasks whose solutions calculate with numbers"
        )
    await attempt.report("solutions", message)


async def _unreadable_answers(
    attempt: Attempt, tasks: tuple[Task, ...], trials: _Trials
) -> frozenset[str]:
    reward = attempt.recipe.reward
    checks = (*reward.outcome, *reward.process)
    if not any(check.verifier == "math_answer" for check in checks):
        return frozenset()
    tasks_by_answer = {
        task.answer: task for task in tasks if task.answer and not _PLAIN.fullmatch(task.answer)
    }
    scores = await trials.run("math_answer", [(task, None) for task in tasks_by_answer.values()])
    pairs = zip(tasks_by_answer, scores, strict=True)
    return frozenset(answer for answer, score in pairs if score == _UNREADABLE)


async def _write(attempt: Attempt, target: Path, answers: Set[str]) -> None:
    async def fill(folder: Path) -> None:
        (folder / _ANSWERS).write_text(json.dumps(sorted(answers)))

    await write_whole(target, fill, attempt=attempt.number)


async def _leave_out(
    attempt: Attempt, field: str, path: Path, tasks: tuple[Task, ...], unreadable: Set[str]
) -> tuple[Task, ...]:
    readable = tuple(task for task in tasks if task.answer not in unreadable)
    num_unreadable = len(tasks) - len(readable)
    if not num_unreadable:
        return readable
    places = await asyncio.to_thread(
        _first_places, path, unreadable, min(num_unreadable, _MAX_NAMED)
    )
    message = (
        f"{field}: graders cannot read {num_unreadable} of {len(tasks)} answers: "
        f"{', '.join(places)}"
    )
    if not readable:
        raise JobFault(
            f"{message}; write answers as numbers, words or LaTeX expressions, or use another "
            "verifier than math_answer"
        )
    await attempt.warn(f"unreadable:{field}", f"{message}; their tasks are left out")
    return readable


def _first_places(path: Path, unreadable: Set[str], count: int) -> list[str]:
    with path.open("rb") as file:
        places = (
            f"line {line.number} ({line.task.answer[:100]!r})"
            for line in parse_lines(raw_lines(file))
            if line.task and line.task.answer and line.task.answer in unreadable
        )
        return list(islice(places, count))
