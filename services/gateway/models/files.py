"""The files of a model that a job has made.

A file is looked up by its name among the regular files that lie directly in the model's folder. No
path is made of what a request says, so a request reaches nothing else.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from protocol.messages import JobRecord, JobState

from services.gateway.errors import Problem, conflict, not_found
from services.gateway.models.checkpoints import Checkpoint
from services.gateway.openai.job_object import status_of


def model_files(folder: Path) -> list[dict[str, Any]]:
    """Name, bytes and last change, in microseconds since 1970, of each file of a model."""
    return [
        {
            "name": name,
            "bytes": found.st_size,
            "modified_us": found.st_mtime_ns // 1000,
        }
        for name, (_, found) in sorted(_entries(folder).items())
    ]


def model_file(folder: Path, name: str) -> Path:
    """Where the file ``name`` of a model lies.

    Raises:
        Problem: 404 if there is no such file.
    """
    entry = _entries(folder).get(name)
    if entry is None:
        raise not_found("file in this model,", name)
    return entry[0]


def _entries(folder: Path) -> dict[str, tuple[Path, os.stat_result]]:
    try:
        with os.scandir(folder) as entries:
            return {
                entry.name: (Path(entry.path), entry.stat(follow_symlinks=False))
                for entry in entries
                if entry.is_file(follow_symlinks=False)
            }
    except FileNotFoundError as error:
        raise _no_model("the model has just gone") from error


def folder_of_checkpoint(checkpoint: Checkpoint) -> Path:
    """Where the model of a checkpoint lies.

    Raises:
        Problem: 404 if there is none.
    """
    if not checkpoint.model.is_dir():
        raise _no_model(
            f"there is no model of checkpoint {checkpoint.id}: a newer one has taken its place, or "
            f"an earlier release wrote it; the checkpoints of {checkpoint.job_id} are listed"
        )
    return checkpoint.model


def folder_of_job(record: JobRecord, job_dir: Path) -> Path:
    """Where the model that a job has trained lies.

    Raises:
        Problem: 404 or 409 saying why the job has no model.
    """
    if not record.state.is_final:
        progress = f"{status_of(record)} at step {record.step} of {record.recipe.training.steps}"
        message = f"job {record.id} is {progress}; it has a model once it has succeeded"
        raise conflict(message, param="id")
    if record.state is not JobState.SUCCEEDED:
        reason = f": {record.error}" if record.error else ""
        raise _no_model(f"job {record.id} {record.state}, so it has no model{reason}")
    named = record.result.get("model")
    if not isinstance(named, str):
        raise _no_model(f"job {record.id} succeeded without writing a model")
    folder = Path(named).resolve()
    if job_dir.resolve() not in folder.parents or not folder.is_dir():
        raise _no_model(
            f"the model of job {record.id} is not in the job's folder, where this gateway looks: "
            "was it deleted, or is WEIR_DATA_DIR another one than the learner's?"
        )
    return folder


def remove_model(job_dir: Path) -> None:
    """Remove the model that the job of a folder has trained; it goes from one moment to the next.

    Raises:
        Problem: 404 if there is none.
    """
    leaving = job_dir / ".deleted-model"
    shutil.rmtree(leaving, ignore_errors=True)  # a process may have been killed at it
    try:
        (job_dir / "model").rename(leaving)
    except FileNotFoundError as error:
        raise not_found("model", job_dir.name) from error
    shutil.rmtree(leaving, ignore_errors=True)


def _no_model(message: str) -> Problem:
    return Problem(404, message, param="id", code="no_model")
