"""The checkpoints of a job, on the disk: which there are, and what their steps told."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = re.compile(r"step-([0-9]{1,9})")
_ID = re.compile(r"ftckpt-(ftjob-[0-9a-f]{24})-(0|[1-9][0-9]{0,8})")
_OPENAI_NAMES = {"loss": "train_loss"}


@dataclass(frozen=True)
class Checkpoint:
    job_id: str
    step: int
    folder: Path
    created_at: int = 0  # in seconds since 1970

    @property
    def id(self) -> str:
        """What names it in the API, also as the model that a job starts from."""
        return f"ftckpt-{self.job_id}-{self.step}"

    @property
    def model(self) -> Path:
        return self.folder / "model"


def kept_checkpoints(job_dir: Path) -> list[Checkpoint]:
    """The checkpoints that the job of a folder has kept, newest first."""
    kept: list[Checkpoint] = []
    with suppress(FileNotFoundError), os.scandir(job_dir / "checkpoints") as entries:
        for entry in entries:
            if named := _FOLDER.fullmatch(entry.name):
                with suppress(FileNotFoundError):  # a newer one may just have taken its place
                    folder, created_at = Path(entry.path), int(entry.stat().st_mtime)
                    kept.append(Checkpoint(job_dir.name, int(named[1]), folder, created_at))
    return sorted(kept, key=lambda checkpoint: checkpoint.step, reverse=True)


def checkpoint_of(checkpoint_id: str, jobs_dir: Path) -> Checkpoint | None:
    """The checkpoint that an id names, whether it is still there or not; None if it is no id."""
    named = _ID.fullmatch(checkpoint_id)
    if named is None:
        return None
    job_dir, step = jobs_dir / named[1], int(named[2])
    return Checkpoint(job_dir.name, step, job_dir / "checkpoints" / f"step-{step:06d}")


def checkpoint_object(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint in OpenAI's shape, with what its step told as far as it was kept."""
    return {
        "id": checkpoint.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": checkpoint.created_at,
        "fine_tuned_model_checkpoint": checkpoint.id,
        "fine_tuning_job_id": checkpoint.job_id,
        "step_number": checkpoint.step,
        "metrics": {**_metrics(checkpoint.folder), "step": checkpoint.step},
    }


def _metrics(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / "state.json").read_bytes())
        kept: dict[str, Any] = dict(state.get("metrics", {}))
    except (OSError, ValueError, TypeError, AttributeError):  # the learner tells of damage
        return {}
    return {_OPENAI_NAMES.get(name, name): value for name, value in kept.items()}
