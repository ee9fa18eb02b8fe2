"""A version's folder on this machine, and its shape, which an engine cannot exchange.

The folder is in the memory that the learner has written it to, or a copy.
On another machine than the learner's the copy is made of the links on the shared disk (`deltas`),
of which this process has applied some before.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol import deltas, weights
from protocol.messages import PolicyVersion
from protocol.operations import PROBES, STATE
from protocol.weights import WeightsError, WeightsGone

log = logging.getLogger(__name__)
_COPY = ".copy-"
_MOST_REMOVED = 3  # links in a row, after which this machine is at fault
# Who wrote the folder, and how: the weights mean the same.
_NO_MATTER = {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache"}
_READ_BY_ENGINES = {".json", ".txt", ".model", ".jinja"}  # of tokenizers, templates, generation
_CONFIGS = {"config.json", "adapter_config.json"}  # a folder has one of them
_OTHERS = {*_CONFIGS, weights.MANIFEST, PROBES, STATE}


class Fetcher:
    """Finds the folders of versions; its own copy is in memory, too, and goes with the process."""

    def __init__(self, disk: Path, memory: Path) -> None:
        self.disk = disk
        self.memory = memory
        self._copy: Path | None = None
        self._last_link = ""  # that the copy was made of
        self._is_of_all = False  # rather than of an older copy and the links since
        self._num_removed = 0  # links, since a version was sound

    @contextmanager
    def fetched(self, policy: PolicyVersion) -> Iterator[Path]:
        """The folder of a version, which does not change meanwhile. It has yet to be verified.

        What the body raises tells whether the folder is sound: a copy that is not is made again
        from the first link. If that is how it was made, the link is removed, which has the learner
        write a whole version in its place.

        Raises:
            WeightsGone: if it has been removed.
            WeightsError: if the links do not fit the copy.
        """
        folder = self.memory / policy.folder
        if not policy.links or folder.exists():
            with weights.leased(folder):
                yield folder
            return
        try:
            yield self._bring(policy.links)
            self._num_removed = 0
        except (WeightsError, OSError) as error:
            was_made = self._last_link != ""
            self._last_link = ""
            if type(error) is WeightsError or (isinstance(error, WeightsGone) and was_made):
                self._doubt(policy.links[0])
            raise

    def close(self) -> None:
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)

    def _bring(self, links: tuple[str, ...]) -> Path:
        if self._copy is None:
            self._copy = _own_folder(self.memory)
        last, self._last_link = self._last_link, ""  # until it is whole
        missing = links[links.index(last) + 1 :] if last in links else links
        self._is_of_all = missing == links
        for leftover in self._copy.iterdir() if self._is_of_all else ():
            leftover.unlink()  # a version may have other files
        deltas.apply_links((self.disk / link for link in missing), self._copy)
        self._last_link = links[-1]
        return self._copy

    def _doubt(self, first: str) -> None:
        if self._is_of_all and self._num_removed < _MOST_REMOVED:
            self._num_removed += 1
            log.warning("links are damaged, and are to be written again", extra={"first": first})
            shutil.rmtree(self.disk / first, ignore_errors=True)


def _own_folder(memory: Path) -> Path:
    """A folder that is locked while this process lives; those of processes that were killed go."""
    memory.mkdir(parents=True, exist_ok=True)
    one_at_a_time = _lock(memory)
    for leftover in memory.glob(f"{_COPY}*"):
        with suppress(BlockingIOError):
            os.close(_lock(leftover, fcntl.LOCK_NB))
            shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_COPY, dir=memory))
    _lock(folder)
    os.close(one_at_a_time)
    return folder


def _lock(folder: Path, options: int = 0) -> int:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | options)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(frozen=True)
class ModelShape:
    """Two folders of the same shape can follow each other in one engine."""

    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]  # dimensions, by name
    files: Mapping[str, str]  # the digests of the tokenizer's files and the like, by name

    def differences(self, other: ModelShape) -> list[str]:
        """What another folder has that is not as in this one, each with its place."""
        return [
            f"{place} {name}: {was.get(name)!r} became {now.get(name)!r}"
            for place, was, now in (
                ("config", self.config, other.config),
                ("tensor", self.tensors, other.tensors),
                ("file", self.files, other.files),
            )
            for name in sorted(was.keys() | now.keys())
            if was.get(name) != now.get(name)
        ]


def verified_shape(folder: Path, digest: str) -> ModelShape:
    """The shape of a folder, or WeightsGone, or WeightsError if it is not what was announced."""
    weights.verify(folder, digest)
    try:
        return shape_of(folder)
    except FileNotFoundError as error:
        raise WeightsGone(f"{error.filename}: gone") from error


def shape_of(folder: Path) -> ModelShape:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    configs = [path for path in paths if path.name in _CONFIGS] or [folder / "config.json"]
    config = json.loads(configs[0].read_bytes())
    return ModelShape(
        config={name: value for name, value in config.items() if name not in _NO_MATTER},
        tensors={
            name: dimensions
            for path in paths
            if path.suffix == ".safetensors"
            for name, dimensions in _tensors_in(path).items()
        },
        files={
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in paths
            if path.suffix in _READ_BY_ENGINES
            and path.name not in _OTHERS
            and not path.name.endswith(".index.json")
        },
    )


def _tensors_in(path: Path) -> dict[str, tuple[int, ...]]:
    """A safetensors file begins with the size of its JSON header, 8 bytes, and the header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
