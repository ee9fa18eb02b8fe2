"""The policies and critics of many runs: small networks of a state, trained side by side."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from examples.claims.chains import STATE_SIZES, VOCABULARY, Dials, author, features, play

HIDDEN = 48


class Nets:
    """One network of two layers per run, in tensors of [run, ...]."""

    def __init__(self, runs: int, outputs: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(rows: int, columns: int, scale: float) -> Tensor:
            first = torch.randn(1, rows, columns, generator=generator) * scale
            return first.repeat(runs, 1, 1).requires_grad_()

        self.weights = [
            normal(sum(STATE_SIZES), HIDDEN, 0.5),
            normal(HIDDEN, outputs, 0.1),
            normal(1, outputs, 0.0),
        ]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs of features, [run, row, feature] to [run, row, output]."""
        into, out, bias = self.weights
        return torch.tanh(inputs @ into) @ out + bias

    def logprobs(self, states: Tensor) -> Tensor:
        """[run, ..., 7] to [run, ..., output]."""
        flat = self(features(states.flatten(1, -2))).log_softmax(-1)
        return flat.view(*states.shape[:-1], -1)

    def set_to(self, other: Nets) -> None:
        """Let every run start from the one network of ``other``."""
        for mine, base in zip(self.weights, other.weights, strict=True):
            mine.data = base.detach().repeat(mine.shape[0], 1, 1)


@cache
def imitation(dials: Dials, updates: int = 400, responses: int = 128) -> Nets:
    """A policy that learned to write as the author does: the base model of a world."""
    net, teacher = Nets(1, VOCABULARY, seed=0), author(dials)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.weights, lr=1e-2)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - 0.95 * update / updates)
        digits = tasks(responses, dials, generator)[None]
        with torch.no_grad():
            played = play(teacher, digits, dials, generator)
            states = played.states[played.mask][None]
            wanted = teacher(states)
        loss = (wanted.exp() * (wanted - net.logprobs(states))).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def tasks(number: int, dials: Dials, generator: torch.Generator) -> Tensor:
    """Random tasks, [task, digit] int64."""
    return torch.randint(0, 5, (number, dials.length), generator=generator)
