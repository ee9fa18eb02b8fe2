"""Cases about episodes: advantages and targets from a critic, and how well it does."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from services.learner.algorithms import gae as formulas
from services.learner.algorithms.gae import Episodes, Moments, length_adaptive_lambda
from tests.golden.token_cases import Inputs, tensor

DESCRIBED = re.compile(
    r"values=linspace\((\S+), ?(\S+), ?(\d+)\), reward (\S+) at last token, alpha=(\S+)"
)


def episodes_of(inputs: Inputs) -> Episodes:
    return Episodes(inputs.rewards, inputs.values, inputs.mask)


def gae(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    advantages, returns = formulas.gae(
        episodes_of(inputs), gamma=inputs.gamma, lambda_actor=inputs.lam
    )
    return {"advantages": advantages, "returns": returns}


def decoupled_gae(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    advantages, returns = formulas.decoupled_gae(
        episodes_of(inputs),
        gamma=inputs.gamma,
        lambda_actor=inputs.lam_actor,
        lambda_critic=inputs.lam_critic,
    )
    white = formulas.whitened(advantages[inputs.mask], lambda sums: sums)
    return {
        "advantages": advantages,
        "returns": returns,
        "whitened_advantages": inputs.spread(white),
    }


def length_adaptive_gae(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    if "desc" in inputs.cells:
        return _described(inputs)
    advantages, returns = formulas.length_adaptive_gae(
        episodes_of(inputs),
        gamma=inputs.gamma,
        length_alpha=inputs.alpha,
        lambda_critic=inputs.lam_critic,
    )
    return {
        "lam_per_row": length_adaptive_lambda(inputs.mask.sum(dim=1), inputs.alpha),
        "advantages": advantages,
        "returns": returns,
    }


def lam_policy(inputs: Inputs, keys: list[str]) -> Tensor:
    return length_adaptive_lambda(inputs.lengths, inputs.alpha)


def lam_policy_raw(inputs: Inputs, keys: list[str]) -> Tensor:
    return formulas.bare_length_lambda(inputs.lengths, inputs.alpha)


def value_loss(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    values, old, returns = inputs.at_tokens("vpred", "old_values", "returns")
    results: dict[str, Any] = {
        "explained_variance": Moments.of(returns, values).explained_variance()
    }
    for name, clip in (("mse_half", None), ("clipped_half", inputs.clip)):
        results[name] = formulas.value_loss(
            values,
            old,
            returns,
            value_clip=clip,
        ).mean()
    return results


def explained_variance(inputs: Inputs, keys: list[str]) -> float:
    return Moments.of(*inputs.at_tokens("returns", "values")).explained_variance()


def _described(inputs: Inputs) -> dict[str, Any]:
    match = DESCRIBED.fullmatch(inputs.desc)
    if match is None:
        raise ValueError(f"inputs.desc is not understood: {inputs.desc!r}")
    low, high, size, reward, alpha = map(float, match.groups())
    values = torch.linspace(
        low,
        high,
        int(size),
        dtype=torch.float64,
    ).unsqueeze(0)
    rewards = torch.zeros_like(values)
    mask = torch.ones_like(values, dtype=torch.bool)
    settings = {"gamma": 1.0, "length_alpha": alpha, "lambda_critic": 1.0}
    unrewarded = formulas.length_adaptive_gae(Episodes(rewards.clone(), values, mask), **settings)
    rewards[0, -1] = reward
    episodes = Episodes(rewards, values, mask)
    (advantages,), _ = formulas.length_adaptive_gae(episodes, **settings)
    return {
        "lam": length_adaptive_lambda(tensor([inputs.length]), alpha)[0],
        "adv_first": advantages[0],
        "adv_mid": advantages[inputs.length // 2],
        "adv_last": advantages[-1],
        "adv95_first": formulas.discounted(
            episodes,
            gamma=1.0,
            lambda_=0.95,
        )[0, 0],
        "adv_sum": advantages.sum(),
        "reward_weight_first": (advantages[0] - unrewarded[0][0, 0]) / reward,
    }


EPISODE_CASES = (
    gae,
    decoupled_gae,
    length_adaptive_gae,
    lam_policy,
    lam_policy_raw,
    value_loss,
    explained_variance,
)
