"""Copies on the host: states that are written, and weights that are kept, during training."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psutil
from torch import Tensor

_FREE_SHARE = 0.8  # of the free memory that copies may use
_CGROUP = Path("/sys/fs/cgroup")
Save = Callable[[Any, str], None]


class HostCopies:
    """Copies of states to write; a state without room on the host is written at once."""

    def __init__(self) -> None:
        # A barrier of DeepSpeed follows, so all ranks of a host measure before any of them copies.
        self._room = _FREE_SHARE * _free_bytes() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._files: list[tuple[Save, Any, str]] = []

    def capture(self, save: Save) -> Save:
        """Return a function that keeps a copy of the state instead of writing it to a path."""

        def keep(state_dict: Any, path: str) -> None:
            size = _num_bytes(state_dict)
            if size > self._room:
                save(state_dict, path)
                return
            self._room -= size
            self._files.append((save, _copied(state_dict, {}), path))

        return keep

    def write(self) -> None:
        while self._files:
            save, state, path = self._files.pop(0)
            save(state, path)


class WeightSnapshot:
    """A copy of earlier weights, to compute with them while training continues."""

    def __init__(self, weights: Callable[[], list[Tensor]]) -> None:
        self._weights = weights
        self._copies: list[Tensor] = []

    def take(self) -> None:
        self._copies = [weight.to("cpu", copy=True) for weight in self._weights()]

    def drop(self) -> None:
        self._copies = []

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for weight, snapshot in zip(self._weights(), self._copies, strict=True):
            current = weight.to("cpu", copy=True)
            weight.copy_(snapshot)
            snapshot.copy_(current)


def _copied(value: Any, tensors: dict[Any, Tensor]) -> Any:
    """Copy to the host; tensors that share memory stay shared."""
    if isinstance(value, Tensor):
        identity = (value.data_ptr(), value.shape, value.stride(), value.dtype, value.device)
        if identity not in tensors or not value.numel():
            tensors[identity] = value.detach().to("cpu", copy=True)
        return tensors[identity]
    if type(value) in {list, tuple}:
        return type(value)(_copied(item, tensors) for item in value)
    if isinstance(value, dict):
        same = copy.copy(cast("dict[Any, Any]", value))
        same.update({name: _copied(item, tensors) for name, item in same.items()})
        return same
    return copy.deepcopy(value)


def _num_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(map(_num_bytes, cast("Mapping[Any, Any]", value).values()))
    if isinstance(value, list | tuple):
        return sum(map(_num_bytes, cast("list[Any]", value)))
    return 0


def _free_bytes() -> int:
    """Return the free memory of this machine or container."""
    available = psutil.virtual_memory().available
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        return min(available, limit - used)
    except (OSError, ValueError):  # another version of cgroups, or no limit
        return available
