"""Training many runs at once: every arm of a claim with every seed, by the learner's formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from protocol.recipe import Algorithm, Reward
from torch import Tensor

from examples.claims.chains import STATE_SIZES, VOCABULARY, Dials, Played, features, judged, play
from examples.claims.nets import Nets, imitations, tasks
from services.learner.algorithms import pick
from services.learner.algorithms.advantages import ADVANTAGES, GroupScores
from services.learner.algorithms.gae import (
    CRITIC_ADVANTAGES,
    Episodes,
    returns_of,
    value_loss,
)
from services.learner.algorithms.loss import (
    AGGREGATIONS,
    OBJECTIVES,
    TokenBatch,
    Totals,
    positive_nll,
)
from services.learner.algorithms.shaping import (
    has_signal,
    outcome_rewards,
    overlong_penalty,
)

Histories = Mapping[str, Mapping[str, np.ndarray]]  # by arm and metric, each [step, seed]


@dataclass(frozen=True)
class Arm:
    """A way of training, in a recipe's words."""

    algorithm: Algorithm
    reward: Reward
    group_size: int = 8
    dynamic_sampling: bool = False
    pretrain_steps: int = 0

    @property
    def has_critic(self) -> bool:
        return self.algorithm.advantage in CRITIC_ADVANTAGES

    @cached_property
    def formulas(self) -> dict[str, Callable]:
        settings = self.algorithm.model_dump()
        tables = {
            "advantage": CRITIC_ADVANTAGES if self.has_critic else ADVANTAGES,
            "objective": OBJECTIVES,
            "aggregation": AGGREGATIONS,
        }
        return {name: pick(table, settings[name], settings) for name, table in tables.items()}


@dataclass(frozen=True)
class World:
    """Tasks, and how long and fast all arms train on them."""

    dials: Dials
    steps: int = 100
    responses: int = 64  # of a step that are trained on
    updates: int = 2  # of a step
    learning_rate: float = 3e-3
    critic_learning_rate: float = 3e-3
    oversampling: int = 3  # so many times as many responses are sampled where an arm drops groups


def train(world: World, arms: Mapping[str, Arm], seeds: Sequence[int]) -> Histories:
    """Train every arm with every seed."""
    metrics = Training(world, arms, seeds).run()
    size = len(seeds)
    return {
        arm: {name: values[:, i * size :][:, :size].numpy() for name, values in metrics.items()}
        for i, arm in enumerate(arms)
    }


@dataclass(frozen=True)
class Batch:
    """The responses of a step; what becomes of each, or of each of its tokens."""

    played: Played
    features: Tensor  # [run, response, token, feature]
    rewards: Tensor  # [run, response]
    correct: Tensor  # [run, response] bool
    in_loss: Tensor  # bool, [run, response, token]
    dropped: Tensor  # bool, [run, response], by dynamic sampling
    advantages: Tensor  # [run, response, token]
    values: Tensor
    returns: Tensor

    def rows(self, rows: Tensor) -> Batch:
        """The responses at these places of each run, [run, row]."""
        run = torch.arange(rows.shape[0])[:, None]
        own = {name: value[run, rows] for name, value in vars(self).items() if name != "played"}
        return Batch(played=self.played.rows(rows), **own)


