"""What a training step measures, collected over micro-batches and ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from services.learner.algorithms.gae import Moments


class StepMetrics:
    """Sums on this rank, without a synchronization per micro-batch; reduced over ranks once.

    All ranks note the same names in the same order, as they do everything else.
    """

    def __init__(self, device: torch.device, num_tokens: int = 0, copies: int = 1) -> None:
        """``copies`` ranks have the same micro-batches; samples have ``num_tokens`` own in all."""
        self._copies = copies
        self._device = device
        self._num_tokens = num_tokens
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}
        self._shares: dict[str, Tensor] = {}
        self._moments: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}
        self._of_updates: dict[str, list[float]] = {}
        self._of_tokens: dict[str, Tensor] = {}
        self._spans: list[tuple[Any, Any]] = []

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """Count what is computed within towards this rank's seconds.

        On a CPU that is processor time, without waiting for other ranks; on a GPU it is the time of
        its stream, in which under ZeRO-3 ranks wait for each other.
        """
        begin = self._now()
        yield
        self._spans.append((begin, self._now()))

    def _now(self) -> Any:
        if self._device.type == "cpu":
            return time.thread_time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mean(self, **values: Tensor) -> None:
        """Note values whose mean is reported, each [token]."""
        for name, value in values.items():
            self._add(self._sums, name, value.sum())
            self._add(self._counts, name, value.numel())

    def share(self, **values: Tensor) -> None:
        """Note a micro-batch's shares of an update's values; the mean over updates is reported."""
        for name, value in values.items():
            self._add(self._shares, name, value)

    def count(self, **values: Tensor | float) -> None:
        for name, value in values.items():
            self._add(self._sums, name, value)

    def maximum(self, **values: Tensor) -> None:
        """Note values, [token], whose maximum is reported."""
        for name, value in values.items():
            lowest = value.new_full((1,), -math.inf)
            highest = torch.cat([value.detach(), lowest]).max().double()
            self._maxima[name] = torch.maximum(self._maxima.get(name, highest), highest)

    def explained(self, returns: Tensor, values: Tensor) -> None:
        """Note returns and the values that the critic gave, both [token]."""
        for name, value in vars(Moments.of(returns, values.detach())).items():
            self._add(self._moments, name, value)

    def of_update(self, **values: float | None) -> None:
        """Note an update's values, the same on all ranks; the mean over updates is reported."""
        for name, value in values.items():
            if value is not None:
                self._of_updates.setdefault(name, []).append(value)

    def of_tokens(self, places: Tensor, **values: Tensor) -> None:
        """Note a value for each of these places, both [token]; a later one replaces it."""
        for name, value in values.items():
            if name not in self._of_tokens:
                self._of_tokens[name] = torch.zeros(self._num_tokens, device=self._device)
            self._of_tokens[name][places] = value.detach().float()

    def tokens(self) -> dict[str, np.ndarray]:
        """What all ranks noted for each token of the step, [token] float32 by name."""
        for values in self._of_tokens.values():
            torch.distributed.all_reduce(values)  # elsewhere than at its own places a rank has 0
        noted = self._of_tokens.items()
        return {name: (values / self._copies).cpu().numpy() for name, values in noted}

    def reduced(self, num_updates: int) -> dict[str, float]:
        """The metrics over all ranks of a step with so many updates; no mean or maximum of nothing.

        An empty micro-batch has no values, nor has parity where no token is the learner's own.
        """
        counts, sums = self._added(self._counts), self._added(self._sums)
        maxima = _over_ranks(self._maxima, ReduceOp.MAX)
        return (
            {n: v / counts.get(n, 1.0) for n, v in sums.items() if counts.get(n) != 0}
            | {n: v / max(1, num_updates) for n, v in self._added(self._shares).items()}
            | {n: sum(v) / len(v) for n, v in self._of_updates.items()}
            | {n: v for n, v in maxima.items() if v != -math.inf}
            | _explained_variance(self._added(self._moments))
            | (_slowest(sum(map(_seconds, self._spans)), self._device) if self._spans else {})
        )

    def _added(self, values: Mapping[str, Tensor]) -> dict[str, float]:
        return {name: value / self._copies for name, value in _over_ranks(values).items()}

    def _add(self, into: dict[str, Tensor], name: str, value: Tensor | float) -> None:
        value = torch.as_tensor(value, device=self._device).detach().double()
        into[name] = into[name] + value if name in into else value


def _over_ranks(values: Mapping[str, Tensor], operation: Any = ReduceOp.SUM) -> dict[str, float]:
    if not values:
        return {}
    stacked = torch.stack(list(values.values()))
    torch.distributed.all_reduce(stacked, op=operation)
    return dict(zip(values, stacked.tolist(), strict=True))


def _seconds(span: tuple[Any, Any]) -> float:
    begin, end = span
    if isinstance(begin, float):
        return end - begin
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def _slowest(own_seconds: float, device: torch.device) -> dict[str, float]:
    """Which rank took longest, how long, and how long the mean rank took; nothing of one alone."""
    num_ranks = torch.distributed.get_world_size()
    if num_ranks == 1:
        return {}
    seconds = torch.zeros(num_ranks, dtype=torch.float64, device=device)
    seconds[torch.distributed.get_rank()] = own_seconds
    torch.distributed.all_reduce(seconds)
    return {
        "slowest_rank": float(seconds.argmax()),
        "slowest_rank_seconds": float(seconds.max()),
        "rank_seconds": float(seconds.mean()),
    }


def _explained_variance(moments: dict[str, float]) -> dict[str, float]:
    explained = Moments(**moments).explained_variance() if moments else math.nan
    return {} if math.isnan(explained) else {"explained_variance": explained}
