"""The training step: a policy, a critic if the advantage needs one, and how they learn.

Every rank calls every method with the same samples, and takes its share of them. A step first
prepares the constants of its updates (log-probs of old and reference policies, values,
advantages), then makes one optimizer update per mini-batch.

A sample without a signal cannot change a weight, so the model does not compute it. Spot checks are
an exception: one in `SPOT_CHECK_EVERY` of these samples has a forward pass, for the metrics, where
its tokens count for all that were left out. The denominators of the loss count every sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from protocol.recipe import Recipe
from torch import Tensor

from services.learner.algorithms import pick
from services.learner.algorithms.gae import (
    CRITIC_ADVANTAGES,
    Episodes,
    lambda_returns,
    value_loss,
    whitened,
)
from services.learner.algorithms.loss import (
    AGGREGATIONS,
    CORRECTIONS,
    DIVERGENCES,
    OBJECTIVES,
    TokenBatch,
    Totals,
    positive_nll,
    vanishes_without_advantage,
)
from services.learner.formulas import formula_settings
from services.learner.training.batching import (
    MicroBatch,
    collate,
    count_totals,
    micro_batches,
    mini_batches,
)
from services.learner.training.engine import Engine
from services.learner.training.flops import estimate_work
from services.learner.training.metrics import StepMetrics
from services.learner.training.models import Models
from services.learner.training.prefetch import Prefetcher
from services.learner.training.samples import Measured, Sample

SPOT_CHECK_EVERY = 8


@dataclass
class Part:
    """A micro-batch with the constants of its step. All tensors are [token] float32."""

    read_batch: Callable[[], MicroBatch]
    weight: float = 1.0  # of each token in the means of metrics
    old_logprobs: Tensor | None = None  # None: those of the sampler or the current policy
    reference_logprobs: Tensor | None = None
    old_values: Tensor | None = None  # None while only the critic learns
    returns: Tensor | None = None

    @property
    def batch(self) -> MicroBatch:
        return self.read_batch()

    @cached_property
    def advantages(self) -> Tensor:
        return self.batch.advantages


@dataclass(frozen=True)
class MiniBatch:
    parts: list[Part]  # this rank's
    spot_checks: list[Part]  # this rank's
    totals: Totals  # of all ranks, with the samples that no part has
    is_first: bool  # of its step, so the policy has not changed yet


class Trainer:
    def __init__(self, recipe: Recipe, models: Models) -> None:
        algorithm = recipe.algorithm
        settings = formula_settings(recipe)
        self.recipe = recipe
        self.models = models
        self.device = models.policy.device
        self.temperature = recipe.rollout.sampling.temperature
        critic_folder = models.critic_folder if models.critic is not None else None
        self.estimate_work = estimate_work(models.policy_folder, critic_folder)
        self.objective = pick(OBJECTIVES, algorithm.objective, settings)
        self.aggregation = pick(AGGREGATIONS, algorithm.aggregation, settings)
        self.correction = pick(CORRECTIONS, algorithm.correction, settings)
        self.divergence = pick(DIVERGENCES, algorithm.divergence, settings)
        if models.critic is not None:
            self.estimate = pick(CRITIC_ADVANTAGES, algorithm.advantage, settings)
        self.needs_all = (
            models.critic is not None
            or algorithm.divergence_weight > 0
            or algorithm.entropy_weight > 0
            or algorithm.whiten
            or not vanishes_without_advantage(self.objective)
        )

    def train(self, samples: Sequence[Sample]) -> Measured:
        """Make a training step; return the metrics of all ranks.

        The metric ``updates`` counts the updates of the policy: one for each mini-batch with finite
        loss and gradient. ``trained_share`` is the share of the samples' tokens that a backward
        pass has computed: only of samples with a signal, and a shared prompt once.
        """
        metrics = self._new_metrics(samples)
        updates_before = self.models.policy.updates
        with Prefetcher() as prefetcher:
            mini_batches = self._mini_batches(samples, metrics, prefetcher)
            self._prepare(mini_batches, metrics)
            for mini_batch in mini_batches:
                if self.models.critic is not None:
                    self._improve_critic(self.models.critic, mini_batch, metrics)
                self._improve_policy(mini_batch, metrics)
            for part in _all_parts(mini_batches):
                _note_advantages(metrics, part)
            _note_trained_share(metrics, mini_batches, samples)
        updates = {"updates": float(self.models.policy.updates - updates_before)}
        return Measured(metrics.reduced(len(mini_batches)) | updates, metrics.tokens())

    def rehearse(self, samples: Sequence[Sample]) -> None:
        """Train on samples without an update, to check that a step fits into the memory."""
        with self.models.rehearsing():
            self.train(samples)

    def pretrain(self, samples: Sequence[Sample]) -> Measured:
        """Make a step of only the critic, on Monte-Carlo returns; return the metrics of all ranks.

        Value pretraining of VC-PPO (arXiv:2503.01491), section 4.1: lambda is 1. Values are not
        clipped, since there is no policy to stay close to.
        """
        assert self.models.critic is not None, "the recipe has no critic"
        metrics = self._new_metrics(samples)
        with Prefetcher() as prefetcher:
            mini_batches = self._mini_batches(samples, metrics, prefetcher)
            self._set_monte_carlo_returns(_all_parts(mini_batches))
            for mini_batch in mini_batches:
                self._improve_critic(self.models.critic, mini_batch, metrics)
            _note_trained_share(metrics, mini_batches, samples)
        return Measured(metrics.reduced(len(mini_batches)))

    def score(
        self, samples: Sequence[Sample], temperature: float, *, use_snapshot: bool
    ) -> Measured:
        """Compare log-probs of the policy, or of its snapshot, with those of the sampler."""
        metrics = self._new_metrics(samples)
        policy = self.models.policy
        snapshot = self.models.snapshot.swapped_in() if use_snapshot else nullcontext()
        with snapshot, policy.frozen(), Prefetcher() as prefetcher:
            for read_batch in self._select_share(samples, prefetcher):
                batch = read_batch()
                logprobs, entropies = self.models.policy(batch, temperature)
                _note_parity(metrics, batch, logprobs)
                metrics.note_tokens(batch.places, entropies=entropies)
        return Measured(metrics.reduced(0), metrics.tokens())

    def _new_metrics(self, samples: Sequence[Sample]) -> StepMetrics:
        num_tokens = sum(sample.num_own for sample in samples)
        return StepMetrics(self.device, num_tokens, copies=self.models.group.size)

    def _improve_policy(self, mini_batch: MiniBatch, metrics: StepMetrics) -> None:
        def compute_loss(part: Part) -> Tensor:
            return self._policy_loss(part, mini_batch, metrics)

        if mini_batch.spot_checks:
            with self.models.policy.frozen():
                for part in mini_batch.spot_checks:
                    compute_loss(part)
        metrics.note_update(grad_norm=self.models.policy.update(mini_batch.parts, compute_loss))

    def _policy_loss(self, part: Part, mini_batch: MiniBatch, metrics: StepMetrics) -> Tensor:
        algorithm = self.recipe.algorithm
        batch = part.batch
        with metrics.own_time():
            logprobs, entropies = self.models.policy(batch, self.temperature)  # both [token]
        old = part.old_logprobs
        if old is None:
            old = logprobs.detach() if self._recomputes else batch.behavior_logprobs
        tokens = TokenBatch(logprobs, old, part.advantages, batch.sample_of)
        losses, bound = self.objective(tokens)
        corrections = self.correction(old, batch.behavior_logprobs, batch.sample_of)
        losses = corrections * losses + self._regularization(part, logprobs, entropies, metrics)
        loss = (self.aggregation(tokens.lengths, mini_batch.totals) * losses).sum()
        if algorithm.positive_lm_weight > 0:
            nll = positive_nll(
                logprobs,
                batch.correct[batch.sample_of],
                num_positive_tokens=mini_batch.totals.positive_tokens,
            )
            loss = loss + algorithm.positive_lm_weight * nll
            metrics.note_share(positive_nll=nll)
        _note_policy(metrics, part.weight, loss, entropies, bound, corrections)
        metrics.note_tokens(batch.places, entropies=entropies)
        if mini_batch.is_first:
            _note_parity(metrics, batch, logprobs, part.weight)
        elif part.old_logprobs is None:  # those of before the first update are unknown
            metrics.note_tokens(batch.places, logprobs=torch.full_like(old, math.nan))
        # The second term keeps every parameter in the graph of an empty micro-batch.
        return loss + 0.0 * logprobs.sum()

    def _regularization(
        self, part: Part, logprobs: Tensor, entropies: Tensor, metrics: StepMetrics
    ) -> Tensor:
        """Return the recipe's addition to each token's loss: divergence minus entropy, [token]."""
        algorithm = self.recipe.algorithm
        added = torch.zeros_like(logprobs)
        if part.reference_logprobs is not None:
            divergence = self.divergence(logprobs, part.reference_logprobs)
            metrics.note_mean(divergence=divergence)
            added = added + algorithm.divergence_weight * divergence
        if algorithm.entropy_weight > 0:
            added = added - algorithm.entropy_weight * entropies
        return added

    def _improve_critic(self, critic: Engine, mini_batch: MiniBatch, metrics: StepMetrics) -> None:
        assert self.recipe.critic is not None
        value_clip = self.recipe.critic.value_clip

        def compute_loss(part: Part) -> Tensor:
            with metrics.own_time():
                values = critic(part.batch)
            returns = part.returns
            assert returns is not None
            if part.old_values is None:
                losses = value_loss(values, values.detach(), returns, value_clip=None)
            else:
                losses = value_loss(values, part.old_values, returns, value_clip=value_clip)
            metrics.note_mean(value_loss=losses, value_mean=values, return_mean=returns)
            metrics.note_explained(returns, values)
            return losses.sum() / max(1, mini_batch.totals.tokens)

        metrics.note_update(critic_grad_norm=critic.update(mini_batch.parts, compute_loss))

    def _mini_batches(
        self, samples: Sequence[Sample], metrics: StepMetrics, prefetcher: Prefetcher
    ) -> list[MiniBatch]:
        """Return this rank's share of a step, one mini-batch per update."""
        split = mini_batches(samples, self.recipe.training.updates_per_batch)
        return [
            self._mini_batch(part, metrics, prefetcher, is_first=index == 0)
            for index, part in enumerate(split)
        ]

    def _mini_batch(
        self,
        samples: Sequence[Sample],
        metrics: StepMetrics,
        prefetcher: Prefetcher,
        *,
        is_first: bool,
    ) -> MiniBatch:
        learned = [sample for sample in samples if self._has_signal(sample)]
        idle = [sample for sample in samples if not self._has_signal(sample)]
        checked = idle[::SPOT_CHECK_EVERY]
        weight = count_totals(idle).tokens / max(1, count_totals(checked).tokens)
        metrics.note_missing([s for n, s in enumerate(idle) if n % SPOT_CHECK_EVERY])
        # Spot checks are computed first, so they are collated first.
        spot_checks = self._parts(checked, prefetcher, weight) if checked else []
        return MiniBatch(
            parts=self._parts(learned, prefetcher),
            spot_checks=spot_checks,
            totals=count_totals(samples),
            is_first=is_first,
        )

    def _has_signal(self, sample: Sample) -> bool:
        learns_text = sample.correct and self.recipe.algorithm.positive_lm_weight > 0
        return self.needs_all or sample.advantage != 0 or learns_text

    def _parts(
        self, samples: Sequence[Sample], prefetcher: Prefetcher, weight: float = 1.0
    ) -> list[Part]:
        return [Part(batch, weight) for batch in self._select_share(samples, prefetcher)]

    def _select_share(
        self, samples: Sequence[Sample], prefetcher: Prefetcher
    ) -> list[Callable[[], MicroBatch]]:
        size = self.models.group.size
        group = torch.distributed.get_rank() // size
        num_groups = torch.distributed.get_world_size() // size
        max_tokens = self.recipe.training.micro_batch_tokens * size
        parts = micro_batches(samples, max_tokens, num_groups, self.estimate_work)
        parts = parts or [[]] * num_groups
        return [prefetcher.add(partial(self._collate, part)) for part in parts[group::num_groups]]

    def _collate(self, samples: Sequence[Sample]) -> MicroBatch:
        return collate(samples, shares_prompts=self.models.shares_prompts).to(self.device)

    @property
    def _recomputes(self) -> bool:
        return self.recipe.algorithm.old_logprobs == "recompute"

    def _prepare(self, mini_batches: Sequence[MiniBatch], metrics: StepMetrics) -> None:
        parts = _all_parts(mini_batches)
        for part in parts:
            if self._recomputes and len(mini_batches) > 1:
                with self.models.policy.frozen():
                    logprobs, _ = self.models.policy(part.batch, self.temperature)
                metrics.note_tokens(part.batch.places, logprobs=logprobs)
                part.old_logprobs = logprobs
            if self.models.reference is not None:
                part.reference_logprobs, _ = self.models.reference(part.batch, self.temperature)
        if self.models.critic is not None:
            self._estimate_advantages(self.models.critic, parts)
        if self.recipe.algorithm.whiten:
            _whiten(parts, copies=self.models.group.size)

    def _estimate_advantages(self, critic: Engine, parts: Sequence[Part]) -> None:
        """Estimate all responses together, since the estimate loops over tokens."""
        with critic.frozen():
            values = [critic(part.batch) for part in parts]
        if parts:
            advantages, returns = self.estimate(_episodes(parts, values))
            rows = [part.batch.num_samples for part in parts]
            for part, old_values, *padded in zip(
                parts, values, advantages.split(rows), returns.split(rows), strict=True
            ):
                part.old_values = old_values
                part.advantages, part.returns = map(part.batch.to_tokens, padded)

    def _set_monte_carlo_returns(self, parts: Sequence[Part]) -> None:
        """Set returns to the discounted rewards that follow; at lambda 1 they need no values."""
        if parts:
            nothing = [torch.zeros_like(part.batch.behavior_logprobs) for part in parts]
            gamma = self.recipe.algorithm.gamma
            returns = lambda_returns(_episodes(parts, nothing), gamma=gamma, lambda_=1.0)
            rows = [part.batch.num_samples for part in parts]
            for part, padded in zip(parts, returns.split(rows), strict=True):
                part.returns = part.batch.to_tokens(padded)


