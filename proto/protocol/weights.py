"""A weights folder: how new weights get from the learner to every rollout.

The learner fills a temporary folder, adds a manifest with the digest of each file, and renames the
folder into place, so a folder that has its name is complete. Its own digest, that of the manifest,
travels in the announcement. Whoever loads it verifies it first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"


class WeightsError(RuntimeError):
    """A weights folder does not hold what was announced."""


class WeightsGone(WeightsError):
    """The folder is no longer there: newer weights have taken its place, so take those."""


def version_folder(job_id: str, attempt: int, number: int) -> str:
    """The folder of one version, relative to the weights root."""
    return f"{job_id}/{attempt}.{number}"


def write(root: Path, folder: str, fill: Callable[[Path], None]) -> str:
    """Publish what ``fill`` puts into a folder, all or nothing; returns the folder's digest.

    A folder that is there already (from an announcement that was never made) is replaced.
    """
    target = root / folder
    temporary = target.with_name(f"{_UNFINISHED}{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    fill(temporary)
    manifest = {path.name: _digest_and_sync(path) for path in sorted(temporary.iterdir())}
    content = json.dumps(manifest, indent=1).encode()
    (temporary / _MANIFEST).write_bytes(content)
    _digest_and_sync(temporary / _MANIFEST)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    sync_folder(target.parent)
    return hashlib.sha256(content).hexdigest()


def verify(path: Path, digest: str) -> None:
    """Check a folder, file by file, against the digest that was announced.

    Raises:
        WeightsGone: if the folder, or a file of it, has been removed.
        WeightsError: if anything in it is not what was announced.
    """
    try:
        content = (path / _MANIFEST).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise WeightsError(f"{path}: the manifest is not the one that was announced")
        for name, expected in json.loads(content).items():
            if _file_digest(path / name) != expected:
                raise WeightsError(f"{path / name}: damaged; its digest is not the manifest's")
    except FileNotFoundError as error:
        raise WeightsGone(f"{error.filename}: gone") from error


def retain(root: Path, job_id: str, keep: Iterable[str]) -> None:
    """Remove all versions of a job but those in ``keep``, and whatever was left unfinished."""
    kept = {Path(folder).name for folder in keep}
    job_folder = root / job_id
    for path in job_folder.iterdir() if job_folder.is_dir() else ():
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Make renames within a folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest_and_sync(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _file_digest(path)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
