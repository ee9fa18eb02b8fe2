"""The log: every graded group that was taken in, on disk beside the checkpoints.

It is the write-ahead log of training: a group is fsynced here before it leaves the exchange, so a
new attempt finds here whatever the last one had taken in. Segments hold packed frames of
GradedGroup. Each attempt writes segments of its own, so a superseded learner damages nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from protocol.frames import Fields, decode, pack, unpack_all
from protocol.messages import GradedGroup
from protocol.weights import sync_folder


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
        """Append groups; they survive a crash once this returns."""
        file = self._open()
        for fields in groups:
            file.write(pack(fields))
        file.flush()
        os.fsync(file.fileno())

    def roll(self) -> None:
        """Begin a new segment."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._sequence += 1

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._file = (self.folder / self.segment).open("xb")
            sync_folder(self.folder)
        return self._file


def read_log(folder: Path, first_segment: str = "") -> Iterator[tuple[str, GradedGroup]]:
    """Every group logged in ``first_segment`` or later, each with the name of its segment."""
    for path in sorted(folder.glob("*.segment")):
        if path.name >= first_segment:
            with path.open("rb") as segment:
                for fields in unpack_all(segment):
                    yield path.name, decode(GradedGroup, fields)