def _all_parts(mini_batches: Sequence[MiniBatch]) -> list[Part]:
    return [
        part for mini_batch in mini_batches for part in (*mini_batch.parts, *mini_batch.spot_checks)
    ]


def _episodes(parts: Sequence[Part], values: Sequence[Tensor]) -> Episodes:
    """Return the responses of micro-batches, rewarded at the last token; ``values`` are [token]."""
    batches = [part.batch for part in parts]
    width = max(batch.longest for batch in batches)
    last = [batch.last_tokens for batch in batches]
    rewards = [
        torch.where(is_last, batch.rewards[batch.sample_of], 0.0)
        for batch, is_last in zip(batches, last, strict=True)
    ]

    def lay_out(tokens: Sequence[Tensor]) -> Tensor:
        rows = [batch.to_rows(values, width) for batch, values in zip(batches, tokens, strict=True)]
        return torch.cat(rows)

    return Episodes(
        rewards=lay_out(rewards),
        values=lay_out(values),
        mask=lay_out([torch.ones_like(is_last) for is_last in last]),
    )


def _whiten(parts: Sequence[Part], copies: int) -> None:
    """Whiten a step's advantages over the tokens of all ranks; ``copies`` ranks share tokens."""

    def add_up(value: Tensor) -> Tensor:
        torch.distributed.all_reduce(value)
        return value / copies

    if parts:
        sizes = [part.advantages.numel() for part in parts]
        white = whitened(torch.cat([part.advantages for part in parts]), add_up)
        for part, advantages in zip(parts, white.split(sizes), strict=True):
            part.advantages = advantages


