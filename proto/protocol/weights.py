"""A weights folder: how new weights get from the learner to every rollout.

The learner fills a temporary folder, adds a manifest with the digest of each file, and renames the
folder into place, so a folder that has its name is complete. Its own digest, that of the manifest,
travels in the announcement. Whoever loads it verifies it first. Checkpoints are sealed with the
same manifest.
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
UNFINISHED = ".unfinished-"
_HASHING_THREADS = 8
_DIGESTS = TypeAdapter(dict[str, str])


class WeightsError(RuntimeError):
    """A weights folder does not hold what was announced."""


class WeightsGone(WeightsError):
    """The folder is no longer there: newer weights have taken its place, so take those."""


def version_folder(job_id: str, attempt: int, number: int) -> str:
    return f"{job_id}/{attempt}.{number}"


def link_folder(job_id: str, attempt: int, number: int) -> str:
    """The folder of what has changed from one version to the next: see `deltas`."""
    return f"{job_id}/{attempt}.{number}.link"


def base_folder(job_id: str, attempt: int) -> str:
    """The folder of the model that the adapters of an attempt are for."""
    return f"{job_id}/{attempt}.base"


def write(root: Path, folder: str, fill: Callable[[Path], None]) -> str:
    """Publish what ``fill`` puts into a folder, all or nothing; returns the folder's digest.

    A folder that is there already (from an announcement that was never made) is replaced.
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
    """Copy the regular files of a folder, and perhaps those it links to; hard links where possible.

    Its manifest stays behind, and so do pickled weights, which nobody here reads.
    """
    target.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(source):
        is_wanted = entry.name != MANIFEST and not entry.name.endswith(".bin")
        if is_wanted and entry.is_file(follow_symlinks=follow_links):
            file = os.path.realpath(entry.path)
            try:
                os.link(file, target / entry.name)
            except OSError:  # another disk, or one without links
                shutil.copy2(file, target / entry.name)


def seal(folder: Path) -> str:
    """Add the manifest, with the digest of each file in the folder and below; returns its own."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    manifest = _file_digests(folder, sorted(names))
    content = json.dumps(manifest, indent=1).encode()
    (folder / MANIFEST).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def verify(path: Path, digest: str | None = None) -> None:
    """Check a sealed folder, file by file; without a digest its manifest is taken at its word.

    Raises:
        WeightsGone: if the folder, or a file of it, has been removed.
        WeightsError: if anything in it is not what was sealed, or announced.
    """
    try:
        content = (path / MANIFEST).read_bytes()
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            raise WeightsError(f"{path}: the manifest is not the one that was announced")
        manifest = _parse_manifest(path / MANIFEST, content)
        for name, found in _file_digests(path, manifest).items():
            if found != manifest[name]:
                raise WeightsError(f"{path / name}: damaged; its digest is not the manifest's")
    except FileNotFoundError as error:
        raise WeightsGone(f"{error.filename}: gone") from error
    except IsADirectoryError as error:
        raise WeightsError(f"{error.filename}: damaged; it is a folder") from error


def _parse_manifest(path: Path, content: bytes) -> dict[str, str]:
    """The digests by name, which are those of files below the folder; there is one at least."""
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
    """Within, nobody removes a folder or writes other weights into it; `WeightsGone` if one does.

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
    """Remove what attempts up to this one have published or left unfinished, but for ``keep``.

    What somebody has a lease on is left to a later call.
    """
    kept = {Path(folder).name for folder in keep}
    job_folder = root / job_id
    for path in job_folder.iterdir() if job_folder.is_dir() else ():
        number = re.search(r"\d+", path.name)
        if path.name not in kept and number is not None and int(number[0]) <= attempt:
            with suppress(WeightsGone), leased(path, fcntl.LOCK_EX):
                shutil.rmtree(path, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Make a folder and everything in it survive a power failure, but for its own name."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)


def sync_folder(path: Path) -> None:
    """Make renames within a folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    names = list(names)
    with ThreadPoolExecutor(_HASHING_THREADS) as threads:
        paths = (folder / name for name in names)
        return dict(zip(names, threads.map(_file_digest, paths), strict=True))


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
