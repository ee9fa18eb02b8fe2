"""The log: every graded group that was taken in, on disk beside the checkpoints.

It is the write-ahead log of training: a group is fsynced here before it leaves the exchange, so a
new attempt finds here whatever the last one had taken in. Segments hold packed frames of
GradedGroup, and a commit mark after each append. Each attempt writes segments of its own, so a
superseded learner damages nothing. What no checkpoint needs any more goes; for people there is the
sample store (`services.learner.durable.sample_store`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from protocol.frames import Fields, FrameError, decode, mark, pack, unpack_all
from protocol.messages import GradedGroup
from protocol.weights import sync_folder

log = logging.getLogger(__name__)


class GroupLog:
    """The log of one job, as one attempt writes it."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self.folder = folder
        self.attempt = attempt
        self._file: BinaryIO | None = None
        self._sequence = 0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def segment(self) -> str:
        """The name of the segment that the next group goes to; names sort in writing order."""
        return f"{self.attempt:06d}-{self._sequence:06d}.segment"

    def append(self, groups: Sequence[Fields]) -> None:
        """Append groups; they survive a crash once this returns.

        Raises:
            OSError: if they could not be written; the next append goes to another segment.
        """
        file = self._open()
        end = file.tell()
        try:
            if end == 0:  # with no mark before its first record it would count as without marks
                _write_through(file, [mark(0)])
                sync_folder(self.folder)
            _write_through(file, map(pack, groups))
            # Not before the records are on disk: a crash may keep a later write and lose this one.
            file.write(mark(file.tell()))
            file.flush()
        except OSError:
            self._take_back(file, end)
            raise

    def roll(self) -> None:
        """Begin a new segment."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._sequence += 1

    def _open(self) -> BinaryIO:
        if self._file is None:
            # One may be there: a Redis that lost its last moments gives an attempt's number again.
            while (self.folder / self.segment).exists():
                self._sequence += 1
            self._file = (self.folder / self.segment).open("xb")
        return self._file

    def _take_back(self, file: BinaryIO, end: int) -> None:
        """Leave the segment as it was, so that a full disk has room for the next append."""
        self._file = None
        with suppress(OSError):
            file.close()  # even when it cannot write what is still buffered
        with suppress(OSError):
            os.truncate(file.name, end)
            if end == 0:
                os.unlink(file.name)


def read_log(folder: Path, first_segment: str = "") -> Iterator[tuple[str, GradedGroup]]:
    """Every group logged in ``first_segment`` or later, each with the name of its segment.

    Raises:
        FrameError: if a segment is damaged; a torn end, which was never acknowledged, is not.
    """
    for path in sorted(folder.glob("*.segment")):
        if path.name >= first_segment:
            for fields in _read_segment(path):
                yield path.name, decode(GradedGroup, fields)


def retain(folder: Path, first_needed: str) -> None:
    """Delete the segments before the first one that is needed."""
    for path in folder.glob("*.segment"):
        if path.name < first_needed:
            path.unlink()


def _write_through(file: BinaryIO, parts: Iterable[bytes]) -> None:
    file.writelines(parts)
    file.flush()
    os.fsync(file.fileno())


def _read_segment(path: Path) -> Iterator[Fields]:
    with path.open("rb") as segment:
        try:
            yield from unpack_all(segment)
        except FrameError as error:
            remedy = "move the file away, and its groups are asked for again"
            raise FrameError(f"{path}: {error}; {remedy}") from error
        if (end := segment.tell()) < os.fstat(segment.fileno()).st_size:
            log.warning("torn end of a segment left out", extra={"path": str(path), "byte": end})
