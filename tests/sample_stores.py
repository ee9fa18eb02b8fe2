"""Builders of sample stores on disk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol.messages import Grade, Graded, GradedGroup, Ungradable
from protocol.recipe import Purpose
from protocol.samples import StepFile

from services.learner.durable.sample_rows import Row, build_rows, write_groups
from services.learner.training.scoring import ScoredGroup, Scoring
from tests.builders import a_failed_group, a_graded_group, a_group, a_recipe, a_request, a_task

SCORING = Scoring.of(a_recipe())


def a_response(**changes: Any) -> Row:
    values: Row = {
        "accuracy": 1.0,
        "process": None,
        "reward": 1.0,
        "advantage": 0.5,
        "length": 2,
        "truncated": False,
        "surprise": 0.1,
        "parity_gap": 0.01,
    }
    return values | changes


def a_sample(
    number: int = 0,
    *responses: Row,
    texts: Sequence[str] | None = None,
    purpose: str = "train",
    graded: GradedGroup | None = None,
    **changes: Any,
) -> list[Row]:
    """The rows of a group, of two correct responses unless others are given."""
    responses = responses or (a_response(), a_response())
    if graded is None:
        request = a_request(
            number=number,
            purpose=Purpose(purpose),
            group_size=len(responses),
            task=a_task(id=changes.get("task_id", f"task-{number}")),
        )
        group = a_group(request, [response["length"] for response in responses], texts=texts)
        graded = a_graded_group(group, grades=[_grade(response) for response in responses])
    (rows,) = _rows(graded, number)
    return [row | response | changes for row, response in zip(rows, responses, strict=True)]


def a_failed_sample(number: int, message: str = "four") -> list[Row]:
    (rows,) = _rows(a_failed_group(number, message=message), number)
    return rows


def write_samples(folder: Path, *groups: list[Row]) -> list[Path]:
    """Write a file for each step of an attempt that the groups are of, in the place of it."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = defaultdict[StepFile, list[list[Row]]](list)
    for rows in groups:
        step, purpose, attempt = (rows[0][name] for name in ("step", "purpose", "attempt"))
        steps[StepFile(step, Purpose(purpose), attempt)].append(rows)
    for file, of_step in steps.items():
        write_groups(folder / ".unfinished", of_step)
        (folder / ".unfinished").replace(folder / file.name)
    return [folder / file.name for file in steps]


def _rows(graded: GradedGroup, number: int) -> list[list[Row]]:
    scored = [ScoredGroup(graded, SCORING)]
    created_at = 1_800_000_000.0 + number
    return list(build_rows(scored, {}, attempt=1, step=number, created_at=created_at))


def _grade(response: Row) -> Grade:
    if response["accuracy"] is None:
        return Grade(outcome=Ungradable(reason="the gold answer cannot be read"))
    process = None if response["process"] is None else Graded(value=response["process"])
    return Grade(outcome=Graded(value=response["accuracy"]), process=process)
