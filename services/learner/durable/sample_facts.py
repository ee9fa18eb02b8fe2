"""Sample facts: what a step's groups and their responses came to, for the sample store. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from protocol.messages import FinishReason, RolloutGroup
from protocol.recipe import Purpose
from protocol.samples import USED, ResponseFacts, SampledGroup, SampleFacts

from services.learner.training.scoring import ScoredGroup

_OF_TOKENS = ("logprobs", "entropies", "token_advantages")


def sampled_groups(
    groups: Sequence[ScoredGroup], tokens: Mapping[str, np.ndarray], *, attempt: int, step: int
) -> Iterator[SampledGroup]:
    """What the store keeps of the groups that a step used or dropped.

    Args:
        tokens: what the step measured for each token of its samples, in their order: any of the
            arrays over tokens that a `SampledGroup` has.
    """
    ends = np.cumsum([_tokens_in_loss(group).sum() for group in groups], dtype=int)
    parts = {name: np.split(values, ends) for name, values in tokens.items()}
    for place, group in enumerate(groups):
        measured = parts if group.fate == USED else {}
        in_loss = _tokens_in_loss(group)
        yield SampledGroup(
            graded=group.graded,
            attempt=attempt,
            step=step,
            fate=group.fate,
            **_values(group),
            **{
                name: _spread(measured[name][place], in_loss) if name in measured else np.zeros(0)
                for name in _OF_TOKENS
            },
        )


def facts_of(sampled: SampledGroup, created_at: float) -> SampleFacts:
    """What a list of samples shows of a group."""
    graded = sampled.graded
    return SampleFacts(
        purpose=graded.purpose,
        number=graded.number,
        attempt=sampled.attempt,
        step=sampled.step,
        fate=sampled.fate,
        task_id="" if graded.group is None else graded.group.request.task.id,
        failure=graded.failure,
        created_at=created_at,
        responses=() if graded.group is None else tuple(_responses(sampled, graded.group)),
    )


def _responses(sampled: SampledGroup, group: RolloutGroup) -> Iterator[ResponseFacts]:
    for index, (start, end) in enumerate(group.bounds()):
        grade, behavior = sampled.graded.grades[index], group.behavior_logprobs[start:end]
        advantage = _known(sampled.advantages[index])
        if advantage is None:
            advantage = _mean(sampled.token_advantages[start:end])
        yield ResponseFacts(
            accuracy=grade.accuracy,
            process=grade.process_score,
            reward=_known(sampled.rewards[index]),
            advantage=advantage,
            length=end - start,
            truncated=group.responses[index].finish_reason is FinishReason.LENGTH,
            surprise=0.0 - (_mean(behavior) or 0.0),
            parity_gap=_largest_gap(behavior, _own(sampled, index, sampled.logprobs[start:end])),
        )


def _own(sampled: SampledGroup, index: int, logprobs: np.ndarray) -> np.ndarray:
    """The log-probs of those tokens that the learner's own version sampled, NaN elsewhere."""
    assert sampled.graded.group is not None
    own = np.full(logprobs.shape, math.nan, dtype=np.float32)
    for span in sampled.graded.group.responses[index].spans if logprobs.size else ():
        if (span.attempt, span.version) == (sampled.attempt, sampled.step):
            own[span.start : span.end] = logprobs[span.start : span.end]
    return own


def _values(group: ScoredGroup) -> dict[str, np.ndarray]:
    """What the recipe makes of each response's grade, [group]; nothing of an evaluation's."""
    unknown = np.full(len(group.in_loss), math.nan)
    is_paid = group.graded.purpose is not Purpose.EVAL
    return {
        "rewards": group.rewards if is_paid else unknown,
        "advantages": group.advantages if group.scoring.gives_advantages else unknown,
        "outcome_advantages": group.outcome_advantages,
        "process_advantages": group.process_advantages,
    }


def _tokens_in_loss(group: ScoredGroup) -> np.ndarray:
    """Which tokens of a group are those of samples, [token] bool; none of one that is dropped."""
    rollout = group.graded.group
    if rollout is None or group.fate != USED:
        return np.zeros(0, dtype=bool)
    return np.repeat(group.in_loss, rollout.lengths)


def _spread(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The values where the mask is true, in their order, and NaN elsewhere."""
    spread = np.full(mask.shape, math.nan, dtype=np.float32)
    spread[mask] = values
    return spread


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _mean(values: np.ndarray) -> float | None:
    """Of those that are finite; None if none is."""
    known = values[np.isfinite(values)]
    return float(known.mean(dtype=np.float64)) if known.size else None


def _largest_gap(behavior: np.ndarray, logprobs: np.ndarray) -> float | None:
    if not logprobs.size:
        return None
    gaps = np.abs(logprobs - behavior)
    known = gaps[np.isfinite(gaps)]
    return float(known.max()) if known.size else None
