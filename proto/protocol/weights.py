"""Weights folders, which carry new weights from the learner to the rollouts.

The learner fills a temporary folder, adds a manifest with a digest per file, and renames the
folder, so a folder with its final name is complete. The announcement has the manifest's digest.
Readers verify a folder before they load it. Checkpoints have the same manifest.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import TypeAdapter

MANIFEST = "manifest.json"
_OTHER_WEIGHTS = (".bin", ".gguf", ".pt", ".pth", "consolidated.safetensors")
UNFINISHED = ".unfinished-"
HASHING_THREADS = 8
_DIGESTS = TypeAdapter(dict[str, str])


class WeightsError(RuntimeError):
    """A weights folder differs from its announcement."""


class WeightsGone(WeightsError):
    """The folder was removed; newer weights have replaced it."""


def version_folder(job_id: str, attempt: int, number: int) -> str:
    return f"{job_id}/{attempt}.{number}"


def link_folder(job_id: str, attempt: int, number: int) -> str:
    """The folder of the delta from one version to the next: see `deltas`."""
    return f"{job_id}/{attempt}.{number}.link"


def base_folder(job_id: str, attempt: int) -> str:
    """The folder of the base model of an attempt's adapters."""
    return f"{job_id}/{attempt}.base"


def write(root: Path, folder: str, fill: Callable[[Path], None]) -> str:
    """Publish the files that ``fill`` writes atomically; return the folder's digest.

    An existing folder, which was never announced, is replaced.
    """
    target = root / folder
    temporary = target.with_name(f"{UNFINISHED}{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    fill(temporary)
    digest = seal(temporary)
    sync_tree(temporary)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    sync_folder(target.parent)
    return digest


def copy(source: Path, target: Path, *, follow_links: bool = False) -> None:
    """Copy the regular files of a folder, as hard links if possible.

    The manifest is left out, and weights in formats that Weir never reads.
    """
    target.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(source):
        is_wanted = entry.name != MANIFEST and not entry.name.endswith(_OTHER_WEIGHTS)
        if is_wanted and entry.is_file(follow_symlinks=follow_links):
            file = os.path.realpath(entry.path)
            try:
                os.link(file, target / entry.name)
            except OSError:  # another disk, or no support for links
                shutil.copy2(file, target / entry.name)


def seal(folder: Path) -> str:
    """Add the manifest, with a digest per file of the tree; return the manifest's digest."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    manifest = _file_digests(folder, sorted(names))
    content = json.dumps(manifest, indent=1).encode()
    (folder / MANIFEST).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def verify(path: Path, digest: str | None = None) -> None:
    """Check each file of a sealed folder; without ``digest`` trust the manifest.

    Raises:
        WeightsGone: if the folder or a file was removed.
        WeightsError: if a file differs from the manifest, or the manifest from ``digest``.
    """
    try:
        content = (path / MANIFEST).read_bytes()
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            raise WeightsError(f"{path}: the manifest is not the one that was announced")
        manifest = _parse_manifest(path / MANIFEST, content)
        for name, file_digest in _file_digests(path, manifest).items():
            if file_digest != manifest[name]:
                raise WeightsError(f"{path / name}: damaged; its digest is not the manifest's")
    except FileNotFoundError as error:
        raise WeightsGone(f"{error.filename}: gone") from error
    except IsADirectoryError as error:
        raise WeightsError(f"{error.filename}: damaged; it is a folder") from error


def _parse_manifest(path: Path, content: bytes) -> dict[str, str]:
    """Read a non-empty manifest of files below the folder: digests by name."""
    with suppress(ValueError):
        manifest = _DIGESTS.validate_json(content)
        if manifest and all(map(_is_below, manifest)):
            return manifest
    raise WeightsError(f"{path}: damaged; it is no manifest")


def _is_below(name: str) -> bool:
    path = Path(name)
    return name.isprintable() and not path.is_absolute() and ".." not in path.parts


@contextmanager
def leased(folder: Path, lock: int = fcntl.LOCK_SH) -> Generator[None]:
    """Lock a folder against removal and new weights; raise `WeightsGone` if it is being replaced.

    A disk without locks grants every lease.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError as error:
        raise WeightsGone(f"{folder}: gone") from error
    try:
        try:
            fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WeightsGone(f"{folder}: newer weights take its place") from error
        except OSError:
            pass  # a shared disk without locks
        yield
    finally:
        os.close(descriptor)


def retain(root: Path, job_id: str, attempt: int, keep: Iterable[str]) -> None:
    """Remove the folders of attempts up to this one, finished or not, except for ``keep``.

    A leased folder stays until a later call.
    """
    names = {Path(folder).name for folder in keep}
    job_folder = root / job_id
    for path in job_folder.iterdir() if job_folder.is_dir() else ():
        number = re.search(r"\d+", path.name)
        if path.name not in names and number is not None and int(number[0]) <= attempt:
            with suppress(WeightsGone), leased(path, fcntl.LOCK_EX):
                shutil.rmtree(path, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Sync a tree to disk, except for the name of the folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)


def sync_folder(path: Path) -> None:
    """Sync renames within a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    names = list(names)
    with ThreadPoolExecutor(HASHING_THREADS) as threads:
        paths = (folder / name for name in names)
        return dict(zip(names, threads.map(_file_digest, paths), strict=True))


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
