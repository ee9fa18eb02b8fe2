"""Parity: whether an engine computes what the learner computes with the weights of a version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from protocol.messages import Probes, Task

from services.chassis.prompts import PromptError, Tokenizer, encode_prompt

_ROUNDING = 1e-5  # nats, mean: of no consequence
_NEARER = 0.5


def compare_logprobs(given: Sequence[float], probes: Probes) -> dict[str, Any]:
    """How an engine's log-probs of probes are to the learner's, as `ParityReport` has it.

    The mean is relative where log-probs are larger than 1: rounding is relative, and of what is
    improbable log-probs are large. Behind an engine's may be gaps of tokens that it decoded.
    """
    wanted = np.array(probes.logprobs)
    answer, decoded = np.split(np.array(given), [len(wanted)])
    gaps = np.abs(answer - wanted)
    near = {v: np.abs(answer - logprobs).mean() for v, logprobs in probes.earlier.items()}
    holds = min(near, key=near.__getitem__, default=None)
    if holds is not None and not near[holds] + _ROUNDING < _NEARER * gaps.mean():
        holds = None
    parts = [part for part in (gaps, decoded) if part.size]
    mean = float(np.max([part.mean() for part in parts])) / max(1.0, float(np.abs(wanted).mean()))
    return {"mean": mean, "max": float(gaps.max()), "holds": holds}


def digest_prompts(
    tasks: Iterable[Task], template: str | None, tokenizer: Tokenizer, options: Mapping[str, Any]
) -> str:
    """A digest of the prompts of tasks, as a tokenizer and a template make them.

    Of a chat template that prints the time it is one of the template.
    """
    try:
        prompts: Any = [encode_prompt(task, template, tokenizer, options) for task in tasks]
        if template is None and prompts and "strftime_now" in str(tokenizer.chat_template):
            prompts = [str(tokenizer.chat_template), dict(options)]
    except PromptError as error:
        prompts = str(error)
    return hashlib.blake2b(json.dumps(prompts).encode(), digest_size=16).hexdigest()
