"""``weir data profile``: how often a model solves each task, measured by jobs of a stack.

A job has up to 1,000 tasks. Its key is made of all that it measures, so a repeated command finds
the jobs of the first one, and waits for them or reads their results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from protocol.profiles import TaskProfile
from protocol.recipe_files import load_tables
from protocol.tasks import TaskFileError, parse_lines, raw_lines

from weir.client import WeirClient, WeirError
from weir.stack import connected, find_stack
from weir.suite import build_body, resolve_model
from weir.views import find_evaluations, say

TASKS_PER_JOB = 1000
Fields = dict[str, Any]


def read_tasks_with_ids(path: Path) -> list[Fields]:
    """Read the fields of each line, with the task's id.

    Raises:
        TaskFileError: if a line has a problem.
    """
    tasks: list[Fields] = []
    with path.open("rb") as file:
        for line in parse_lines(raw_lines(file)):
            if line.task is None or line.problems:
                raise TaskFileError([f"line {line.number}: {text}" for text in line.problems])
            tasks.append({**json.loads(line.text), "id": line.task.id})
    return tasks


def measure(
    tasks: Sequence[Fields], model: str, samples: int, recipe: Path | None
) -> Iterator[TaskProfile]:
    """Yield the profiles of tasks in order; those without a graded response are left out.

    Raises:
        WeirError: if a job ends without a result.
    """
    settings = {} if recipe is None else load_tables(recipe)
    stack = find_stack()
    with connected(stack) as weir, TemporaryDirectory() as folder:
        name = resolve_model(weir, stack, model)
        file = Path(folder, "profile.jsonl")
        remaining = iter(tasks)
        while chunk := list(islice(remaining, TASKS_PER_JOB)):
            write_lines(file, chunk)
            tables = dict(settings)
            tables["name"] = "profile"
            tables["tasks"] = {"held_out": str(file)}
            tables["evaluation"] = {"samples": samples}
            body = build_body(weir, tables)
            body["model"] = name
            result = _await_result(weir, body)
            yield from _order(chunk, result)


def write_lines(path: Path, objects: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of JSON Lines, whole or not at all."""
    unfinished = path.with_name(f".unfinished-{path.name}")
    with unfinished.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for value in objects:
            file.write(f"{json.dumps(value, ensure_ascii=False)}\n")
    unfinished.replace(path)


def _await_result(weir: WeirClient, body: Fields) -> Fields:
    """Return the result of the job with this body, which an earlier command may have submitted."""
    content = json.dumps(body, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    job = weir.submit(body, key=f"profile-{digest}")
    job_id = job["id"]
    say(f"{job_id}: {job['status']}")
    if job["status"] in {"failed", "paused"}:
        weir.resume(job_id)
    for _ in weir.events(job_id):
        pass
    job = weir.job(job_id)
    if job["status"] != "succeeded":
        reason = f": {job['error']['message']}" if job["error"] else ""
        remedy = f"`weir delete {job_id}`, then run this again"
        raise WeirError(f"{job_id} {job['status']}{reason}; {remedy}")
    (result,) = find_evaluations(weir.past_events(job_id))
    return dict(result)


def _order(tasks: Sequence[Fields], result: Mapping[str, Any]) -> Iterator[TaskProfile]:
    for task in tasks:
        counts = result["per_task"].get(task["id"])
        if counts is not None:
            correct, graded, mean_length, truncated = counts
            pass_rate = correct / graded
            yield TaskProfile(task["id"], pass_rate, int(graded), mean_length, truncated)


def add_pass_rates(tasks: Iterable[Fields], profiles: Iterable[TaskProfile]) -> Iterator[Fields]:
    """Yield the tasks with ``metadata.pass_rate``, where a profile has it."""
    rates = {profile.id: profile.pass_rate for profile in profiles}
    for task in tasks:
        rate = rates.get(task["id"])
        if rate is None:
            yield task
            continue
        metadata = task.get("metadata") or {}
        yield {**task, "metadata": {**metadata, "pass_rate": rate}}
