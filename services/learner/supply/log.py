"""The log: every ingested graded group, on disk with the checkpoints.

It is the write-ahead log of training: a group is fsynced here before it leaves the exchange, so a
new attempt finds every group that the last one ingested. Each append is a segment: a file of packed
frames of GradedGroup, renamed when it is whole. Segments that no checkpoint needs are deleted;
people read the sample store (`services.learner.durable.sample_store`).
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from secrets import token_hex

from protocol.frames import Fields, FrameError, decode, pack, unpack_all
from protocol.messages import GradedGroup
from protocol.recipe import Purpose
from protocol.weights import sync_folder

_WHOLE = ".segment"
_PARTIAL = ".partial"


class GroupLog:
    def __init__(self, folder: Path, attempt: int) -> None:
        self.folder = folder
        self._attempt = f"{attempt:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        # A Redis that lost its last writes may assign an attempt's number twice.
        paths = folder.glob(f"{self._attempt}-*{_WHOLE}")
        sequences = [int(path.name.split("-")[1]) for path in paths]
        self._sequence = 1 + max(sequences, default=-1)
        self._token = token_hex(4)  # two processes never write the same segment

    @property
    def segment(self) -> str:
        """The name of the next append's segment; names sort in writing order."""
        return f"{self._attempt}-{self._sequence:06d}-{self._token}{_WHOLE}"

    def append(self, groups: Sequence[Fields]) -> str:
        """Append groups; they survive a crash once this returns the name of their segment.

        Raises:
            OSError: if they could not be written; no part remains.
        """
        target = self.folder / self.segment
        partial = target.with_suffix(_PARTIAL)
        try:
            with partial.open("wb") as file:
                file.writelines(map(pack, groups))
                file.flush()
                os.fsync(file.fileno())
            partial.rename(target)
            sync_folder(self.folder)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self._sequence += 1
        return target.name


def rewrite(folder: Path, segment: str, unwanted: Container[tuple[Purpose, int]]) -> None:
    """Remove groups from a segment atomically."""
    target = folder / segment
    with target.open("rb") as file:
        frames = [
            fields
            for fields in unpack_all(file)
            if _identify(decode(GradedGroup, fields)) not in unwanted
        ]
    partial = target.with_suffix(_PARTIAL)
    with partial.open("wb") as file:
        file.writelines(map(pack, frames))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(target)
    sync_folder(folder)


def _identify(group: GradedGroup) -> tuple[Purpose, int]:
    return group.purpose, group.number


def read_log(folder: Path, first_segment: str = "") -> Iterator[tuple[str, GradedGroup]]:
    """Yield every group in ``first_segment`` and later ones, with the name of its segment.

    Raises:
        FrameError: if a segment is damaged.
    """
    for path in sorted(folder.glob(f"*{_WHOLE}")):
        if path.name < first_segment:
            continue
        try:
            with path.open("rb") as segment:
                for fields in unpack_all(segment):
                    yield path.name, decode(GradedGroup, fields)
        except FrameError as error:
            remedy = "move the file away; its groups are requested again"
            raise FrameError(f"{path}: {error}; {remedy}") from error


def retain(folder: Path, first_needed: str) -> None:
    """Delete older segments than the first needed one, and partial files of a crash."""
    for path in folder.iterdir():
        if path.suffix in {_WHOLE, _PARTIAL} and path.stem < first_needed.removesuffix(_WHOLE):
            path.unlink(missing_ok=True)