def _note_advantages(metrics: StepMetrics, part: Part) -> None:
    advantages = part.advantages
    metrics.note_mean(part.weight, advantage_mean=advantages, advantage_abs_mean=advantages.abs())
    metrics.note_tokens(part.batch.places, token_advantages=advantages)


def _note_trained_share(
    metrics: StepMetrics, mini_batches: Sequence[MiniBatch], samples: Sequence[Sample]
) -> None:
    num_tokens = sum(len(s.prompt_ids) + len(s.token_ids) for s in samples)
    for part in (part for mini_batch in mini_batches for part in mini_batch.parts):
        metrics.note_count(trained_share=len(part.batch.input_ids) / num_tokens)


def _note_policy(
    metrics: StepMetrics,
    weight: float,
    loss: Tensor,
    entropies: Tensor,
    bound: Tensor,
    corrections: Tensor,
) -> None:
    metrics.note_share(loss=loss)
    metrics.note_mean(
        weight,
        entropy=entropies,
        clip_fraction=(bound != 0),
        clip_fraction_low=(bound < 0),
        clip_fraction_high=(bound > 0),
        correction_mean=corrections,
    )


def _note_parity(
    metrics: StepMetrics, batch: MicroBatch, logprobs: Tensor, weight: float = 1.0
) -> None:
    """Note the distance to the sampler's log-probs, on all tokens and on this version's."""
    gaps = batch.behavior_logprobs - logprobs.detach()
    version_gaps = gaps[batch.on_version].abs()
    metrics.note_mean(weight, mismatch_kl=gaps, parity_mean=version_gaps)
    metrics.note_count(parity_tokens=version_gaps.numel())
    metrics.note_maximum(parity_max=version_gaps)
    metrics.note_tokens(batch.places, logprobs=logprobs)
