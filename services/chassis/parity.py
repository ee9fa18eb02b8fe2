"""Parity: whether an engine computes the same log-probs as the learner with the same weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from protocol.messages import Probes, Task

from services.chassis.prompts import PromptError, Tokenizer, encode_prompt

_ROUNDING = 1e-5  # nats, a mean difference without consequence
_MATCH_RATIO = 0.5


def compare_logprobs(engine_values: Sequence[float], probes: Probes) -> dict[str, Any]:
    """Compare an engine's log-probs of probes with the learner's, as in `ParityReport`.

    The mean is relative for log-probs beyond 1: rounding is relative, and improbable tokens have
    large log-probs. The engine's values may be followed by gaps of tokens that it decoded.
    """
    expected = np.array(probes.logprobs)
    logprobs, decoded_gaps = np.split(np.array(engine_values), [len(expected)])
    gaps = np.abs(logprobs - expected)
    means = []
    for values in (gaps, decoded_gaps):
        if values.size:
            means.append(values.mean())
    scale = max(1.0, float(np.abs(expected).mean()))
    return {
        "mean": float(np.max(means)) / scale,
        "max": float(gaps.max()),
        "holds": _find_earlier_version(logprobs, gaps, probes),
    }


def _find_earlier_version(logprobs: np.ndarray, gaps: np.ndarray, probes: Probes) -> Any:
    """Return the earlier weights version that the log-probs match clearly better, if any."""
    means = {}
    for version, earlier in probes.earlier.items():
        means[version] = np.abs(logprobs - earlier).mean()
    nearest = min(means, key=means.__getitem__, default=None)
    if nearest is not None and means[nearest] + _ROUNDING < _MATCH_RATIO * gaps.mean():
        return nearest
    return None


def digest_prompts(
    tasks: Iterable[Task],
    template: str | None,
    tokenizer: Tokenizer,
    options: Mapping[str, Any],
) -> str:
    """Digest the prompts of tasks.

    If a chat template prints the time, the digest is of the template.
    """
    try:
        prompts: Any = [encode_prompt(task, template, tokenizer, options) for task in tasks]
        has_chat = template is None and bool(prompts)
        if has_chat and "strftime_now" in str(tokenizer.chat_template):
            prompts = [
                str(tokenizer.chat_template),
                dict(options),
            ]
    except PromptError as error:
        prompts = str(error)
    encoded = json.dumps(prompts).encode()
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()
