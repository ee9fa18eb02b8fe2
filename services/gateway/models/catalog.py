"""Every model that a job can start from, and the files of those that jobs have made.

A file is looked up by its name among the regular files that lie directly in the model's folder. No
path is made of what a request says, so a request reaches nothing else.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from services.chassis.deployment import Deployment
from services.gateway.errors import no_model, not_found
from services.gateway.models.checkpoints import kept_checkpoints
from services.gateway.models.folders import JOB_ID, fault_of, find_folder

_DEEPEST = 4  # folders below a root
_MOST_ENTRIES = 200_000  # below a root, about a second
log = logging.getLogger(__name__)


def all_models(deployment: Deployment) -> list[dict[str, Any]]:
    """The base models by name, then those that jobs have made, newest first; in OpenAI's shape."""
    base = [
        model_object(name, folder, "system")
        for name, folder in sorted(_base_models(deployment).items())
    ]
    made = [
        model_object(name, folder, "weir") for name, folder in _made_models(deployment.jobs_dir)
    ]
    return base + sorted(made, key=lambda model: model["created"], reverse=True)


def model_object(name: str, folder: Path, owner: str) -> dict[str, Any]:
    try:
        created = int(folder.stat().st_mtime)
    except OSError:  # it has just gone
        created = 0
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


def _base_models(deployment: Deployment) -> dict[str, Path]:
    """Model folders below the roots by their names; one with several names has the shortest."""
    names: dict[Path, str] = {}
    for root in deployment.model_roots:
        for folder in _model_folders(root, deployment.data_dir.resolve()):
            name = folder.relative_to(root).as_posix()
            known = names.get(folder)
            if (known is None or len(name) < len(known)) and _is_usable(name, folder, deployment):
                names[folder] = name
    return {name: folder for folder, name in names.items()}


def _is_usable(name: str, folder: Path, deployment: Deployment) -> bool:
    """Whether the name stands for this folder, and can be written, and a job can start from it."""
    try:
        name.encode()
        return find_folder(name, deployment) == folder and fault_of(folder, deployment) is None
    except (OSError, UnicodeEncodeError):
        return False


def _model_folders(root: Path, besides: Path) -> Iterator[Path]:
    """Folders with a config.json, the nearest first; hidden ones and links are not looked into."""
    waiting, left = deque([(root, 0)]), _MOST_ENTRIES
    while waiting and left > 0:
        folder, depth = waiting.popleft()
        try:
            with os.scandir(folder) as entries:
                found = list(islice(entries, left))
        except OSError:
            continue
        left -= len(found)
        if depth and any(entry.name == "config.json" for entry in found):
            yield folder
        elif depth < _DEEPEST:
            waiting += (
                (folder / entry.name, depth + 1)
                for entry in found
                if not entry.name.startswith(".")
                and entry.is_dir(follow_symlinks=False)
                and folder / entry.name != besides
            )
    if left <= 0:
        log.warning("models are left out", extra={"root": str(root), "entries": _MOST_ENTRIES})


def _made_models(jobs_dir: Path) -> Iterator[tuple[str, Path]]:
    try:
        job_ids = list(filter(JOB_ID.fullmatch, os.listdir(jobs_dir)))
    except OSError:
        return
    for job_id in job_ids:
        folders = {job_id: jobs_dir / job_id / "model"}
        folders |= {kept.id: kept.model for kept in kept_checkpoints(jobs_dir / job_id)}
        yield from (
            (name, path) for name, path in folders.items() if (path / "config.json").is_file()
        )


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
    """Where the file ``name`` of a model lies, or 404."""
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
        raise no_model("the model has just gone") from error


def remove_model(job_dir: Path) -> None:
    """Remove the model in a job's folder, from one moment to the next; 404 if there is none."""
    leaving = job_dir / ".deleted-model"
    shutil.rmtree(leaving, ignore_errors=True)  # a process may have been killed at it
    try:
        (job_dir / "model").rename(leaving)
    except FileNotFoundError as error:
        raise not_found("model", job_dir.name) from error
    shutil.rmtree(leaving, ignore_errors=True)
