"""The folders of jobs that are deleted: put aside by one rename, then removed."""

from __future__ import annotations

import shutil
from pathlib import Path

_ASIDE = ".deleted-"
COPIES = "base"  # of the models that a job starts from: all that its submission leaves


def holds_work(folder: Path) -> bool:
    """Whether a job has left more in its folder than its submission did."""
    return folder.is_dir() and any(path.name != COPIES for path in folder.iterdir())


def put_aside(folder: Path) -> Path:
    """Take a job's folder out of sight, if there is one; returns where it is to be removed."""
    aside = folder.with_name(_ASIDE + folder.name)
    if folder.exists():
        remove(aside)
        folder.rename(aside)
    return aside


def remove(aside: Path) -> None:
    """Remove what was put aside, as far as that is possible."""
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(jobs: Path) -> None:
    """Remove what a gateway left that ended before it had removed it."""
    for aside in jobs.glob(f"{_ASIDE}*"):
        remove(aside)
