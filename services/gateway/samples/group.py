"""A group of samples as the REST surface shows it."""

from __future__ import annotations

from typing import Any

import numpy as np
from protocol.messages import GradedGroup, RolloutGroup
from protocol.samples import SampledGroup
from pydantic_core import to_json
from tokenizers import Tokenizer

from services.gateway.samples.catalog import Group
from services.gateway.samples.pieces import text_pieces

_DECIMALS = 6
Json = dict[str, Any]


def group_json(group: Group, sampled: SampledGroup, tokenizer: Tokenizer | None) -> bytes:
    """A group as JSON, with every token of every response; NaN becomes null."""
    rollout = sampled.graded.group
    head = _json(_head(group, sampled.graded, tokenizer))
    # One response after another, since making JSON lets no other thread run.
    responses = (
        []
        if rollout is None
        else [_json(_response(sampled, rollout, i, tokenizer)) for i in range(len(rollout.lengths))]
    )
    return head[:-1] + b',"responses":[' + b",".join(responses) + b"]}"


def _json(value: Json) -> bytes:
    return to_json(value, inf_nan_mode="null")


def _head(group: Group, graded: GradedGroup, tokenizer: Tokenizer | None) -> Json:
    rollout = graded.group
    return {
        "id": group.key,
        "object": "fine_tuning.job.sample_group",
        "purpose": group.purpose,
        "number": group.number,
        "step": group.step,
        "attempt": group.attempt,
        "fate": group.fate,
        "failure": group.failure,
        "created_at": group.created_at,
        "task": rollout and rollout.request.task.model_dump(mode="json"),
        "prompt": rollout and _prompt(rollout, tokenizer),
        "grading_seconds": graded.grading_seconds,
        "sampling_seconds": rollout and rollout.sampling_seconds,
    }


def _prompt(rollout: RolloutGroup, tokenizer: Tokenizer | None) -> str | None:
    """As the model saw it, with its special tokens."""
    if tokenizer is None:
        return rollout.request.task.prompt
    return tokenizer.decode(rollout.prompt_ids.tolist(), skip_special_tokens=False)


def _response(
    sampled: SampledGroup, rollout: RolloutGroup, index: int, tokenizer: Tokenizer | None
) -> Json:
    start, end = rollout.bounds()[index]
    response, grade = rollout.responses[index], sampled.graded.grades[index]

    def over_group(values: np.ndarray) -> float | None:
        return next(iter(_numbers(values[index : index + 1])), None)

    def over_tokens(values: np.ndarray) -> list[float] | None:
        return _numbers(values[start:end]) if len(values) else None

    token_ids = rollout.token_ids[start:end].tolist()
    return {
        "index": index,
        **response.model_dump(mode="json"),
        "grade": grade.model_dump(mode="json"),
        "reward": over_group(sampled.rewards),
        "advantage": over_group(sampled.advantages),
        "outcome_advantage": over_group(sampled.outcome_advantages),
        "process_advantage": over_group(sampled.process_advantages),
        "tokens": text_pieces(tokenizer, token_ids, response.text),
        "behavior_logprobs": _numbers(rollout.behavior_logprobs[start:end]),
        "logprobs": over_tokens(sampled.logprobs),
        "entropies": over_tokens(sampled.entropies),
        "token_advantages": over_tokens(sampled.token_advantages),
    }


def _numbers(values: np.ndarray) -> list[float]:
    """Short ones: the digits that a float32 does not have are noise."""
    return np.round(values.astype("<f8"), _DECIMALS).tolist()
