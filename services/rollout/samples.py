"""Samples of the engine, the groups that they form, and the engine's errors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from prometheus_client import Counter
from protocol.messages import (
    OPENS_THINKING,
    FinishReason,
    ParityReport,
    Response,
    RolloutGroup,
    RolloutRequest,
    VersionSpan,
)

from services.chassis.faults import RestartRequired, Unworkable, WorkerFault

# A thinking tag lies within the last tokens of a prompt, even at one character a token.
_TAG_TOKENS = 64

# Tokens of groups and of episodes.
TOKENS = Counter("weir_sampled_tokens_total", "Tokens sampled; its rate is the throughput")


class EngineError(RuntimeError):
    """An operation of the engine failed."""


class SamplingError(EngineError):
    """The engine ended a response without a valid result."""


class RequestRefused(EngineError, Unworkable):
    """vLLM refuses the request; the text has its reason."""


class LoadError(EngineError, WorkerFault):
    """New weights were not loaded. The engine samples nothing until a load succeeds."""


class ParityError(EngineError):
    """The engine's log-probs of the probes differ from those of the learner."""

    def __init__(self, report: ParityReport) -> None:
        gap = "not a number" if report.mean is None else f"{report.mean:.2g}"
        super().__init__(
            "the engine and the learner disagree on these weights: the gap of the probes' "
            f"log-probs must be at most {report.most:g}, got {gap}; save the weights again"
        )


class IncompatibleEngine(EngineError, RestartRequired):
    """The weights need another engine."""


class EngineDied(EngineError, WorkerFault):
    """A process of the engine has ended. This process must end, too, and be restarted."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One response, exactly as the model sampled it."""

    # [token] int32, with the end-of-sequence token if one was sampled.
    token_ids: np.ndarray
    # [token] float32, in nats, after temperature.
    behavior_logprobs: np.ndarray
    text: str
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]


def whole_text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """Decode tokens, also special ones; a token without text becomes a replacement character."""
    runs = groupby(token_ids, key=lambda token: tokenizer.convert_ids_to_tokens(token) is None)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" * len([*run])
        if is_unknown
        else tokenizer.decode([*run], skip_special_tokens=False)
        for is_unknown, run in runs
    )


def response_text(tokenizer: Any, token_ids: Sequence[int], *, is_stopped: bool) -> str:
    """Decode a response, without the special token that ended it."""
    last = token_ids[-1:]
    if is_stopped and not tokenizer.decode(last, skip_special_tokens=True):
        token_ids = token_ids[:-1]
    return whole_text(tokenizer, token_ids)


def begins_thinking(tokenizer: Any, prompt_ids: Sequence[int]) -> bool:
    text = whole_text(tokenizer, prompt_ids[-_TAG_TOKENS:])
    return text.rstrip().endswith(OPENS_THINKING)


def spread(seed: int) -> int:
    """Hash a seed. Response i has seed + i, so groups with neighbouring seeds would share some."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=7).digest())


def version_label(attempt: int, number: int) -> str:
    """Return the engine's name of a policy version, for example ``"1.17"``."""
    return f"{attempt}.{number}"


def version_span(label: str, start: int, end: int) -> VersionSpan:
    """Return the span of tokens ``[start, end)`` for a `version_label`."""
    attempt, number = label.split(".")
    return VersionSpan(attempt=int(attempt), version=int(number), start=start, end=end)


def build_group(
    request: RolloutRequest,
    prompt_ids: Sequence[int],
    samples: Sequence[Sample],
    sampling_seconds: float,
    *,
    begins_thinking: bool = False,
) -> RolloutGroup:
    return RolloutGroup(
        request=request,
        prompt_ids=np.asarray(prompt_ids, dtype=np.int32),
        token_ids=np.concatenate([sample.token_ids for sample in samples]),
        behavior_logprobs=np.concatenate([sample.behavior_logprobs for sample in samples]),
        lengths=np.asarray([len(sample.token_ids) for sample in samples], dtype=np.int32),
        responses=tuple(
            Response(text=sample.text, finish_reason=sample.finish_reason, spans=sample.spans)
            for sample in samples
        ),
        begins_thinking=begins_thinking,
        sampling_seconds=sampling_seconds,
    )
