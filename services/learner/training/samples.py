"""From graded groups to samples: tokens, their log-probs and advantages; and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import torch
from protocol.messages import FinishReason, GradedGroup, Response, Ungradable
from torch import Tensor

from services.learner.algorithms.shaping import accuracy_varies
from services.learner.training.scoring import ScoredGroup


@dataclass(frozen=True)
class Sample:
    """A response for training: the model reads all tokens, and learns the policy's own.

    All arrays except ``token_ids`` have only the policy's own tokens, so no loss, ratio, value or
    metric includes others. The size of a micro-batch counts all tokens.
    """

    prompt_ids: np.ndarray  # [prompt_token] int32
    token_ids: np.ndarray  # [token of the response] int32
    behavior_logprobs: np.ndarray  # [own token] float32
    on_version: np.ndarray  # [own token] int32, 1 if the learner's current version sampled it
    advantage: float  # 0 if a critic estimates it per token
    reward: float  # that the advantage compares; NaN if it leaves the response out
    correct: bool  # by raw accuracy
    group: int
    first_token: int = 0  # its place among the own tokens of the step: see `assign_places`
    own_indexes: np.ndarray | None = None  # [own token] int, into ``token_ids``; None: all

    @property
    def own_places(self) -> np.ndarray:
        return np.arange(len(self.token_ids)) if self.own_indexes is None else self.own_indexes

    @property
    def num_own(self) -> int:
        return len(self.behavior_logprobs)


@dataclass(frozen=True)
class Measured:
    """Metrics of all ranks.

    ``tokens`` has values for each own token of the samples, in their order, each [token] float32:
    ``logprobs`` in nats, before the first update of the step; ``entropies`` in nats, before the
    update of the token's mini-batch; and ``token_advantages``. Missing values are NaN.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass
class GroupFacts:
    """Sums over the groups of a step, for the means in its report.

    Tokens are the policy's own; ``trained_lengths`` count all tokens.
    """

    responses: int = 0
    correct: int = 0
    correct_tokens: int = 0
    rewards: list[float] = field(default_factory=list)  # of responses with a reward
    process: list[float] = field(default_factory=list)  # of correct responses
    process_wrong: list[float] = field(default_factory=list)
    has_terms: bool = False  # the advantage has a term for the process
    active_process: int = 0  # responses with a nonzero term
    tokens: int = 0
    truncated: int = 0
    staleness_token_sum: float = 0.0
    staleness_max: int = 0
    groups_with_signal: int = 0
    groups_exhausted: int = 0  # with equal outcomes
    dropped_responses: Counter[str] = field(default_factory=Counter)
    ungradable_process: int = 0
    filtered: int = 0  # truncated and left out of the loss
    trained_lengths: list[int] = field(default_factory=list)  # prompt and response, in tokens

    def throughput(self, seconds: float, num_ranks: int) -> dict[str, float]:
        """Return the throughput of training; every rank has a GPU, if there are any."""
        return {
            "samples": self.responses,
            "tokens": self.tokens,
            "seconds": seconds,
            "samples_per_second": self.responses / seconds,
            "tokens_per_second": self.tokens / seconds,
            "tokens_per_second_per_gpu": self.tokens / seconds / num_ranks,
        }

    def means(self, num_groups: int) -> dict[str, float]:
        """Return the metrics of a step; there is no mean of nothing."""
        responses = self.responses
        lost = self.dropped_responses.total()
        means = {
            "reward": (sum(self.rewards), len(self.rewards)),
            "accuracy": (self.correct, responses),
            "process": (sum(self.process), len(self.process)),
            "process_wrong": (sum(self.process_wrong), len(self.process_wrong)),
            "active_process": (self.active_process, responses if self.has_terms else 0),
            "response_length": (self.tokens, responses),
            "length_correct": (self.correct_tokens, self.correct),
            "length_wrong": (self.tokens - self.correct_tokens, responses - self.correct),
            "truncated": (self.truncated, responses),
            "filtered": (self.filtered, responses),
            "staleness": (self.staleness_token_sum, self.tokens),
            "signal": (self.groups_with_signal, num_groups),
            "outcome_exhausted": (self.groups_exhausted, num_groups),
            "ungradable": (lost + self.ungradable_process, responses + lost),
        }
        metrics = {name: part / whole for name, (part, whole) in means.items() if whole}
        return metrics | {"staleness_max": float(self.staleness_max)}


