"""The index of a job's sample store: read once, and grown with the segments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from protocol.frames import FrameError
from protocol.samples import SUFFIX, SampledGroup, SampleFacts, read_facts, read_group

from services.gateway.errors import Problem, not_found
from services.gateway.samples.catalog import Catalog, Group, catalog_of, joined

_PEEK_BYTES = 4096  # facts are small, and what lies between them is not read


@dataclass
class Index:
    """A job's samples. Its methods read files, and may be called from any thread."""

    folder: Path
    _segments: dict[str, _Segment] = field(default_factory=dict)
    _catalog: Catalog = field(default_factory=Catalog)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def catalog(self) -> Catalog:
        """All samples that the store holds now."""
        with self._turn:
            names = sorted(path.name for path in self.folder.glob(f"*{SUFFIX}"))
            known = {name: self._segments.get(name) or _Segment(name) for name in names}
            grown = [segment.grow(self.folder) for segment in known.values()]
            if any(grown) or known.keys() != self._segments.keys():
                self._catalog = joined([segment.catalog for segment in known.values()])
            self._segments = known
            return self._catalog

    def read(self, group: Group) -> SampledGroup:
        """Everything about a group.

        Raises:
            FileNotFoundError: if it has gone since it was listed.
            FrameError: if it is damaged.
        """
        with (self.folder / group.segment).open("rb") as segment:
            segment.seek(group.begin)
            return read_group(segment)

    def find(self, key: str) -> tuple[Group, SampledGroup]:
        """The group of this key.

        Raises:
            Problem: 404 if there is none, 500 if it is damaged.
        """
        group = self.catalog().by_key.get(key)
        if group is None:
            raise not_found("sample", key)
        try:
            return group, self.read(group)
        except FileNotFoundError as error:
            raise not_found("sample", key) from error
        except FrameError as error:
            message = f"sample {key!r} is damaged: {group.segment}: {error}"
            raise Problem(500, message, param="key", code="damaged") from error


@dataclass
class _Segment:
    name: str
    catalog: Catalog = field(default_factory=Catalog)
    place: int = 0  # what is before it has been read
    size: int = 0  # when it was last read

    def grow(self, folder: Path) -> bool:
        """Read what is new; returns whether anything is."""
        path = folder / self.name
        try:
            size = path.stat().st_size
            if size == self.size:
                return False
            found = catalog_of(self.name, self._read(path))
        except FileNotFoundError:
            return False  # it has just gone, and the next look will not see it
        self.size = size
        if found.groups:
            self.catalog = joined([self.catalog, found])
        return bool(found.groups)

    def _read(self, path: Path) -> Iterator[tuple[int, SampleFacts]]:
        with path.open("rb", buffering=_PEEK_BYTES) as segment:
            segment.seek(self.place)
            for record in read_facts(segment):
                self.place = segment.tell()
                yield record
