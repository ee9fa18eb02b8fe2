"""What an engine returns for one response, and how responses become a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from protocol.messages import FinishReason, Response, RolloutGroup, RolloutRequest, VersionSpan


@dataclass(frozen=True, eq=False)
class Sample:
    """One response, exactly as the model sampled it."""

    token_ids: np.ndarray  # [token] int32, with the end-of-sequence token if one was sampled
    behavior_logprobs: np.ndarray  # [token] float32, nats, after temperature
    text: str
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]


def version_label(attempt: int, number: int) -> str:
    """How a version of the policy is named inside the engine, for example ``"1.17"``."""
    return f"{attempt}.{number}"


def span_of(label: str, start: int, end: int) -> VersionSpan:
    """Tokens ``[start, end)`` sampled under the version that `version_label` named."""
    attempt, number = label.split(".")
    return VersionSpan(attempt=int(attempt), version=int(number), start=start, end=end)


def group_of(
    request: RolloutRequest,
    prompt_ids: Sequence[int],
    samples: Sequence[Sample],
    sampling_seconds: float,
) -> RolloutGroup:
    """Lay the samples of one request one after another."""
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
        sampling_seconds=sampling_seconds,
    )
