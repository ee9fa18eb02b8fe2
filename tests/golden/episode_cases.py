"""Cases about episodes: advantages and targets from a critic, and how well it does."""

from __future__ import annotations

import re
from typing import Any

import torch

from services.learner.algorithms.gae import (
    Episodes,
    Moments,
    bare_length_lambda,
    decoupled_gae,
    discounted,
    gae,
    length_adaptive_gae,
    length_adaptive_lambda,
    value_loss,
    whitened,
)
from tests.golden.token_cases import mask_of, spread, tensor

DESCRIBED = re.compile(
    r"values=linspace\((\S+), ?(\S+), ?(\d+)\), reward (\S+) at last token, alpha=(\S+)"
)


def episodes_of(inputs: dict[str, Any]) -> Episodes:
    """The case's rewards, values and mask."""
    return Episodes(tensor(inputs["rewards"]), tensor(inputs["values"]), mask_of(inputs))


def plain(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    advantages, returns = gae(
        episodes_of(inputs), gamma=inputs["gamma"], lambda_actor=inputs["lam"]
    )
    return {"advantages": advantages.tolist(), "returns": returns.tolist()}


def decoupled(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    episodes = episodes_of(inputs)
    lambdas = {"lambda_actor": inputs["lam_actor"], "lambda_critic": inputs["lam_critic"]}
    advantages, returns = decoupled_gae(episodes, gamma=inputs["gamma"], **lambdas)
    white = whitened(advantages[episodes.mask], lambda sums: sums)
    return {
        "advantages": advantages.tolist(),
        "returns": returns.tolist(),
        "whitened_advantages": spread(episodes.mask, white),
    }


def length_adaptive(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    if "desc" in inputs:
        return _described(inputs)
    episodes, alpha = episodes_of(inputs), inputs["alpha"]
    advantages, returns = length_adaptive_gae(
        episodes, gamma=inputs["gamma"], length_alpha=alpha, lambda_critic=inputs["lam_critic"]
    )
    return {
        "lam_per_row": length_adaptive_lambda(episodes.mask.sum(dim=1), alpha).tolist(),
        "advantages": advantages.tolist(),
        "returns": returns.tolist(),
    }


def length_lambda(inputs: dict[str, Any], keys: list[str]) -> list[float]:
    return length_adaptive_lambda(tensor(inputs["lengths"]), inputs["alpha"]).tolist()


def unclamped_length_lambda(inputs: dict[str, Any], keys: list[str]) -> list[float]:
    return bare_length_lambda(tensor(inputs["lengths"]), inputs["alpha"]).tolist()


def critic_loss(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    mask = mask_of(inputs)
    values, old, returns = (tensor(inputs[n])[mask] for n in ("vpred", "old_values", "returns"))
    return {
        "mse_half": value_loss(values, old, returns, value_clip=None).mean().item(),
        "clipped_half": value_loss(values, old, returns, value_clip=inputs["clip"]).mean().item(),
        "explained_variance": Moments.of(returns, values).explained_variance(),
    }


def explained_variance(inputs: dict[str, Any], keys: list[str]) -> float:
    mask = mask_of(inputs)
    moments = Moments.of(tensor(inputs["returns"])[mask], tensor(inputs["values"])[mask])
    return moments.explained_variance()


def _described(inputs: dict[str, Any]) -> dict[str, Any]:
    match = DESCRIBED.fullmatch(inputs["desc"])
    if match is None:
        raise ValueError(f"inputs.desc is not understood: {inputs['desc']!r}")
    low, high, reward, alpha = (float(match[group]) for group in (1, 2, 4, 5))
    length = inputs["length"]
    values = torch.linspace(low, high, int(match[3]), dtype=torch.float64).unsqueeze(0)
    rewards = torch.zeros_like(values)
    rewards[0, -1] = reward
    episodes = Episodes(rewards, values, torch.ones_like(values, dtype=torch.bool))
    settings = {"gamma": 1.0, "length_alpha": alpha, "lambda_critic": 1.0}
    advantages = length_adaptive_gae(episodes, **settings)[0][0]
    unrewarded = Episodes(torch.zeros_like(rewards), values, episodes.mask)
    return {
        "lam": length_adaptive_lambda(tensor([length]), alpha).item(),
        "adv_first": advantages[0].item(),
        "adv_mid": advantages[length // 2].item(),
        "adv_last": advantages[-1].item(),
        "adv95_first": discounted(episodes, gamma=1.0, lambda_=0.95)[0, 0].item(),
        "adv_sum": advantages.sum().item(),
        "reward_weight_first": (
            (advantages - length_adaptive_gae(unrewarded, **settings)[0][0])[0] / reward
        ).item(),
    }


EPISODE_CASES = {
    "gae": plain,
    "decoupled_gae": decoupled,
    "length_adaptive_gae": length_adaptive,
    "lam_policy": length_lambda,
    "lam_policy_raw": unclamped_length_lambda,
    "value_loss": critic_loss,
    "explained_variance": explained_variance,
}
