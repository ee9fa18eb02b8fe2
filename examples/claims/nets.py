"""The policies and critics of many runs: small networks of a state, trained side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from examples.claims.chains import BASE, STATE_SIZES, VOCABULARY, Dials, author, features, play

HIDDEN = 48


class Nets:
    """One network of two layers per run, in tensors of [run, ...], each with its own seed."""

    def __init__(self, seeds: Sequence[int], outputs: int, head: float = 0.1) -> None:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]

        def normal(rows: int, columns: int, scale: float) -> Tensor:
            starts = [torch.randn(rows, columns, generator=rng) for rng in generators]
            return (torch.stack(starts) * scale).requires_grad_()

        self.weights = [
            normal(sum(STATE_SIZES), HIDDEN, 0.5),
            normal(HIDDEN, outputs, head),
            normal(1, outputs, 0.0),
        ]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Compute outputs, [run, row, feature] to [run, row, output]."""
        into, out, bias = self.weights
        return torch.tanh(inputs @ into) @ out + bias

    def logprobs(self, states: Tensor) -> Tensor:
        """Compute log-probs, [run, ..., 7] to [run, ..., output]."""
        flat = self(features(states.flatten(1, -2))).log_softmax(-1)
        return flat.view(*states.shape[:-1], -1)

    def copy_weights(self, source: Nets) -> None:
        """Start the runs from these networks, repeated as often as needed."""
        for weight, base in zip(self.weights, source.weights, strict=True):
            weight.data = base.detach().repeat(len(weight) // len(base), 1, 1)


@cache
def imitations(
    dials: Dials, seeds: tuple[int, ...], updates: int = 400, responses: int = 64
) -> Nets:
    """Train policies to imitate the author: the base models of a world."""
    nets = Nets(seeds, VOCABULARY)
    teacher = author(dials)
    generator = torch.Generator().manual_seed(seeds[0])
    optimizer = torch.optim.Adam(nets.weights, lr=1e-2)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - 0.95 * update / updates)
        digits = torch.stack([tasks(responses, dials, generator) for _ in seeds])
        with torch.no_grad():
            played = play(teacher, digits, dials, generator)
            target = teacher(played.states)
        divergence = (target.exp() * (target - nets.logprobs(played.states))).sum(-1)
        losses = divergence * played.mask
        loss = (losses.sum((1, 2)) / played.mask.sum((1, 2))).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return nets


def tasks(number: int, dials: Dials, generator: torch.Generator) -> Tensor:
    """Draw random tasks, [task, digit] int64."""
    return torch.randint(0, BASE, (number, dials.length), generator=generator)