def build_samples(
    groups: Sequence[ScoredGroup],
    *,
    attempt: int,
    version: int,
    kept_kv: bool = False,
) -> tuple[list[Sample], GroupFacts]:
    """Build the samples of a step's groups, and the facts about the groups.

    With ``kept_kv`` a response that a sync interrupted continues with keys and values of the old
    weights, so none of its tokens count as sampled by this version.

    A response with an ungradable outcome is dropped and counted, and enters no statistics of its
    group. A missing process score is left out of the process statistics. A truncated response that
    ``overlong_filter`` leaves out of the loss enters the statistics.
    """
    samples: list[Sample] = []
    facts = GroupFacts()
    for index, group in enumerate(groups):
        samples += _samples_of_group(index, group, (attempt, version), all_spans=kept_kv)
        _note(facts, group.graded, version)
        facts.rewards += group.rewards[~np.isnan(group.rewards)].tolist()
        facts.groups_exhausted += not accuracy_varies(group.scores)
        facts.groups_with_signal += group.has_signal
        facts.has_terms |= group.scoring.terms is not None
        facts.active_process += group.active_process
    if groups and groups[0].scoring.over_step is not None:
        samples = _apply_over_step(samples, groups[0].scoring.over_step)
    facts.filtered = facts.responses - len(samples)
    facts.trained_lengths = [len(s.prompt_ids) + len(s.token_ids) for s in samples]
    return samples, facts


def _samples_of_group(
    index: int, group: ScoredGroup, version: tuple[int, int], *, all_spans: bool
) -> Iterator[Sample]:
    rollout = group.graded.group
    assert rollout is not None
    for i, (start, end) in enumerate(rollout.bounds()):
        if group.has_loss[i]:
            indexes = None if rollout.own is None else rollout.own[start:end].nonzero()[0]
            selected = slice(None) if indexes is None else indexes
            response = rollout.responses[i]
            on_version = _on_version(response, end - start, version, all_spans=all_spans)
            yield Sample(
                prompt_ids=rollout.prompt_ids,
                token_ids=rollout.token_ids[start:end],
                behavior_logprobs=rollout.behavior_logprobs[start:end][selected],
                on_version=on_version[selected],
                advantage=float(group.advantages[i]),
                reward=float(group.rewards[i]),
                correct=group.graded.grades[i].is_right,
                group=index,
                own_indexes=indexes,
            )


def _apply_over_step(
    samples: Sequence[Sample], formula: Callable[[Tensor, Tensor], Tensor]
) -> list[Sample]:
    """Apply a formula to the advantages and rewards of a whole step."""
    values = [[sample.advantage for sample in samples], [sample.reward for sample in samples]]
    advantages = formula(*torch.tensor(values, dtype=torch.float64)).tolist()
    return [replace(s, advantage=a) for s, a in zip(samples, advantages, strict=True)]


def _on_version(
    response: Response, length: int, version: tuple[int, int], *, all_spans: bool
) -> np.ndarray:
    """Return 1 for tokens that an attempt's version sampled, [token] int32."""
    on_version = np.zeros(length, dtype=np.int32)
    matches = [(span.attempt, span.version) == version for span in response.spans]
    for span, matches_version in zip(response.spans, matches, strict=True):
        on_version[span.start : span.end] = all(matches) if all_spans else matches_version
    return on_version


def assign_places(samples: Sequence[Sample]) -> list[Sample]:
    """Number the own tokens of a step: set the place of each sample's first one."""
    ends = accumulate((sample.num_own for sample in samples), initial=0)
    return [replace(s, first_token=first) for s, first in zip(samples, ends, strict=False)]


def _note(facts: GroupFacts, graded: GradedGroup, version: int) -> None:
    assert graded.group is not None
    group = graded.group
    responses = zip(
        group.responses, group.policy_lengths.tolist(), graded.grades, group.bounds(), strict=True
    )
    for response, length, grade, (first, end) in responses:
        if isinstance(grade.outcome, Ungradable):
            facts.dropped_responses[grade.outcome.reason] += 1
            continue
        is_correct = grade.is_right
        facts.responses += 1
        facts.correct += is_correct
        facts.correct_tokens += length * is_correct
        facts.ungradable_process += isinstance(grade.process, Ungradable)
        facts.truncated += response.finish_reason is FinishReason.LENGTH
        if grade.process_score is not None:
            (facts.process if is_correct else facts.process_wrong).append(grade.process_score)
        _note_staleness(facts, response, group.policy_mask[first:end], version)


def _note_staleness(
    facts: GroupFacts, response: Response, policy_mask: np.ndarray, version: int
) -> None:
    for span in response.spans:
        tokens = int(policy_mask[span.start : span.end].sum())
        facts.tokens += tokens
        facts.staleness_token_sum += tokens * (version - span.version)
        facts.staleness_max = max(facts.staleness_max, version - span.version)
