"""What an order measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Measured:
    """What the ranks measured together.

    ``tokens`` has what was computed for each response token of the samples, in their order, before
    the first update of the step: ``logprobs`` and ``entropies`` in nats, and ``token_advantages``,
    each [token] float32. What was computed for some tokens only is NaN for the others.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, np.ndarray] = field(default_factory=dict)
