"""The metrics of a training step, collected over micro-batches and ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from services.learner.algorithms.gae import Moments, moment_sums
from services.learner.training.samples import Sample


class StepMetrics:
    """Sums on this rank, without a synchronization per micro-batch; reduced over ranks once.

    Until then sums of tensors stay on their device, and sums of numbers on the host. All ranks note
    the same names in the same order.
    """

    def __init__(self, device: torch.device, num_tokens: int = 0, copies: int = 1) -> None:
        """``copies`` ranks share each micro-batch; the samples have ``num_tokens`` own tokens."""
        self._copies = copies
        self._device = device
        self._num_tokens = num_tokens
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}
        self._shares: dict[str, Tensor] = {}
        self._moments: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}
        self._update_values: dict[str, list[float]] = {}
        self._token_values: dict[str, Tensor] = {}
        self._spans: list[tuple[Any, Any]] = []

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """Add the computation to this rank's seconds.

        On a CPU that is processor time, without waiting for other ranks. On a GPU it is the time of
        the stream, which under ZeRO-3 includes waiting for other ranks.
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

    def note_mean(self, weight: float = 1.0, **values: Tensor) -> None:
        """Note values, [token], to report their mean, where each counts ``weight`` times."""
        for name, value in values.items():
            self._add(self._sums, name, weight * value.sum())
            self._add(self._counts, name, weight * value.numel())

    def note_share(self, **values: Tensor) -> None:
        """Note a micro-batch's share of an update's value, to report the mean over updates."""
        for name, value in values.items():
            self._add(self._shares, name, value)

    def note_count(self, **values: Tensor | float) -> None:
        for name, value in values.items():
            self._add(self._sums, name, value)

    def note_maximum(self, **values: Tensor) -> None:
        """Note values, [token], to report their maximum."""
        for name, value in values.items():
            lowest = value.new_full((1,), -math.inf)
            highest = torch.cat([value.detach(), lowest]).max().double()
            self._maxima[name] = torch.maximum(self._maxima.get(name, highest), highest)

    def note_explained(self, returns: Tensor, values: Tensor) -> None:
        """Note returns and the values that the critic gave, both [token]."""
        for name, value in moment_sums(returns, values.detach()).items():
            self._add(self._moments, name, value)

    def note_update(self, **values: float | None) -> None:
        """Note an update's values, the same on all ranks, to report the mean over updates."""
        for name, value in values.items():
            if value is not None:
                self._update_values.setdefault(name, []).append(value)

    def note_tokens(self, places: Tensor | slice, **values: Tensor) -> None:
        """Note a value for each place, both [token]; a later value replaces it."""
        for name, value in values.items():
            if name not in self._token_values:
                self._token_values[name] = torch.zeros(self._num_tokens, device=self._device)
            self._token_values[name][places] = value.detach().float()

    def note_missing(self, samples: Sequence[Sample]) -> None:
        """Note that the model does not compute the tokens of samples; all ranks note the same."""
        for sample in samples:
            places = slice(sample.first_token, sample.first_token + sample.num_own)
            missing = torch.full((sample.num_own,), math.nan, device=self._device)
            self.note_tokens(places, logprobs=missing, entropies=missing)

    def tokens(self) -> dict[str, np.ndarray]:
        """Return the notes of all ranks for each token of the step, [token] float32 by name."""
        for values in self._token_values.values():
            torch.distributed.all_reduce(values)  # a rank has 0 at the places of other ranks
        return {
            name: (values / self._copies).cpu().numpy()
            for name, values in self._token_values.items()
        }

    def reduced(self, num_updates: int) -> dict[str, float]:
        """Return the metrics over all ranks of a step; there is no mean or maximum of nothing.

        An empty micro-batch has no values, and parity has none without tokens of this version.
        """
        counts = self._add_ranks(self._counts)
        metrics = {}
        for name, total in self._add_ranks(self._sums).items():
            if counts.get(name) != 0:
                metrics[name] = total / counts.get(name, 1.0)
        maxima = self._reduce(self._maxima, ReduceOp.MAX)
        for name, share in self._add_ranks(self._shares).items():
            metrics[name] = share / max(1, num_updates)
        for name, values in self._update_values.items():
            metrics[name] = sum(values) / len(values)
        metrics |= {name: value for name, value in maxima.items() if value != -math.inf}
        metrics |= _explained_variance(self._add_ranks(self._moments))
        if self._spans:
            metrics |= _slowest(sum(map(_seconds, self._spans)), self._device)
        return metrics

    def _add_ranks(self, values: Mapping[str, Tensor]) -> dict[str, float]:
        return {name: value / self._copies for name, value in self._reduce(values).items()}

    def _reduce(
        self, values: Mapping[str, Tensor], operation: Any = ReduceOp.SUM
    ) -> dict[str, float]:
        if not values:
            return {}
        stacked = torch.stack([value.to(self._device) for value in values.values()])
        torch.distributed.all_reduce(stacked, op=operation)
        return dict(zip(values, stacked.tolist(), strict=True))

    def _add(self, sums: dict[str, Tensor], name: str, value: Tensor | float) -> None:
        value = torch.as_tensor(value).detach().double()
        sums[name] = sums[name] + value if name in sums else value


def _seconds(span: tuple[Any, Any]) -> float:
    begin, end = span
    if isinstance(begin, float):
        return end - begin
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def _slowest(own_seconds: float, device: torch.device) -> dict[str, float]:
    """Return the slowest rank, its seconds and the mean seconds; nothing for a single rank."""
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
