"""Fetch a version's folder to this machine, and read the shape of its model.

On the learner's machine the folder is in the memory that the learner wrote it to. On another
machine it is a copy. This process builds the copy from the links on the shared disk (`deltas`), and
applies only new links to it.
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
# After this many removed links in a row this machine is at fault.
_MAX_REMOVED = 3
# These fields do not change the meaning of the weights.
_IGNORED_FIELDS = {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache"}
# Suffixes of the files of tokenizers, chat templates and generation settings.
_ENGINE_SUFFIXES = {".json", ".txt", ".model", ".jinja"}
# A folder has one of them.
_CONFIGS = {"config.json", "adapter_config.json"}
_IGNORED_FILES = {*_CONFIGS, weights.MANIFEST, PROBES, STATE}


class Fetcher:
    """Fetches the folders of versions. Its copy is in memory and is removed with the process."""

    def __init__(self, disk: Path, memory: Path) -> None:
        self.disk = disk
        self.memory = memory
        self._copy: Path | None = None
        # The last link that the copy contains.
        self._last_link = ""
        # Whether the copy was built from all links, not from an older copy.
        self._is_rebuilt = False
        # Links removed since the last sound version.
        self._num_removed = 0

    @contextmanager
    def fetched(self, policy: PolicyVersion) -> Iterator[Path]:
        """Yield the folder of a version, not yet verified. It does not change in the body.

        An error of the body shows that the folder is damaged. A damaged copy is built again from
        the first link. If it was already built so, that link is removed, and the learner writes a
        whole version in its place.

        Raises:
            WeightsGone: if the folder has been removed.
            WeightsError: if the links do not fit the copy.
        """
        folder = self.memory / policy.folder
        if not policy.links or folder.exists():
            with weights.leased(folder):
                yield folder
            return
        try:
            yield self._update_copy(policy.links)
            self._num_removed = 0
        except (WeightsError, OSError) as error:
            was_built = self._last_link != ""
            self._last_link = ""
            if type(error) is WeightsError or (isinstance(error, WeightsGone) and was_built):
                self._remove_link(policy.links[0])
            raise

    def close(self) -> None:
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)

    def _update_copy(self, links: tuple[str, ...]) -> Path:
        if self._copy is None:
            self._copy = _create_folder(self.memory)
        last = self._last_link
        # A copy that is not complete has no last link.
        self._last_link = ""
        self._is_rebuilt = last not in links
        if self._is_rebuilt:
            # A version may have other files.
            for path in self._copy.iterdir():
                path.unlink()
            missing = links
        else:
            missing = links[links.index(last) + 1 :]
        deltas.apply_links((self.disk / link for link in missing), self._copy)
        self._last_link = links[-1]
        return self._copy

    def _remove_link(self, first: str) -> None:
        if self._is_rebuilt and self._num_removed < _MAX_REMOVED:
            self._num_removed += 1
            log.warning("links are damaged; the learner rewrites them", extra={"first": first})
            shutil.rmtree(self.disk / first, ignore_errors=True)


def _create_folder(memory: Path) -> Path:
    """Create a folder that this process locks, and remove those of killed processes."""
    memory.mkdir(parents=True, exist_ok=True)
    descriptor = _lock(memory)
    for leftover in memory.glob(f"{_COPY}*"):
        with suppress(BlockingIOError):
            os.close(_lock(leftover, fcntl.LOCK_NB))
            shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_COPY, dir=memory))
    _lock(folder)
    os.close(descriptor)
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
    """The shape of a model folder. One engine can load any weights of the same shape."""

    config: Mapping[str, Any]
    # Dimensions by name.
    tensors: Mapping[str, tuple[int, ...]]
    # Digests of the tokenizer's and similar files by name.
    files: Mapping[str, str]

    def differences(self, other: ModelShape) -> list[str]:
        """Describe how another folder differs from this one, each difference with its place."""
        return [
            f"{place} {name}: {old.get(name)!r} became {new.get(name)!r}"
            for place, old, new in (
                ("config", self.config, other.config),
                ("tensor", self.tensors, other.tensors),
                ("file", self.files, other.files),
            )
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]


def verified_shape(folder: Path, digest: str) -> ModelShape:
    """Return the shape of a folder with the announced digest.

    Raises:
        WeightsGone: if the folder has been removed.
        WeightsError: if it is damaged, or has another digest.
    """
    weights.verify(folder, digest)
    try:
        return read_shape(folder)
    except FileNotFoundError as error:
        raise WeightsGone(f"{error.filename}: gone") from error


def read_shape(folder: Path) -> ModelShape:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    configs = [path for path in paths if path.name in _CONFIGS] or [folder / "config.json"]
    config = json.loads(configs[0].read_bytes())
    return ModelShape(
        config={name: value for name, value in config.items() if name not in _IGNORED_FIELDS},
        tensors={
            name: dimensions
            for path in paths
            if path.suffix == ".safetensors"
            for name, dimensions in _read_dimensions(path).items()
        },
        files={
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in paths
            if path.suffix in _ENGINE_SUFFIXES
            and path.name not in _IGNORED_FILES
            and not path.name.endswith(".index.json")
        },
    )


def _read_dimensions(path: Path) -> dict[str, tuple[int, ...]]:
    """Read a safetensors file's header: its size in 8 bytes, then its JSON."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
