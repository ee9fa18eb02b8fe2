"""The checkpoints of a job on the disk."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = re.compile(r"step-([0-9]{1,9})")
_ID = re.compile(r"ftckpt-(ftjob-[0-9a-f]{24})-(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Checkpoint:
    job_id: str
    step: int
    folder: Path
    created_at: int = 0  # seconds since 1970

    @property
    def id(self) -> str:
        """The name of the checkpoint in the API, also as a model that a job starts from."""
        return f"ftckpt-{self.job_id}-{self.step}"

    @property
    def model(self) -> Path:
        return self.folder / "model"


def list_folders(parent: Path) -> Iterator[tuple[Path, float]]:
    """Yield the folders in a folder, and when each was saved; none if there is no parent.

    A folder that is removed meanwhile is left out, and so are hidden ones.
    """
    with suppress(FileNotFoundError), os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                with suppress(FileNotFoundError):
                    yield Path(entry.path), entry.stat().st_mtime


def list_checkpoints(job_dir: Path) -> list[Checkpoint]:
    """Return the checkpoints in a job's folder, newest first."""
    checkpoints = []
    for folder, saved_at in list_folders(job_dir / "checkpoints"):
        match = _FOLDER.fullmatch(folder.name)
        if match is not None:
            checkpoints.append(Checkpoint(job_dir.name, int(match[1]), folder, int(saved_at)))
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)


def parse_checkpoint_id(checkpoint_id: str, jobs_dir: Path) -> Checkpoint | None:
    """Return the checkpoint of an id, which may be deleted; None if the text is no such id."""
    match = _ID.fullmatch(checkpoint_id)
    if match is None:
        return None
    job_id = match[1]
    step = int(match[2])
    return Checkpoint(job_id, step, jobs_dir / job_id / "checkpoints" / f"step-{step:06d}")


def read_metrics(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the metrics of the checkpoint's step, {} if its state cannot be read."""
    try:
        state = json.loads((checkpoint.folder / "state.json").read_bytes())
        return dict(state.get("metrics", {}))
    except (OSError, ValueError, TypeError, AttributeError):  # the learner reports damage
        return {}
