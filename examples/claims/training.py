"""Training many runs at once: every arm of a claim with every seed, by the learner's formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from protocol.recipe import Algorithm, Reward
from torch import Tensor

from examples.claims.chains import STATE_SIZES, VOCABULARY, Dials, Played, features, judge, play
from examples.claims.nets import Nets, imitations, tasks
from services.learner.algorithms import pick
from services.learner.algorithms.advantages import ADVANTAGES, GroupScores
from services.learner.algorithms.gae import (
    CRITIC_ADVANTAGES,
    Episodes,
    lambda_returns,
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
    """A way to train, in a recipe's words."""

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
    """Tasks, and the steps and learning rates of all arms."""

    dials: Dials
    steps: int = 100
    responses: int = 64  # that a step trains on
    updates: int = 2  # per step
    learning_rate: float = 3e-3
    critic_learning_rate: float = 3e-3
    oversampling: int = 3  # factor of the sampled responses if an arm drops groups


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
    """The responses of a step with their rewards and advantages."""

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
        """Return the responses at these places of each run, [run, row]."""
        run = torch.arange(rows.shape[0])[:, None]
        tensors = {name: value for name, value in vars(self).items() if name != "played"}
        selected = {name: value[run, rows] for name, value in tensors.items()}
        return Batch(played=self.played.rows(rows), **selected)


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
        self.policy.copy_weights(imitations(self.dials, tuple(self.seeds)))
        self.critic = self._first_critic(seeds)
        self.policy_optimizer = torch.optim.Adam(self.policy.weights, self.world.learning_rate)
        self._restart_critic_optimizer()

    def run(self) -> dict[str, Tensor]:
        """Train and return the metrics, each [step, run]."""
        if any(arm.has_critic for arm in self.arms.values()):
            self._pretrain()
        for _ in range(self.world.steps):
            self._step()
        return {name: torch.stack(values) for name, values in self.history.items()}

    def _step(self) -> None:
        batch = self._estimate(self._select(self._sample()))
        for part in self._mini_batches(batch):
            self._improve_critic(part, [arm.has_critic for arm, _ in self.runs])
            self._improve_policy(part)

    def _mini_batches(self, batch: Batch) -> Iterator[Batch]:
        runs, responses = batch.rewards.shape
        # A mini-batch has responses of many groups, with the dropped ones spread.
        for first in range(self.world.updates):
            rows = torch.arange(first, responses, self.world.updates)
            yield batch.rows(rows.expand(runs, -1))

    def _sample(self) -> Batch:
        """Sample the responses of a step, and more of them if an arm drops groups."""
        drops = any(arm.dynamic_sampling for arm in self.arms.values())
        number = self.world.responses * (self.world.oversampling if drops else 1)
        drawn = {seed: tasks(number, self.dials, rng) for seed, rng in self.tasks.items()}
        digits = torch.stack(
            [drawn[seed].repeat_interleave(arm.group_size, 0)[:number] for arm, seed in self.runs]
        )
        with torch.no_grad():
            played = play(self.policy.logprobs, digits, self.dials, self.generator)
        lucky = torch.rand(played.right.shape, generator=self.generator) < self.dials.luck
        correct = played.right | (played.ended & lucky)
        scores = judge(played, self.dials, self.generator)
        self._note_responses(played, scores)
        rewards, advantages, dropped = self._compare(played, correct, scores)
        filters = torch.tensor([arm.reward.overlong_filter for arm, _ in self.runs])
        trained = ~dropped & (played.ended | ~filters[:, None])
        zeros = torch.zeros(played.mask.shape)
        return Batch(
            played=played,
            features=features(played.states),
            rewards=rewards,
            correct=correct,
            in_loss=played.mask & trained[..., None],
            dropped=dropped,
            advantages=advantages[..., None].expand(zeros.shape),
            values=zeros,
            returns=zeros,
        )

    def _compare(
        self, played: Played, correct: Tensor, process: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards, group advantages, and the drops of dynamic sampling: [run, response]."""
        rewards, advantages = torch.zeros(2, *correct.shape, dtype=torch.float64)
        dropped = torch.zeros_like(correct)
        silent = torch.zeros(len(self.runs))
        for run, (arm, _) in enumerate(self.runs):
            scores = self._scores(arm, run, played, correct, process)
            rewards[run] = scores.reward
            if arm.has_critic:
                continue
            advantage = arm.formulas["advantage"]
            size = arm.group_size
            groups = [_slice(scores, first, size) for first in range(0, len(scores), size)]
            advantages[run] = torch.cat([advantage(group) for group in groups])
            signal = torch.tensor([has_signal(group, advantage) for group in groups])
            silent[run] = 1 - signal.float().mean()
            if arm.dynamic_sampling:
                dropped[run] = ~signal.repeat_interleave(size)
        self._note(silent=silent)
        return rewards.float(), advantages.float(), dropped

    def _scores(
        self, arm: Arm, run: int, played: Played, correct: Tensor, process: Tensor
    ) -> GroupScores:
        is_judged = correct[run] | (arm.reward.process_for == "all")
        lengths = played.lengths[run].double()
        buffer = arm.reward.overlong_buffer
        penalty = torch.zeros_like(lengths)
        if buffer is not None:
            penalty = overlong_penalty(lengths, limit=self.dials.max_tokens, buffer=buffer)
        return GroupScores(
            outcome=outcome_rewards(correct[run].double(), arm.reward.values),
            correct=correct[run],
            process=process[run].double().masked_fill(~is_judged, torch.nan),
            penalty=penalty,
        )

    def _select(self, batch: Batch) -> Batch:
        """Return the responses of a step, with dropped ones only if others are too few."""
        rows = batch.dropped.int().argsort(dim=1, stable=True)
        return batch.rows(rows[:, : self.world.responses])

    def _estimate(self, batch: Batch) -> Batch:
        """Add the critic's advantages and returns for arms that have one."""
        mask = batch.played.mask
        if not any(arm.has_critic for arm in self.arms.values()):
            return batch
        with torch.no_grad():
            values = self._values(batch)
        advantages = batch.advantages.clone()
        returns = torch.zeros(mask.shape)
        episodes = _episodes(batch, values)
        for index, arm in enumerate(self.arms.values()):
            if arm.has_critic:
                runs = slice(index * len(self.seeds), (index + 1) * len(self.seeds))
                arm_episodes = Episodes(*(t[runs].flatten(0, 1) for t in vars(episodes).values()))
                arm_advantages, arm_returns = arm.formulas["advantage"](arm_episodes)
                advantages[runs] = arm_advantages.view(mask[runs].shape)
                returns[runs] = arm_returns.view(mask[runs].shape)
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
        mask = batch.played.mask
        values = self._values(batch)
        losses = value_loss(values, values.detach(), batch.returns, value_clip=None) * mask
        run_losses = losses.sum((1, 2)) / mask.sum((1, 2))
        _update(self.critic, self.critic_optimizer, run_losses[torch.tensor(learns)].sum())

    def _values(self, batch: Batch) -> Tensor:
        rows = batch.features.flatten(1, 2)
        if not self.dials.critic_sees_mistakes:
            rows = rows.clone()
            rows[..., -STATE_SIZES[-1] :] = 0.0
        return self.critic(rows).view(batch.in_loss.shape)

    def _pretrain(self) -> None:
        """Fit the critics of arms with pretraining to the returns of the untrained policy."""
        for step in range(max(arm.pretrain_steps for arm in self.arms.values())):
            batch = self._sample().rows(
                torch.arange(self.world.responses).expand(len(self.runs), -1)
            )
            episodes = _episodes(batch, torch.zeros(batch.in_loss.shape))
            flat = Episodes(*(tensor.flatten(0, 1) for tensor in vars(episodes).values()))
            returns = lambda_returns(flat, gamma=1.0, lambda_=1.0).view(batch.in_loss.shape)
            for part in self._mini_batches(replace(batch, returns=returns.float())):
                self._improve_critic(part, [step < arm.pretrain_steps for arm, _ in self.runs])
        self.history.clear()
        # Arms with less pretraining would inherit the optimizer's steps.
        self._restart_critic_optimizer()

    def _restart_critic_optimizer(self) -> None:
        rate = self.world.critic_learning_rate
        self.critic_optimizer = torch.optim.Adam(self.critic.weights, rate)

    def _first_critic(self, seeds: Sequence[int]) -> Nets:
        """Return a critic that predicts 0 or -1, starts as noise, or is a reward model."""
        critic = Nets(seeds, 1, head=0.1 if self.dials.critic == "noise" else 0.0)
        if self.dials.critic == "low":
            critic.weights[-1].data -= 1.0
        if self.dials.critic == "reward_model":
            critic.copy_weights(_reward_models(self.dials, tuple(self.seeds)))
        return critic

    def _note_responses(self, played: Played, scores: Tensor) -> None:
        logprobs = self.policy.logprobs(played.states).detach()
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        tokens = played.mask.sum((1, 2))
        self._note(
            accuracy=played.right.float().mean(1),
            judge=scores.mean(1),
            length=tokens / played.mask.shape[1],
            entropy=(entropies * played.mask).sum((1, 2)) / tokens,
        )

    def _note(self, **metrics: Tensor) -> None:
        for name, value in metrics.items():
            self.history.setdefault(name, []).append(value.detach())


def _policy_loss(arm: Arm, batch: Batch, run: int, chosen: Tensor) -> Tensor:
    """Return the learner's loss: objective, aggregation, and the likelihood of right answers."""
    in_loss = batch.in_loss[run]
    sequence = torch.arange(in_loss.shape[0])[:, None].expand(in_loss.shape)[in_loss]
    logprobs = chosen[in_loss]
    tokens = TokenBatch(
        logprobs=logprobs,
        old_logprobs=batch.played.logprobs[run][in_loss],
        advantages=batch.advantages[run][in_loss],
        sequence=sequence,
    )
    correct = batch.correct[run][sequence]
    totals = Totals(len(logprobs), int(in_loss.any(-1).sum()), int(correct.sum()))
    losses, _ = arm.formulas["objective"](tokens)
    loss = (arm.formulas["aggregation"](tokens.lengths, totals) * losses).sum()
    if arm.algorithm.positive_lm_weight > 0:
        nll = positive_nll(logprobs, correct, num_positive_tokens=totals.positive_tokens)
        loss = loss + arm.algorithm.positive_lm_weight * nll
    return loss


def _episodes(batch: Batch, values: Tensor) -> Episodes:
    """Return episodes with the reward at the last token."""
    last = batch.played.lengths - 1
    rewards = torch.zeros(values.shape).scatter(2, last[..., None], batch.rewards[..., None])
    return Episodes(rewards, values, batch.played.mask)


def _slice(scores: GroupScores, first: int, size: int) -> GroupScores:
    group = slice(first, first + size)
    return GroupScores(
        outcome=scores.outcome[group],
        correct=scores.correct[group],
        process=scores.process[group],
        penalty=scores.penalty[group],
    )


def _update(nets: Nets, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Make one update of every run, with gradients clipped to a norm of 1 per run."""
    optimizer.zero_grad()
    loss.backward()
    gradients = [weight.grad for weight in nets.weights if weight.grad is not None]
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]
    norms = torch.stack(squares).sum(0).sqrt()
    for gradient in gradients:
        gradient *= (1 / norms.clamp(min=1.0)).view(-1, 1, 1)
    optimizer.step()


def _reward_models(dials: Dials, seeds: tuple[int, ...], updates: int = 200) -> Nets:
    """Train models that predict the outcome before a response's last token, and 0 before others.

    So they call unfinished responses wrong. They cannot judge the answer, which no state shows.
    """
    base = imitations(dials, seeds)
    nets = Nets(seeds, 1, head=0.0)
    optimizer = torch.optim.Adam(nets.weights, 1e-2)
    generator = torch.Generator().manual_seed(seeds[0])
    for _ in range(updates):
        digits = torch.stack([tasks(64, dials, generator) for _ in seeds])
        with torch.no_grad():
            played = play(base.logprobs, digits, dials, generator)
        last = torch.zeros(played.mask.shape).scatter(2, played.lengths[..., None] - 1, 1.0)
        target = last * played.right[..., None]
        values = nets(features(played.states).flatten(1, 2)).view(target.shape)
        losses = (values - target).square() * played.mask
        _update(nets, optimizer, (losses.sum((1, 2)) / played.mask.sum((1, 2))).sum())
    return nets
