"""The trained model of a job, file by file.

A file is looked up by its name among the regular files that lie directly in the model's folder. No
path is made of what a request says, so a request reaches nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from protocol.messages import JobRecord, JobState

from services.gateway.errors import Problem, conflict, not_found
from services.gateway.jobs.desk import status_of


def model_files(record: JobRecord, job_dir: Path) -> list[dict[str, Any]]:
    """Name, bytes and last change, in microseconds since 1970, of each file of a job's model.

    Raises:
        Problem: 404 or 409 saying why the job has no model.
    """
    return [
        {
            "name": name,
            "bytes": entry.stat(follow_symlinks=False).st_size,
            "modified_us": entry.stat(follow_symlinks=False).st_mtime_ns // 1000,
        }
        for name, entry in sorted(_entries(record, job_dir).items())
    ]


def model_file(record: JobRecord, job_dir: Path, name: str) -> Path:
    """Where the file ``name`` of a job's model lies.

    Raises:
        Problem: 404 if there is no such file; 404 or 409 saying why the job has no model.
    """
    entry = _entries(record, job_dir).get(name)
    if entry is None:
        raise not_found(f"file in the model of {record.id},", name)
    return Path(entry.path)


def _entries(record: JobRecord, job_dir: Path) -> dict[str, os.DirEntry[str]]:
    with os.scandir(_folder(record, job_dir)) as entries:
        return {entry.name: entry for entry in entries if entry.is_file(follow_symlinks=False)}


def _folder(record: JobRecord, job_dir: Path) -> Path:
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
            f"the model of job {record.id}, {named}, is not a folder below {job_dir}, where this "
            "gateway looks: was it deleted, or is WEIR_DATA_DIR another one than the learner's?"
        )
    return folder


def _no_model(message: str) -> Problem:
    return Problem(404, message, param="id", code="no_model")