@dataclass
class Training:
    """All arms with all seeds in a world; a run is one arm with one seed."""

    world: World
    arms: Mapping[str, Arm]
    seeds: Sequence[int]
    history: dict[str, list[Tensor]] = field(default_factory=dict)  # by metric: per step, [run]

    def __post_init__(self) -> None:
        self.dials = self.world.dials
        self.runs = [(arm, seed) for arm in self.arms.values() for seed in self.seeds]
        self.generator = torch.Generator().manual_seed(1_000 + self.seeds[0])
        self.tasks = {seed: torch.Generator().manual_seed(seed) for seed in self.seeds}
        seeds = [seed for _, seed in self.runs]
        self.policy = Nets(seeds, VOCABULARY)
        self.policy.set_to(imitations(self.dials, tuple(self.seeds)))
        self.critic = self._first_critic(seeds)
        self.policy_optimizer = torch.optim.Adam(self.policy.weights, self.world.learning_rate)
        self._restart_critic_optimizer()

    def run(self) -> dict[str, Tensor]:
        """Train; the metrics, each [step, run]."""
        if any(arm.has_critic for arm in self.arms.values()):
            self._pretrain()
        for _ in range(self.world.steps):
            self._step()
        return {name: torch.stack(values) for name, values in self.history.items()}

    def _step(self) -> None:
        batch = self._estimated(self._selected(self._sampled()))
        for part in self._mini_batches(batch):
            self._improve_critic(part, [arm.has_critic for arm, _ in self.runs])
            self._improve_policy(part)

    def _mini_batches(self, batch: Batch) -> Iterator[Batch]:
        runs, responses = batch.rewards.shape
        for first in range(self.world.updates):  # of many groups, and dropped ones spread
            rows = torch.arange(first, responses, self.world.updates)
            yield batch.rows(rows.expand(runs, -1))

    def _sampled(self) -> Batch:
        """Responses of a step, and more of them where an arm drops groups."""
        drops = any(arm.dynamic_sampling for arm in self.arms.values())
        number = self.world.responses * (self.world.oversampling if drops else 1)
        drawn = {seed: tasks(number, self.dials, each) for seed, each in self.tasks.items()}
        digits = torch.stack(
            [drawn[seed].repeat_interleave(arm.group_size, 0)[:number] for arm, seed in self.runs]
        )
        with torch.no_grad():
            played = play(self.policy.logprobs, digits, self.dials, self.generator)
        lucky = torch.rand(played.right.shape, generator=self.generator) < self.dials.luck
        correct = played.right | (played.ended & lucky)
        judge = judged(played, self.dials, self.generator)
        self._note_responses(played, judge)
        rewards, advantages, dropped = self._compared(played, correct, judge)
        filters = torch.tensor([arm.reward.overlong_filter for arm, _ in self.runs])
        kept = ~dropped & (played.ended | ~filters[:, None])
        nothing = torch.zeros(played.mask.shape)
        return Batch(
            played=played,
            features=features(played.states),
            rewards=rewards,
            correct=correct,
            in_loss=played.mask & kept[..., None],
            dropped=dropped,
            advantages=advantages[..., None].expand(nothing.shape),
            values=nothing,
            returns=nothing,
        )

    def _compared(
        self, played: Played, correct: Tensor, judge: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards, advantages of groups, and which dynamic sampling drops: [run, response]."""
        rewards, advantages = torch.zeros(2, *correct.shape, dtype=torch.float64)
        dropped = torch.zeros_like(correct)
        silent = torch.zeros(len(self.runs))
        for run, (arm, _) in enumerate(self.runs):
            scores = self._scores(arm, run, played, correct, judge)
            rewards[run] = scores.reward
            if arm.has_critic:
                continue
            advantage, size = arm.formulas["advantage"], arm.group_size
            groups = [_part(scores, first, size) for first in range(0, len(scores), size)]
            advantages[run] = torch.cat([advantage(group) for group in groups])
            teaches = torch.tensor([has_signal(group, advantage) for group in groups])
            silent[run] = 1 - teaches.float().mean()
            if arm.dynamic_sampling:
                dropped[run] = ~teaches.repeat_interleave(size)
        self._note(silent=silent)
        return rewards.float(), advantages.float(), dropped

    def _scores(
        self, arm: Arm, run: int, played: Played, correct: Tensor, judge: Tensor
    ) -> GroupScores:
        asked = correct[run] | (arm.reward.process_for == "all")
        lengths, buffer = played.lengths[run].double(), arm.reward.overlong_buffer
        penalty = torch.zeros_like(lengths)
        if buffer is not None:
            penalty = overlong_penalty(lengths, limit=self.dials.max_tokens, buffer=buffer)
        return GroupScores(
            outcome=outcome_rewards(correct[run].double(), arm.reward.values),
            correct=correct[run],
            process=judge[run].double().masked_fill(~asked, torch.nan),
            penalty=penalty,
        )

    def _selected(self, batch: Batch) -> Batch:
        """As many responses as a step trains on, dropped ones only where others are too few."""
        rows = batch.dropped.int().argsort(dim=1, stable=True)
        return batch.rows(rows[:, : self.world.responses])

    def _estimated(self, batch: Batch) -> Batch:
        """With the critic's advantages and returns, where there is one."""
        mask = batch.played.mask
        if not any(arm.has_critic for arm in self.arms.values()):
            return batch
        with torch.no_grad():
            values = self._values(batch)
        advantages, returns = batch.advantages.clone(), torch.zeros(mask.shape)
        episodes = _episodes(batch, values)
        for index, arm in enumerate(self.arms.values()):
            if arm.has_critic:
                own = slice(index * len(self.seeds), (index + 1) * len(self.seeds))
                flat = Episodes(*(each[own].flatten(0, 1) for each in vars(episodes).values()))
                found = (each.view(mask[own].shape) for each in arm.formulas["advantage"](flat))
                advantages[own], returns[own] = found
        return replace(batch, advantages=advantages, values=values, returns=returns)

    def _improve_policy(self, batch: Batch) -> None:
        rows = batch.features.flatten(1, 2)
        logprobs = self.policy(rows).log_softmax(-1).view(*batch.in_loss.shape, -1)
        chosen = logprobs.gather(-1, batch.played.tokens[..., None])[..., 0]
        loss = torch.zeros(())
        for run, (arm, _) in enumerate(self.runs):
            loss = loss + _policy_loss(arm, batch, run, chosen[run])
        _update(self.policy, self.policy_optimizer, loss)

    def _improve_critic(self, batch: Batch, learns: Sequence[bool]) -> None:
        if not any(learns):
            return
        mask, values = batch.played.mask, self._values(batch)
        losses = value_loss(values, values.detach(), batch.returns, value_clip=None) * mask
        of_runs = losses.sum((1, 2)) / mask.sum((1, 2))
        _update(self.critic, self.critic_optimizer, of_runs[torch.tensor(learns)].sum())

    def _values(self, batch: Batch) -> Tensor:
        seen = batch.features.flatten(1, 2)
        if not self.dials.critic_sees_mistakes:
            seen = seen.clone()
            seen[..., -STATE_SIZES[-1] :] = 0.0
        return self.critic(seen).view(batch.in_loss.shape)

    def _pretrain(self) -> None:
        """Fit the critics that are pretrained to the returns of the policy as it is."""
        for step in range(max(arm.pretrain_steps for arm in self.arms.values())):
            batch = self._sampled().rows(
                torch.arange(self.world.responses).expand(len(self.runs), -1)
            )
            episodes = _episodes(batch, torch.zeros(batch.in_loss.shape))
            flat = Episodes(*(each.flatten(0, 1) for each in vars(episodes).values()))
            returns = returns_of(flat, gamma=1.0, lambda_=1.0).view(batch.in_loss.shape)
            for part in self._mini_batches(replace(batch, returns=returns.float())):
                self._improve_critic(part, [step < arm.pretrain_steps for arm, _ in self.runs])
        self.history.clear()
        self._restart_critic_optimizer()  # or arms that waited would inherit its steps

    def _restart_critic_optimizer(self) -> None:
        rate = self.world.critic_learning_rate
        self.critic_optimizer = torch.optim.Adam(self.critic.weights, rate)

    def _first_critic(self, seeds: Sequence[int]) -> Nets:
        """A critic that says 0 or -1 whatever it sees, starts as noise, or is a reward model."""
        critic = Nets(seeds, 1, head=0.1 if self.dials.critic == "noise" else 0.0)
        if self.dials.critic == "low":
            critic.weights[-1].data -= 1.0
        if self.dials.critic == "reward_model":
            critic.set_to(_reward_models(self.dials, tuple(self.seeds)))
        return critic

    def _note_responses(self, played: Played, judge: Tensor) -> None:
        logprobs = self.policy.logprobs(played.states).detach()
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        tokens = played.mask.sum((1, 2))
        self._note(
            accuracy=played.right.float().mean(1),
            judge=judge.mean(1),
            length=tokens / played.mask.shape[1],
            entropy=(entropies * played.mask).sum((1, 2)) / tokens,
        )

    def _note(self, **metrics: Tensor) -> None:
        for name, value in metrics.items():
            self.history.setdefault(name, []).append(value.detach())


def _policy_loss(arm: Arm, batch: Batch, run: int, chosen: Tensor) -> Tensor:
    """As the learner's step has it: objective, aggregation, and the likelihood of right answers."""
    kept = batch.in_loss[run]
    sequence = torch.arange(kept.shape[0])[:, None].expand(kept.shape)[kept]
    logprobs = chosen[kept]
    tokens = TokenBatch(
        logprobs=logprobs,
        old_logprobs=batch.played.logprobs[run][kept],
        advantages=batch.advantages[run][kept],
        sequence=sequence,
    )
    correct = batch.correct[run][sequence]
    totals = Totals(len(logprobs), int(kept.any(-1).sum()), int(correct.sum()))
    losses, _ = arm.formulas["objective"](tokens)
    loss = (arm.formulas["aggregation"](tokens.lengths, totals) * losses).sum()
    if arm.algorithm.positive_lm_weight > 0:
        nll = positive_nll(logprobs, correct, num_positive_tokens=totals.positive_tokens)
        loss = loss + arm.algorithm.positive_lm_weight * nll
    return loss


def _episodes(batch: Batch, values: Tensor) -> Episodes:
    """Each response rewarded at its last token."""
    last = batch.played.lengths - 1
    rewards = torch.zeros(values.shape).scatter(2, last[..., None], batch.rewards[..., None])
    return Episodes(rewards, values, batch.played.mask)


def _part(scores: GroupScores, first: int, size: int) -> GroupScores:
    own = slice(first, first + size)
    return GroupScores(
        outcome=scores.outcome[own],
        correct=scores.correct[own],
        process=scores.process[own],
        penalty=scores.penalty[own],
    )


def _update(nets: Nets, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One update of every run, whose gradients are clipped to a norm of 1 each."""
    optimizer.zero_grad()
    loss.backward()
    gradients = [weight.grad for weight in nets.weights if weight.grad is not None]
    norms = torch.stack([each.flatten(1).square().sum(1) for each in gradients]).sum(0).sqrt()
    for gradient in gradients:
        gradient *= (1 / norms.clamp(min=1.0)).view(-1, 1, 1)
    optimizer.step()


def _reward_models(dials: Dials, seeds: tuple[int, ...], updates: int = 200) -> Nets:
    """Learn outcomes of the base models' responses before their last tokens, and 0 before others.

    So a response that has not ended is a wrong one. What a state does not tell it cannot judge:
    the answer itself.
    """
    base, nets = imitations(dials, seeds), Nets(seeds, 1, head=0.0)
    optimizer = torch.optim.Adam(nets.weights, 1e-2)
    generator = torch.Generator().manual_seed(seeds[0])
    for _ in range(updates):
        digits = torch.stack([tasks(64, dials, generator) for _ in seeds])
        with torch.no_grad():
            played = play(base.logprobs, digits, dials, generator)
        last = torch.zeros(played.mask.shape).scatter(2, played.lengths[..., None] - 1, 1.0)
        wanted = last * played.right[..., None]
        values = nets(features(played.states).flatten(1, 2)).view(wanted.shape)
        losses = (values - wanted).square() * played.mask
        _update(nets, optimizer, (losses.sum((1, 2)) / played.mask.sum((1, 2))).sum())
    return nets
