"""Cases about groups: advantages, signals, the punishment of long responses, judges' replies."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from answers import last_boxed
from torch import Tensor

from services.learner.algorithms import advantages as formulas
from services.learner.algorithms import order_safety
from services.learner.algorithms.advantages import Advantage, GroupScores
from services.learner.algorithms.gae import whitened
from services.learner.algorithms.shaping import (
    accuracy_varies,
    has_signal,
    overlong_penalty,
    unbounded_overlong_penalty,
)
from tests.golden.token_cases import tensor

PAPO_KEY = re.compile(r"(code_add|paper_max|no_std)_ddof([01])(?:_lambda_(\S+))?")
FULL_NORM_KEY = re.compile(r"fullnorm_code_lambda(\S+)")
DENOMINATORS = {"code_add": "add", "paper_max": "max", "no_std": "none"}


def group_scores(
    outcome: list[float], process: list[float | None], accuracy: list[float] | None = None
) -> GroupScores:
    """A group as a case gives it: any punishment is in the outcome already.

    Without an accuracy, correct is what pays 1.
    """
    return GroupScores(
        outcome=tensor(outcome),
        correct=tensor(outcome if accuracy is None else accuracy) == 1,
        process=tensor(process),
        penalty=torch.zeros(len(outcome), dtype=torch.float64),
    )


def papo_group(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    scores = group_scores(inputs["orm"], inputs["prm"], inputs.get("acc"))
    got: dict[str, Any] = {
        "mult_grpo_verl": formulas.multiplicative(scores).tolist(),
        "prm_only_grpo_verl": formulas.process_only(scores).tolist(),
        "grpo_verl": formulas.grpo_verl(scores).tolist(),
        "dr_grpo": formulas.dr_grpo(scores).tolist(),
    }
    for key in keys:
        if match := PAPO_KEY.fullmatch(key):
            form, ddof, lambda_process = match.groups()
            settings = {"ddof": int(ddof), "denominator": DENOMINATORS[form]}
            papo = partial(formulas.papo, **settings, std_eps=inputs["eps"])
            got[key] = _total_or_parts(papo, scores, lambda_process)
        elif match := FULL_NORM_KEY.fullmatch(key):
            full_norm = partial(formulas.papo_full_norm, std_eps=inputs["eps"])
            got[key] = _parts(full_norm, scores, float(match[1]))
    return got


def papo_missing(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    process = inputs["prm"]
    filled = [0.0 if score is None else score for score in process]
    papo = partial(formulas.papo, std_eps=inputs["eps"])
    scored_0 = papo(group_scores(inputs["orm"], filled)).tolist()
    return _parts(papo, group_scores(inputs["orm"], process), 1.0) | {
        "official_code_if_failure_scored_0": scored_0
    }


def grpo_advantage(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    rewards = inputs["rewards"]
    scores = group_scores(rewards, [None] * len(rewards))
    return {
        "verl_ddof1_eps1e6": formulas.grpo_verl(scores).tolist(),
        "trl_ddof1_eps1e4": formulas.grpo_trl(scores).tolist(),
        "ddof0_max": formulas.grpo(
            scores, ddof=0, denominator="max", std_eps=inputs["eps"]
        ).tolist(),
        "dr_grpo": formulas.dr_grpo(scores).tolist(),
        "rloo": formulas.rloo(scores).tolist(),
        "max_rl": formulas.max_rl(scores).tolist(),
    }


def step_advantages(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    groups = [group_scores(rewards, [None] * len(rewards)) for rewards in inputs["groups"]]
    rewards = torch.cat([scores.reward for scores in groups])
    lengths = torch.tensor(inputs["lengths"])

    def of_all(advantage: Advantage) -> Tensor:
        return torch.cat([advantage(scores) for scores in groups])

    def whitened_over_tokens(advantages: Tensor) -> list[float]:
        white = whitened(advantages.repeat_interleave(lengths), lambda sums: sums)
        return white[lengths.cumsum(0) - 1].tolist()

    return {
        "grpo_batch": formulas.over_sample_std(of_all(formulas.grpo_batch), rewards).tolist(),
        "reinforce_plus_plus": whitened_over_tokens(of_all(formulas.reinforce)),
        "reinforce_plus_plus_baseline": whitened_over_tokens(of_all(formulas.dr_grpo)),
    }


def gdpo(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    """Groups of [outcome, process, punishment] of each response, and the weights of these."""
    *weights, penalty_weight = inputs["weights"]
    groups: list[GroupScores] = []
    for group in inputs["groups"]:
        outcome, process, penalty = map(list, zip(*group, strict=True))
        checks = zip((tensor(outcome), tensor(process)), weights, strict=True)
        scores = replace(group_scores(outcome, process), penalty=tensor(penalty))
        groups.append(replace(scores, checks=tuple(checks), penalty_weight=penalty_weight))
    sums = torch.cat([formulas.gdpo(scores) for scores in groups])
    step = formulas.normalized_over_step(sums, sums)
    return {"sums": sums.tolist(), "advantages": step.tolist()}


def order_safe_lambda(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    got: dict[str, Any] = {}
    for size in inputs["G"]:
        bounds = order_safety.order_safe_bounds(size, ddof=inputs["ddof"])
        got[str(size)] = {
            "lambda_max": order_safety.order_safe_lambda(size, ddof=inputs["ddof"]),
            "worst_num_correct": min(bounds, key=bounds.__getitem__),
        }
    return got


def dynamic_filter(inputs: dict[str, Any], keys: list[str]) -> list[int]:
    groups = [group_scores(group, [None] * len(group)) for group in inputs["groups"]]
    return [index for index, scores in enumerate(groups) if accuracy_varies(scores)]


def papo_filter(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    got: dict[str, Any] = {}
    for name, group in inputs.items():
        scores = group_scores(group["orm"], group["prm"])
        got[name] = {
            "dapo_acc_filter_keeps": accuracy_varies(scores),
            "advantage_filter_keeps": has_signal(scores, formulas.papo),
        }
    return got


def overlong(inputs: dict[str, Any], keys: list[str], *, bounded: bool) -> list[float]:
    formula = overlong_penalty if bounded else unbounded_overlong_penalty
    limit, buffer, factor = inputs["l_max"], inputs["l_cache"], inputs["factor"]
    return formula(tensor(inputs["lengths"]), limit=limit, buffer=buffer, factor=factor).tolist()


# A judge's replies, read as PAPO's released grader reads them. What cannot be read counts 0: Weir's
# judges answer in a schema, and a reply that breaks it is no grade.
TIERS = (0.0, 0.5, 1.0)
NUMBER = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*")
STATED = re.compile(r"score\s*(?:is|:)\s*([\d.]+)", re.IGNORECASE)


def parse_three_tier(inputs: dict[str, Any], keys: list[str]) -> list[float]:
    return [_score(reply or "") for reply in inputs["replies"]]


def _score(reply: str) -> float:
    boxed = _tier(last_boxed(reply) or "")
    if boxed is not None:
        return boxed
    stated = STATED.search(reply)
    return (_tier(stated[1]) if stated else None) or 0.0


def _tier(text: str) -> float | None:
    number = float(text) if NUMBER.fullmatch(text) else None
    return number if number in TIERS else None


def _total_or_parts(papo: partial[Tensor], scores: GroupScores, lambda_process: str | None) -> Any:
    if lambda_process is None:
        return _parts(papo, scores, 1.0)
    return papo(scores, lambda_process=float(lambda_process)).tolist()


def _parts(formula: partial[Tensor], scores: GroupScores, weight: float) -> dict[str, list[float]]:
    """A_out, A_proc and A_out + weight x A_proc."""
    advantage: Advantage = partial(formula, lambda_process=0.0)
    outcome, both = advantage(scores), formula(scores, lambda_process=1.0)
    total = formula(scores, lambda_process=weight)
    return {
        "a_out": outcome.tolist(),
        "a_proc": (both - outcome).tolist(),
        "a_total": total.tolist(),
    }


GROUP_CASES = {
    "papo_group": papo_group,
    "papo_missing": papo_missing,
    "papo_filter": papo_filter,
    "grpo_advantage": grpo_advantage,
    "step_advantages": step_advantages,
    "gdpo": gdpo,
    "order_safe_lambda": order_safe_lambda,
    "dynamic_filter": dynamic_filter,
    "overlong_penalty": partial(overlong, bounded=True),
    "overlong_verl": partial(overlong, bounded=False),
    "parse_three_tier": parse_three_tier,
}
