"""Deltas between two versions of a model's folder.

A link is a folder with one file per file of the version: a copy, or a delta with the suffix
``.delta``. A delta lists the 16-bit words that differ from the previous version: the distances
between them, then their values. All links of a chain, applied in order to an empty folder, yield
the last version. The caller verifies the result.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.weights import UNFINISHED, WeightsError, WeightsGone, sync_folder, sync_tree

_DELTA = ".delta"
_MAX_DISTANCE = 2**16 - 1  # between listed words; unchanged words fill longer gaps
_THREADS = 4
Words = NDArray[np.uint16]


def write_link(version: Path, before: Path | None, target: Path) -> int:
    """Write a link from one version to the next, or the first link; return its size in bytes."""
    unfinished = target.with_name(f"{UNFINISHED}{target.name}")
    for leftover in (unfinished, target):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with ThreadPoolExecutor(_THREADS) as threads:
        write = partial(_write_file, before=before, target=unfinished)
        size = sum(threads.map(write, version.iterdir()))
    sync_tree(unfinished)
    unfinished.rename(target)
    sync_folder(target.parent)
    return size


def apply_links(links: Iterable[Path], folder: Path) -> None:
    """Update the version in a folder by the links that follow it.

    Raises:
        WeightsGone: if a link has been removed.
        WeightsError: if a link cannot be read, or does not fit the folder.
    """
    try:
        with ThreadPoolExecutor(_THREADS) as threads:
            for link in links:
                list(threads.map(partial(_apply_file, folder=folder), link.iterdir()))
    except FileNotFoundError as error:
        is_link_gone = Path(error.filename).parent != folder
        kind = WeightsGone if is_link_gone else WeightsError
        raise kind(f"{error.filename}: gone") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise WeightsError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise WeightsError(f"{folder}: a delta does not fit: {error}") from error


def _write_file(path: Path, *, before: Path | None, target: Path) -> int:
    change = None
    if before is not None and path.suffix == ".safetensors":
        change = _difference(before / path.name, path)
    if change is None:
        shutil.copyfile(path, target / path.name)
        return path.stat().st_size
    with (target / f"{path.name}{_DELTA}").open("wb") as file:
        for words in change:
            file.write(words.data)
        return file.tell()


def _difference(before: Path, after: Path) -> tuple[Words, Words] | None:
    """Return the distances and values of changed words; None if the whole file is smaller."""
    size = after.stat().st_size
    if size % 2 or before.stat().st_size != size:
        return None
    old = _words(before)
    new = _words(after)
    changed = old != new
    changed[::_MAX_DISTANCE] = True
    if 2 * np.count_nonzero(changed) >= new.size:
        return None
    positions = np.flatnonzero(changed)
    return np.diff(positions, prepend=0).astype(np.uint16), new[positions]


def _apply_file(path: Path, *, folder: Path) -> None:
    if path.suffix != _DELTA:
        shutil.copyfile(path, folder / path.name)
        return
    distances, values = np.fromfile(path, np.uint16).reshape(2, -1)
    _words(folder / path.stem, "r+")[np.cumsum(distances, dtype=np.int64)] = values


def _words(path: Path, mode: str = "r") -> Words:
    return np.memmap(path, dtype=np.uint16, mode=mode)  # type: ignore[call-overload]
