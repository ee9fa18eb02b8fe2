"""What goes into an engine and what comes out: a prompt, samples that make a group, or an error."""

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

_END_TOKENS = 64  # of a prompt, that may be so many characters

# Of groups and of episodes.
TOKENS = Counter("weir_sampled_tokens_total", "Tokens sampled; its rate is the throughput")


class EngineError(RuntimeError):
    """The engine could not do what was asked of it."""


class SamplingError(EngineError):
    """The engine ended a response in a way that is not an answer."""


class RequestRefused(EngineError, Unworkable):
    """The engine takes no such request, from anybody; the text has its own words."""


class LoadError(EngineError, WorkerFault):
    """New weights were not loaded; the engine samples nothing until a load succeeds."""


class ParityError(EngineError):
    """The engine does not answer the probes of weights as the learner did."""

    def __init__(self, report: ParityReport) -> None:
        gap = "no number" if report.mean is None else f"a gap of {report.mean:.2g}"
        super().__init__(
            "the engine does not compute what the learner did with these weights: the log-probs "
            f"of its probes have {gap}, and {report.most:g} is the most; save them again"
        )


class EngineUnfit(EngineError, RestartRequired):
    """The weights belong into another engine."""


class EngineDied(EngineError, WorkerFault):
    """A process of the engine has ended; this process must end, too, to be started anew."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One response, exactly as the model sampled it."""

    token_ids: np.ndarray  # [token] int32, with the end-of-sequence token if one was sampled
    behavior_logprobs: np.ndarray  # [token] float32, nats, after temperature
    text: str
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]


def whole_text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The text of tokens with special ones, and a replacement character for each without text."""
    runs = groupby(token_ids, key=lambda each: tokenizer.convert_ids_to_tokens(each) is None)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" * len([*run])
        if is_unknown
        else tokenizer.decode([*run], skip_special_tokens=False)
        for is_unknown, run in runs
    )


def text_of_response(tokenizer: Any, token_ids: Sequence[int], *, is_stopped: bool) -> str:
    """The whole text, without the special token that a response ends with if it is stopped."""
    last = token_ids[-1:]
    ends = is_stopped and not tokenizer.decode(last, skip_special_tokens=True)
    return whole_text(tokenizer, token_ids[: len(token_ids) - ends])


def begins_thinking(tokenizer: Any, prompt_ids: Sequence[int]) -> bool:
    end = whole_text(tokenizer, prompt_ids[-_END_TOKENS:])
    return end.rstrip().endswith(OPENS_THINKING)


def spread(seed: int) -> int:
    """The i-th response is sampled with seed + i: keep the groups of near seeds apart."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=7).digest())


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
