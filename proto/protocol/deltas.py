"""Deltas: what has changed from one version of a model's folder to the next.

A link is a folder with a file for each of the version's own: the file itself, or, under its name
and ``.delta``, the words of 16 bits that differ from those of the version before: how far each is
from the one before it, and then what they are. Applied in turn to an empty folder, the links of a
chain make its last version. Whoever applies them verifies that.
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
_FARTHEST = 2**16 - 1  # from one word that is told to the next, whether it has changed or not
_THREADS = 4
Words = NDArray[np.uint16]


def write_link(version: Path, before: Path | None, target: Path) -> int:
    """Write a link from one version to the next, or a first one; returns its bytes."""
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
    """Make of the version in a folder the one that the last of its next links leads to.

    Raises:
        WeightsGone: if a link has been removed.
        WeightsError: if a link cannot be read, or does not fit the folder.
    """
    try:
        with ThreadPoolExecutor(_THREADS) as threads:
            for link in links:
                list(threads.map(partial(_apply_file, folder=folder), link.iterdir()))
    except FileNotFoundError as error:
        is_of_link = Path(error.filename).parent != folder
        raise (WeightsGone if is_of_link else WeightsError)(f"{error.filename}: gone") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise WeightsError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise WeightsError(f"{folder}: what has changed does not fit: {error}") from error


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
    """(distances, values) of the words that have changed; None where all of them take less room."""
    size = after.stat().st_size
    if size % 2 or before.stat().st_size != size:
        return None
    old = _words(before)
    new = _words(after)
    changed = old != new
    changed[::_FARTHEST] = True
    if 2 * np.count_nonzero(changed) >= new.size:
        return None
    places = np.flatnonzero(changed)
    return np.diff(places, prepend=0).astype(np.uint16), new[places]


def _apply_file(path: Path, *, folder: Path) -> None:
    if path.suffix != _DELTA:
        shutil.copyfile(path, folder / path.name)
        return
    distances, values = np.fromfile(path, np.uint16).reshape(2, -1)
    _words(folder / path.stem, "r+")[np.cumsum(distances, dtype=np.int64)] = values


def _words(path: Path, mode: str = "r") -> Words:
    return np.memmap(path, dtype=np.uint16, mode=mode)  # type: ignore[call-overload]
