"""What graders cannot read of a job's tasks: answers are left out, solutions may be refused."""

from __future__ import annotations

import asyncio
import json
import math
import re
import secrets
import time
from collections.abc import Sequence, Set
from itertools import islice
from pathlib import Path

from protocol.exchange import Exchange
from protocol.messages import Graded, JobRecord, Score, Task, Trial, Ungradable
from protocol.rewards import Reward
from protocol.tasks import parse_lines, raw_lines

from services.learner.attempt import Attempt, JobFault, MachineFault
from services.learner.durable.checkpoint import write_whole
from services.learner.supply.evaluator import HeldOut

_PLAIN = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?", re.ASCII)  # every grader reads it
_MAX_SOLUTIONS = 200  # spread over the file; each takes a grader some 10 ms
_MIN_READABLE = 0.5  # below it most right responses would have a process score of 0, or none
_AT_ONCE = 16
_MAX_WAITING = 32
_RESULT_S = 20.0
_PATIENCE_S = 60.0
_MAX_NAMED = 3
_STARVED = Ungradable(reason="starved")
_ANSWERS = "answers.json"
Tasks = tuple[tuple[Task, ...], HeldOut]


async def readable_tasks(
    attempt: Attempt, record: JobRecord, files: Path, tasks: Tasks, patience_s: float = _PATIENCE_S
) -> Tasks:
    """Leave out the tasks whose answers graders cannot read, in every attempt the same.

    The job's first attempt asks graders. A job that has begun without that keeps all its tasks.

    Raises:
        JobFault: if no task of a file is left, or `equation_steps` can judge too few solutions.
        MachineFault: if no grader answers within ``patience_s``.
    """
    train, held_out = tasks
    stored = attempt.folder / "unreadable"
    if not train or (record.started_at is not None and not stored.exists()):
        return tasks
    if stored.exists():
        unreadable = frozenset(json.loads((stored / _ANSWERS).read_text()))
    else:
        trials = _Trials(attempt.exchange, patience_s)
        await _check_solutions(attempt, train, trials)
        every = (*train, *(task for part in held_out.values() for task in part))
        unreadable = await _unreadable_answers(attempt, every, trials)
    recipe = attempt.recipe
    path = files / f"{recipe.tasks.train}.jsonl"
    kept = await _leave_out(attempt, "training_file", path, train, unreadable)
    await attempt.update(unreadable_answers=len(train) - len(kept))
    kept_held_out = {}
    for name, part in held_out.items():
        field = f"recipe.evaluation.others.{name}.held_out" if name else "validation_file"
        path = files / f"{recipe.held_out_files[name]}.jsonl"
        kept_held_out[name] = await _leave_out(attempt, field, path, tuple(part), unreadable)
    if not stored.exists():
        await _write(attempt, stored, unreadable)
    return kept, kept_held_out


class _Trials:
    def __init__(self, exchange: Exchange, patience_s: float) -> None:
        self._exchange = exchange
        self._patience_s = patience_s

    async def run(self, verifier: str, trials: Sequence[tuple[Task, str | None]]) -> list[Score]:
        """Return the score of each text, or without a text, whether the answer can be read."""
        reward = Reward.model_validate({"outcome": verifier})
        scores: list[Score] = []
        for start in range(0, len(trials), _AT_ONCE):
            batch = trials[start : start + _AT_ONCE]
            scores += await asyncio.gather(*(self._score(reward, *each) for each in batch))
        return scores

    async def _score(self, reward: Reward, task: Task, text: str | None) -> Score:
        trial = Trial(id=secrets.token_hex(12), reward=reward, task=task, text=text)
        deadline = time.monotonic() + self._patience_s
        while (left_s := deadline - time.monotonic()) > 0:
            if not await self._exchange.ask_trial(trial, _MAX_WAITING):
                await asyncio.sleep(min(left_s, 1.0))
                continue
            result = await self._exchange.trial_result(trial.id, min(left_s, _RESULT_S))
            if result and result.outcome and result.outcome != _STARVED:
                return result.outcome
            await self._exchange.withdraw_trial(trial)
        raise MachineFault(
            "no grader says whether it can read the tasks' answers and solutions; see that a "
            "grader of this release runs and has time"
        )


async def _check_solutions(attempt: Attempt, train: tuple[Task, ...], trials: _Trials) -> None:
    reward = attempt.recipe.reward
    fields = (("outcome", reward.outcome), ("process", reward.process))
    uses = [(f, c) for f, checks in fields for c in checks if c.verifier == "equation_steps"]
    if not uses:
        return
    solved = [(task, task.solution) for task in train if task.solution]
    sample = solved[:: math.ceil(len(solved) / _MAX_SOLUTIONS) or 1]
    if not sample:
        message = "no task has a solution, so it is not known how many equation_steps can judge"
        await attempt.say("solutions", message)
        return
    scores = await trials.run("equation_steps", sample)
    readable = sum(isinstance(score, Graded) and score.value > 0 for score in scores)
    share = readable / len(sample)
    await attempt.update(readable_solutions=share)
    message = f"equation_steps can judge {readable} of {len(sample)} solutions of training_file"
    needed = [field for field, check in uses if check.if_ungradable == "ungradable"]
    if needed and share < _MIN_READABLE:
        raise JobFault(
            f"recipe.reward.{needed[0]}: {message}, and needs half of them; use model_judge "
            "instead, or tasks whose solutions calculate with numbers"
        )
    await attempt.say("solutions", message)


async def _unreadable_answers(
    attempt: Attempt, tasks: tuple[Task, ...], trials: _Trials
) -> frozenset[str]:
    reward = attempt.recipe.reward
    if not any(c.verifier == "math_answer" for c in (*reward.outcome, *reward.process)):
        return frozenset()
    answers = {t.answer: t for t in tasks if t.answer and not _PLAIN.fullmatch(t.answer)}
    scores = await trials.run("math_answer", [(task, None) for task in answers.values()])
    pairs = zip(answers, scores, strict=True)
    return frozenset(answer for answer, score in pairs if isinstance(score, Ungradable))


async def _write(attempt: Attempt, target: Path, answers: Set[str]) -> None:
    async def fill(folder: Path) -> None:
        (folder / _ANSWERS).write_text(json.dumps(sorted(answers)))

    await write_whole(target, fill, attempt=attempt.number)


async def _leave_out(
    attempt: Attempt, field: str, path: Path, tasks: tuple[Task, ...], unreadable: Set[str]
) -> tuple[Task, ...]:
    kept = tuple(task for task in tasks if task.answer not in unreadable)
    count = len(tasks) - len(kept)
    if not count:
        return kept
    places = await asyncio.to_thread(_first_places, path, unreadable, min(count, _MAX_NAMED))
    message = f"{field}: graders cannot read {count} of {len(tasks)} answers: {', '.join(places)}"
    if not kept:
        raise JobFault(
            f"{message}; write answers as numbers, words or LaTeX expressions, or use another "
            "verifier than math_answer"
        )
    await attempt.say(f"unreadable:{field}", f"{message}; their tasks are left out", level="warn")
    return kept


def _first_places(path: Path, unreadable: Set[str], count: int) -> list[str]:
    with path.open("rb") as file:
        places = (
            f"line {line.number} ({line.task.answer[:100]!r})"
            for line in parse_lines(raw_lines(file))
            if line.task and line.task.answer and line.task.answer in unreadable
        )
        return list(islice(places, count))
