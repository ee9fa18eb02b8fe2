"""What goes into an engine and what comes out: a prompt, samples that make a group, or an error."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client import Counter
from protocol.messages import (
    FinishReason,
    ParityReport,
    Response,
    RolloutGroup,
    RolloutRequest,
    Task,
    VersionSpan,
)

from services.chassis.faults import Unfit, Unworkable, WorkerFault
from services.chassis.prompts import PromptError, Tokenizer, rendered

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


class EngineUnfit(EngineError, Unfit):
    """The weights belong into another engine."""


class EngineDied(EngineError, WorkerFault):
    """A process of the engine has ended; this process must end, too, to be started anew."""


def prompt_ids(
    task: Task,
    template: str | None,
    tokenizer: Tokenizer,
    *,
    max_context: int,
    max_tokens: int,
    options: Mapping[str, Any] | None = None,
) -> list[int]:
    """The prompt's token ids, by the plain template if there is one, else by the chat template.

    Raises:
        PromptError: if the task does not fit the template, or leaves no ``max_tokens``.
    """
    ids = rendered(task, template, tokenizer, options)
    room = max_context - max_tokens
    if len(ids) > room:
        raise PromptError(
            f"task {task.id!r}: its prompt has {len(ids)} tokens, but model.max_context "
            f"{max_context} less sampling.max_tokens {max_tokens} leaves {room}: raise the first, "
            "lower the second, or drop the task"
        )
    return ids


@dataclass(frozen=True, eq=False)
class Sample:
    """One response, exactly as the model sampled it."""

    token_ids: np.ndarray  # [token] int32, with the end-of-sequence token if one was sampled
    behavior_logprobs: np.ndarray  # [token] float32, nats, after temperature
    text: str
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]


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
        sampling_seconds=sampling_seconds,
    )
