"""``weir data profile``: how often a model solves each task, measured by jobs of a stack.

A job has up to 1,000 tasks. Its key is made of all that it measures, so a repeated command finds
the jobs of the first one, and waits for them or reads their results.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from protocol.recipe import load_tables
from protocol.tasks import TaskFileError, parse_lines, raw_lines

from services.data.mapping import RefusedError
from weir.client import WeirClient
from weir.stack import connected, find_stack
from weir.suites import build_body, resolve_model
from weir.views import find_evaluations

TASKS_PER_JOB = 1000
_BARS = 10  # of the histogram
_BAR_CHARS = 40
Fields = dict[str, Any]


@dataclass(frozen=True)
class TaskProfile:
    """The responses of a model to one task; ``pass_rate`` is the share of correct ones."""

    id: str
    pass_rate: float
    graded: int
    mean_length: float | None
    truncated: float | None


def profile_path(tasks: Path) -> Path:
    return tasks.with_suffix(".profile.jsonl")


def read_profile(tasks: Path) -> list[TaskProfile]:
    """Read the profile of a task file; empty if there is none."""
    path = profile_path(tasks)
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [TaskProfile(**json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise RefusedError(f"{path}: damaged; remove it, and profile the tasks again") from error


def read_tasks_with_ids(path: Path) -> list[Fields]:
    """Read the fields of each line, with the task's id.

    Raises:
        TaskFileError: if a line has a problem.
    """
    tasks: list[Fields] = []
    with path.open("rb") as file:
        for line in parse_lines(raw_lines(file)):
            if line.task is None or line.problems:
                problems = [f"line {line.number}: {problem}" for problem in line.problems]
                raise TaskFileError(problems)
            tasks.append({**json.loads(line.text), "id": line.task.id})
    return tasks


def measure(
    tasks: Sequence[Fields], model: str, samples: int, recipe: Path | None
) -> Iterator[TaskProfile]:
    """Yield the profiles of tasks in order; those without a graded response are left out.

    Raises:
        RefusedError: if a job ends without a result.
    """
    stack = find_stack()
    with connected(stack) as weir, TemporaryDirectory() as folder:
        name = resolve_model(weir, stack, model)
        remaining = iter(tasks)
        while chunk := list(islice(remaining, TASKS_PER_JOB)):
            file = Path(folder, "profile.jsonl")
            file.write_text(join_lines(chunk), encoding="utf-8", errors="backslashreplace")
            settings = {} if recipe is None else load_tables(recipe)
            tables = {
                **settings,
                "name": "profile",
                "tasks": {"held_out": str(file)},
                "evaluation": {"samples": samples},
            }
            body = {**build_body(weir, tables), "model": name}
            yield from _order(chunk, _await_result(weir, body))


def join_lines(tasks: Sequence[Fields]) -> str:
    return "".join(f"{json.dumps(task, ensure_ascii=False)}\n" for task in tasks)


def _await_result(weir: WeirClient, body: Fields) -> Fields:
    """Return the result of the job with this body, which an earlier command may have submitted."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    job = weir.submit(body, key=f"profile-{digest}")
    job_id = job["id"]
    print(f"{job_id}: {job['status']}", flush=True)
    if job["status"] in {"failed", "paused"}:
        weir.resume(job_id)
    for _ in weir.events(job_id):
        pass
    job = weir.job(job_id)
    if job["status"] != "succeeded":
        reason = f": {job['error']['message']}" if job["error"] else ""
        remedy = f"`weir delete {job_id}`, then run this again"
        raise RefusedError(f"{job_id} {job['status']}{reason}; {remedy}")
    (result,) = find_evaluations(weir.past_events(job_id))
    return result


def _order(tasks: Sequence[Fields], result: Mapping[str, Any]) -> Iterator[TaskProfile]:
    for task in tasks:
        counts = result["per_task"].get(task["id"])
        if counts is not None:
            correct, graded, mean_length, truncated = counts
            yield TaskProfile(task["id"], correct / graded, int(graded), mean_length, truncated)


def add_pass_rates(tasks: Sequence[Fields], profiles: Sequence[TaskProfile]) -> Iterator[Fields]:
    """Yield the tasks with ``metadata.pass_rate``, where a profile has it."""
    rates = {profile.id: profile.pass_rate for profile in profiles}
    for task in tasks:
        rate = rates.get(task["id"])
        metadata = task.get("metadata") or {}
        yield task if rate is None else {**task, "metadata": {**metadata, "pass_rate": rate}}


def histogram(profiles: Sequence[TaskProfile]) -> Iterator[str]:
    """Yield a line for each tenth of the pass rates, and for 0 and 1, which teach nothing."""
    labels = ["0", *(f"to {place / _BARS:.1f}" for place in range(1, _BARS + 1)), "1"]
    places = (_BARS + 1 if p.pass_rate == 1 else ceil(p.pass_rate * _BARS) for p in profiles)
    counts = Counter(places)
    largest = max(counts.values(), default=1)
    yield "pass rate   tasks"
    for place, label in enumerate(labels):
        count = counts[place]
        yield f"{label:>9} {count:7,} {'█' * round(_BAR_CHARS * count / largest)}".rstrip()
