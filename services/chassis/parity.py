"""Parity: whether an engine computes what the learner computes with the weights of a version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from protocol.messages import Task

from services.chassis.prompts import PromptError, Tokenizer, rendered

_MOVED = 1e-5  # nats, mean: a policy that has moved less may be the same, computed otherwise
_STAYED = 0.1  # of what the learner has moved
_NEAREST = 0.5  # of the gap to the version that was to be served


@dataclass(frozen=True)
class Answer:
    """Log-probs of probes by an engine, and by the learner at a version: nats, [token]."""

    given: np.ndarray
    expected: np.ndarray

    @property
    def mean(self) -> float:
        """The mean gap, in nats, or relative to the log-probs where these are larger than 1.

        Rounding is relative: of what is improbable log-probs are large, and differ by more.
        """
        return self.gap_to(self.expected) / max(1.0, float(np.abs(self.expected).mean()))

    @property
    def max(self) -> float:
        return float(np.abs(self.given - self.expected).max())

    def gap_to(self, logprobs: np.ndarray) -> float:
        return float(np.abs(self.given - logprobs).mean())

    def repeats(self, earlier: Answer) -> bool:
        """Whether the engine answers as it did, though the learner does not."""
        moved = np.abs(self.expected - earlier.expected)
        least = max(_MOVED, _NEAREST * self.gap_to(self.expected))  # or it may be rounding
        has_moved = moved.mean() > least and (moved > 0).mean() > 0.5
        return bool(has_moved) and self.gap_to(earlier.given) < _STAYED * moved.mean()

    def nearest(self, known: Mapping[int, np.ndarray]) -> int | None:
        """The version whose log-probs by the learner are much nearer than those expected."""
        near = {v: gap for v, logprobs in known.items() if (gap := self.gap_to(logprobs)) >= 0}
        best = min(near, key=near.__getitem__, default=None)
        is_near = best is not None and near[best] < _NEAREST * self.gap_to(self.expected)
        return best if is_near else None


def digest_of(
    tasks: Iterable[Task], template: str | None, tokenizer: Tokenizer, options: Mapping[str, Any]
) -> str:
    """A digest of the prompts of tasks, as a tokenizer and a template make them.

    Of a chat template that prints the time it is one of the template.
    """
    try:
        prompts: Any = [rendered(task, template, tokenizer, options) for task in tasks]
        if template is None and prompts and "strftime_now" in str(tokenizer.chat_template):
            prompts = [str(tokenizer.chat_template), dict(options)]
    except PromptError as error:
        prompts = str(error)
    return hashlib.blake2b(json.dumps(prompts).encode(), digest_size=16).hexdigest()
