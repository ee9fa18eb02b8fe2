"""VAPO with every term that a loss can have, in plain torch: a response at a time, all its logits.

Written from the papers' formulas, with nothing of the learner's: what `Trainer` must compute.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from services.learner.training.samples import Sample

TEMPERATURE = 0.9
CLIP_LOW, CLIP_HIGH, VALUE_CLIP, CORRECTION_CAP = 0.2, 0.28, 0.01, 2.0
DIVERGENCE, ENTROPY, POSITIVE_LM = 0.1, 0.01, 0.1
ALPHA = 0.05
LEARNING_RATE, WARMUP, WEIGHT_DECAY, MAX_NORM = 1e-3, 3, 0.01, 1.0


@dataclass
class Prepared:
    """What stays as it was when the step began. All are [token]."""

    old: Tensor
    reference: Tensor
    old_values: Tensor
    advantages: Tensor
    returns: Tensor


class PlainVapo:
    """A policy, its reference, a critic, and two optimizers."""

    def __init__(self, folder: Path) -> None:
        self.policy: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
        self.reference = copy.deepcopy(self.policy)
        self.body: PreTrainedModel = AutoModel.from_pretrained(folder)
        self.head = nn.Linear(self.body.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        critic = [*self.body.parameters(), *self.head.parameters()]
        self.learns_policy = Learns(list(self.policy.parameters()))
        self.learns_critic = Learns(critic)

    def pretrain(self, samples: Sequence[Sample]) -> None:
        for mini_batch in halves(samples):
            tokens = sum(s.num_own for s in mini_batch)

            def loss(s: Sample, tokens: int = tokens) -> Tensor:
                return 0.5 * (self.values(s) - s.reward).square().sum() / tokens

            self.learns_critic.from_losses(loss, mini_batch)

    def train(self, samples: Sequence[Sample]) -> None:
        with torch.no_grad():
            prepared = {id(s): self.prepare(s) for s in samples}
        whiten([prepared[id(s)] for s in samples])
        for mini_batch in halves(samples):
            tokens = sum(s.num_own for s in mini_batch)
            positive = sum(s.num_own for s in mini_batch if s.correct)

            def critic_loss(s: Sample, tokens: int = tokens) -> Tensor:
                return self.critic_loss(s, prepared[id(s)]) / tokens

            def policy_loss(
                s: Sample,
                tokens: int = tokens,
                positive: int = positive,
            ) -> Tensor:
                return self.policy_loss(s, prepared[id(s)], tokens, positive)

            self.learns_critic.from_losses(critic_loss, mini_batch)
            self.learns_policy.from_losses(policy_loss, mini_batch)

    def prepare(self, sample: Sample) -> Prepared:
        values = self.values(sample)
        v, length = values.tolist(), len(values)
        lambda_ = max(0.0, 1 - 1 / (ALPHA * length))
        advantages = [0.0] * length
        for t in range(length):
            for k in range(t, length):
                reward = sample.reward if k == length - 1 else 0.0
                following = v[k + 1] if k + 1 < length else 0.0
                advantages[t] += lambda_ ** (k - t) * (reward + following - v[k])
        return Prepared(
            old=logprobs(self.policy, sample)[0],
            reference=logprobs(self.reference, sample)[0],
            old_values=values,
            advantages=torch.tensor(advantages),
            returns=torch.full((length,), sample.reward),  # lambda 1: Monte-Carlo
        )

    def critic_loss(self, sample: Sample, step: Prepared) -> Tensor:
        values = self.values(sample)
        near = torch.maximum(
            torch.minimum(values, step.old_values + VALUE_CLIP), step.old_values - VALUE_CLIP
        )
        errors = (values - step.returns).square(), (near - step.returns).square()
        return 0.5 * torch.maximum(*errors).sum()

    def policy_loss(self, sample: Sample, step: Prepared, tokens: int, positive: int) -> Tensor:
        new, distribution = logprobs(self.policy, sample)
        ratio = (new - step.old).exp()
        gain = clip_gain(ratio, step.advantages)
        behavior = torch.from_numpy(sample.behavior_logprobs)
        weight = (step.old - behavior).exp().clamp(max=CORRECTION_CAP)
        odds = (step.reference - new).exp()
        divergence = odds - odds.log() - 1
        entropy = -(distribution.exp() * distribution).sum(-1)
        loss = (-weight * gain + DIVERGENCE * divergence - ENTROPY * entropy).sum() / tokens
        return loss - POSITIVE_LM * new.sum() / positive if sample.correct else loss

    def values(self, sample: Sample) -> Tensor:
        hidden = self.body(ids_of(sample)).last_hidden_state[0]
        return self.head(hidden)[len(sample.prompt_ids) - 1 : -1, 0][sample.own_places]

    def parameters(self) -> dict[str, Tensor]:
        """By the names under which the learner exports them."""
        parts = {
            "model.safetensors": self.policy,
            "critic/model.safetensors": self.body,
            "critic/value_head.safetensors": self.head,
        }
        return {
            f"{file}:{name}": parameter.detach()
            for file, part in parts.items()
            for name, parameter in part.named_parameters()
        }


class Learns:
    """AdamW with warm-up and clipping."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.optimizer = torch.optim.AdamW(parameters, lr=0, weight_decay=WEIGHT_DECAY)
        self.updates = 0

    def from_losses(
        self, compute_loss: Callable[[Sample], Tensor], samples: Sequence[Sample]
    ) -> None:
        self.optimizer.zero_grad()
        for sample in samples:
            compute_loss(sample).backward()
        nn.utils.clip_grad_norm_(self.parameters, MAX_NORM)
        self.updates += 1
        self.optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1, self.updates / WARMUP)
        self.optimizer.step()


def logprobs(model: PreTrainedModel, sample: Sample) -> tuple[Tensor, Tensor]:
    """Of the policy's own tokens, [token], and of all tokens there, [token, vocabulary]."""
    logits = model(ids_of(sample)).logits[0, len(sample.prompt_ids) - 1 : -1]
    distribution = torch.log_softmax(logits / TEMPERATURE, -1)[sample.own_places]
    return distribution[range(sample.num_own), sample.token_ids[sample.own_places]], distribution


def clip_gain(ratio: Tensor, advantages: Tensor | float) -> Tensor:
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    return torch.minimum(ratio * advantages, clipped * advantages)


def ids_of(sample: Sample) -> Tensor:
    return torch.tensor([[*sample.prompt_ids.tolist(), *sample.token_ids.tolist()]])


def halves(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Two mini-batches: the first three groups of six, and the rest."""
    return [s for s in samples if s.group < 3], [s for s in samples if s.group >= 3]


def whiten(steps: Sequence[Prepared]) -> None:
    """Over all tokens of the step."""
    together = torch.cat([step.advantages for step in steps])
    mean, variance = together.mean(), together.var(correction=1)
    for step in steps:
        step.advantages = (step.advantages - mean) / (variance + 1e-8).sqrt()
