"""Cases about groups: advantages, signals, the punishment of long responses, judges' replies."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from answers import last_boxed
from torch import Tensor

from services.learner.algorithms import advantages as formulas
from services.learner.algorithms import order_safety, shaping
from services.learner.algorithms.advantages import Advantage, GroupScores
from services.learner.algorithms.gae import whitened
from services.learner.algorithms.shaping import accuracy_varies, has_signal
from tests.golden.token_cases import Inputs, tensor

PAPO_KEY = re.compile(r"(code_add|paper_max|no_std)_ddof([01])(?:_lambda_(\S+))?")
FULL_NORM_KEY = re.compile(r"fullnorm_code_lambda(\S+)")
DENOMINATORS = {"code_add": "add", "paper_max": "max", "no_std": "none"}


def group_scores(
    outcome: Tensor, process: Tensor | None = None, accuracy: Tensor | None = None
) -> GroupScores:
    """A group as a case gives it: any punishment is in the outcome already.

    Without an accuracy, correct is what pays 1.
    """
    return GroupScores(
        outcome=outcome,
        correct=(outcome if accuracy is None else accuracy) == 1,
        process=torch.full_like(outcome, torch.nan) if process is None else process,
        penalty=torch.zeros_like(outcome),
    )


def papo_group(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    accuracy = inputs.acc if "acc" in inputs.cells else None
    scores = group_scores(inputs.orm, inputs.prm, accuracy)
    results: dict[str, Any] = {
        "mult_grpo_verl": formulas.multiplicative(scores),
        "prm_only_grpo_verl": formulas.process_only(scores),
        "grpo_verl": formulas.grpo_verl(scores),
        "dr_grpo": formulas.dr_grpo(scores),
    }
    for key in keys:
        if match := PAPO_KEY.fullmatch(key):
            form, ddof, lambda_process = match.groups()
            settings = {"ddof": int(ddof), "denominator": DENOMINATORS[form]}
            papo = partial(formulas.papo, **settings, std_eps=inputs.eps)
            if lambda_process is None:
                results[key] = _parts(papo, scores, 1.0)
            else:
                results[key] = papo(scores, lambda_process=float(lambda_process))
        elif match := FULL_NORM_KEY.fullmatch(key):
            full_norm = partial(formulas.papo_full_norm, std_eps=inputs.eps)
            results[key] = _parts(full_norm, scores, float(match[1]))
    return results


def papo_missing(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    papo = partial(formulas.papo, std_eps=inputs.eps)
    filled = group_scores(inputs.orm, inputs.prm.nan_to_num())
    return _parts(papo, group_scores(inputs.orm, inputs.prm), 1.0) | {
        "official_code_if_failure_scored_0": papo(filled)
    }


def grpo_advantage(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    scores = group_scores(inputs.rewards)
    return {
        "verl_ddof1_eps1e6": formulas.grpo_verl(scores),
        "trl_ddof1_eps1e4": formulas.grpo_trl(scores),
        "ddof0_max": formulas.grpo(
            scores,
            ddof=0,
            denominator="max",
            std_eps=inputs.eps,
        ),
        "dr_grpo": formulas.dr_grpo(scores),
        "rloo": formulas.rloo(scores),
        "max_rl": formulas.max_rl(scores),
    }


def step_advantages(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    groups = [group_scores(tensor(rewards)) for rewards in inputs.cells["groups"]]
    rewards = torch.cat([scores.reward for scores in groups])
    lengths = inputs.lengths.long()

    def of_all(advantage: Advantage) -> Tensor:
        return torch.cat([advantage(scores) for scores in groups])

    def whitened_over_tokens(advantages: Tensor) -> Tensor:
        white = whitened(advantages.repeat_interleave(lengths), lambda sums: sums)
        return white[lengths.cumsum(0) - 1]

    return {
        "grpo_batch": formulas.over_sample_std(of_all(formulas.grpo_batch), rewards),
        "reinforce_plus_plus": whitened_over_tokens(of_all(formulas.reinforce)),
        "reinforce_plus_plus_baseline": whitened_over_tokens(of_all(formulas.dr_grpo)),
    }


def gdpo(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    """Groups of [outcome, process, punishment] of each response, and the weights of these."""
    *weights, penalty_weight = inputs.cells["weights"]
    groups: list[GroupScores] = []
    for group in inputs.cells["groups"]:
        outcome, process, penalty = tensor(group).T
        checks = tuple(zip((outcome, process), weights, strict=True))
        scores = replace(group_scores(outcome, process), penalty=penalty)
        groups.append(replace(scores, checks=checks, penalty_weight=penalty_weight))
    sums = torch.cat([formulas.gdpo(scores) for scores in groups])
    return {"sums": sums, "advantages": formulas.normalized_over_step(sums, sums)}


def order_safe_lambda(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for size in inputs.cells["G"]:
        bounds = order_safety.order_safe_bounds(size, ddof=inputs.ddof)
        results[str(size)] = {
            "lambda_max": order_safety.order_safe_lambda(size, ddof=inputs.ddof),
            "worst_num_correct": min(bounds, key=bounds.__getitem__),
        }
    return results


def dynamic_filter(inputs: Inputs, keys: list[str]) -> list[int]:
    groups = [group_scores(tensor(rewards)) for rewards in inputs.cells["groups"]]
    return [index for index, scores in enumerate(groups) if accuracy_varies(scores)]


def papo_filter(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, group in inputs.cells.items():
        scores = group_scores(tensor(group["orm"]), tensor(group["prm"]))
        results[name] = {
            "dapo_acc_filter_keeps": accuracy_varies(scores),
            "advantage_filter_keeps": has_signal(scores, formulas.papo),
        }
    return results


def overlong_penalty(
    inputs: Inputs, keys: list[str], form: Callable[..., Tensor] = shaping.overlong_penalty
) -> Tensor:
    bounds = {
        "limit": inputs.l_max,
        "buffer": inputs.l_cache,
        "factor": inputs.factor,
    }
    return form(inputs.lengths, **bounds)


def overlong_verl(inputs: Inputs, keys: list[str]) -> Tensor:
    return overlong_penalty(inputs, keys, shaping.unbounded_overlong_penalty)


# A judge's replies, read as PAPO's released grader reads them. What cannot be read counts 0: Weir's
# judges answer in a schema, and a reply that breaks it is no grade.
TIERS = (0.0, 0.5, 1.0)
NUMBER = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*")
STATED = re.compile(r"score\s*(?:is|:)\s*([\d.]+)", re.IGNORECASE)


def parse_three_tier(inputs: Inputs, keys: list[str]) -> list[float]:
    return [_score(reply or "") for reply in inputs.cells["replies"]]


def _score(reply: str) -> float:
    boxed = _tier(last_boxed(reply) or "")
    if boxed is not None:
        return boxed
    stated = STATED.search(reply)
    return (_tier(stated[1]) if stated else None) or 0.0


def _tier(text: str) -> float | None:
    number = float(text) if NUMBER.fullmatch(text) else None
    return number if number in TIERS else None


def _parts(formula: partial[Tensor], scores: GroupScores, weight: float) -> dict[str, Tensor]:
    """A_out, A_proc and A_out + weight x A_proc."""
    outcome, both, total = (formula(scores, lambda_process=each) for each in (0.0, 1.0, weight))
    return {"a_out": outcome, "a_proc": both - outcome, "a_total": total}


GROUP_CASES = (
    papo_group,
    papo_missing,
    papo_filter,
    grpo_advantage,
    step_advantages,
    gdpo,
    order_safe_lambda,
    dynamic_filter,
    overlong_penalty,
    overlong_verl,
    parse_three_tier,
)
