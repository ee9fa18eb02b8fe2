"""What an order measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Measured:
    """What the ranks measured together.

    ``tokens`` has what was computed for each response token of the samples, in their order, each
    [token] float32: ``logprobs`` in nats, before the first update of the step; ``entropies`` in
    nats, before that of the token's own mini-batch; and ``token_advantages``. What was computed for
    some tokens only is NaN for the others.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, np.ndarray] = field(default_factory=dict)
