"""Results that a thread computes ahead of their use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Prefetcher:
    """Computes each result while the one before it is in use; no thread outlives the block.

    An error is raised where the result is read.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetching")
        self._computations: list[Callable[[], Any]] = []
        self._results: list[Future[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def add(self, compute: Callable[[], T]) -> Callable[[], T]:
        """Return a function that reads the result; computations keep the order of their calls."""
        self._computations.append(compute)
        return partial(self._read, len(self._computations) - 1)

    def _read(self, number: int) -> Any:
        for compute in self._computations[len(self._results) : number + 2]:
            self._results.append(self._thread.submit(compute))
        return self._results[number].result()
