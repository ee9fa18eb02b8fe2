"""A file that arrives in pieces, and may be interrupted between any two of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path


@dataclass(frozen=True)
class PartFile:
    """``target`` while it arrives: it is ``target.part`` until it is whole.

    What is on the disk bears the time of the original's last change. Pieces of another original are
    known by their other time, also after the process that wrote them was killed: an interrupted
    write leaves a time that fits none.
    """

    target: Path
    size: int
    modified_us: int

    @property
    def last_modified(self) -> str:
        """The original's last change, as HTTP writes it."""
        return formatdate(self.modified_us / 1e6, usegmt=True)

    @property
    def is_complete(self) -> bool:
        """If the target is here, whole, and of this original."""
        return self._bytes_in(self.target) == self.size

    @property
    def here(self) -> int:
        """Bytes that have arrived of this original."""
        found = self._bytes_in(self._part) or 0
        return found if found <= self.size else 0

    def write(self, chunks: Iterable[bytes], start: int) -> Iterator[int]:
        """Write from byte ``start`` on; tells after each chunk how many bytes are here."""
        with self._part.open("r+b" if start else "wb", buffering=0) as out:
            out.seek(start)
            for chunk in chunks:
                try:
                    while chunk:  # a disk that is nearly full takes less than it is given
                        chunk = chunk[out.write(chunk) :]
                finally:
                    os.utime(out.fileno(), ns=self._times)
                yield out.tell()

    def finish(self) -> None:
        """Put the whole file in the target's place."""
        with self._part.open("ab") as out:
            os.fsync(out.fileno())
        os.utime(self._part, ns=self._times)
        self._part.replace(self.target)

    @property
    def _part(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def _times(self) -> tuple[int, int]:
        return self.modified_us * 1000, self.modified_us * 1000

    def _bytes_in(self, path: Path) -> int | None:
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return found.st_size if found.st_mtime_ns == self._times[1] else None
