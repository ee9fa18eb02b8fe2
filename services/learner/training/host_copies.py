"""HostCopies: what a rank saves or is to remember is copied on its host, while training goes on."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psutil
from torch import Tensor

_SHARE = 0.8  # of the memory that is left
_CGROUP = Path("/sys/fs/cgroup")
Save = Callable[[Any, str], None]


class HostCopies:
    """Copies of what is to be saved; what the host has no room for is written at once."""

    def __init__(self) -> None:
        # All ranks of a host look before any of them copies: DeepSpeed has a barrier between.
        self._room = _SHARE * _left_on_host() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._files: list[tuple[Save, Any, str]] = []

    def instead_of(self, save: Save) -> Save:
        """What takes the place of a function that writes a state to a path."""

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


class HeldWeights:
    """A copy of weights as they were, to be asked when training has gone on."""

    def __init__(self, weights: Callable[[], list[Tensor]]) -> None:
        self._weights = weights
        self._copies: list[Tensor] = []

    def hold(self) -> None:
        self._copies = [weight.to("cpu", copy=True) for weight in self._weights()]

    def let_go(self) -> None:
        self._copies = []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for weight, kept in zip(self._weights(), self._copies, strict=True):
            now = weight.to("cpu", copy=True)
            weight.copy_(kept)
            kept.copy_(now)


def _copied(value: Any, tensors: dict[Any, Tensor]) -> Any:
    """A copy on the host; tensors that are the same stay the same."""
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


def _left_on_host() -> int:
    """Bytes of memory that this machine, or this container, has left."""
    left = psutil.virtual_memory().available
    try:
        most = int((_CGROUP / "memory.max").read_text())
        return min(left, most - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # another kind of groups, or no limit
        return left
