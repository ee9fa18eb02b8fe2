"""Every model that a job can start from, as a list."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from services.chassis.deployment import Deployment
from services.gateway.models.checkpoints import kept_checkpoints
from services.gateway.models.folders import JOB_ID, fault_of, find_folder

_DEEPEST = 4  # folders below a root
_MOST_ENTRIES = 200_000  # below a root, about a second
_OWNERS = {True: "weir", False: "system"}
log = logging.getLogger(__name__)


def all_models(deployment: Deployment) -> list[dict[str, Any]]:
    """The base models by name, then those that jobs have made, newest first; in OpenAI's shape."""
    base = sorted(_base_models(deployment).items())
    made = sorted(_made_models(deployment.jobs_dir), key=lambda found: -_created(found[1]))
    return [model_object(name, folder, deployment) for name, folder in (*base, *made)]


def model_object(name: str, folder: Path, deployment: Deployment) -> dict[str, Any]:
    """A model in OpenAI's shape."""
    is_made = folder.is_relative_to(deployment.jobs_dir.resolve())
    return {
        "id": name,
        "object": "model",
        "created": int(_created(folder)),
        "owned_by": _OWNERS[is_made],
    }


def _created(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # it has just gone
        return 0.0


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
