"""Cases about tokens: objectives, aggregations, divergences, corrections, log-probs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.learner.algorithms import pick
from services.learner.algorithms.logprobs import token_logprobs
from services.learner.algorithms.loss import (
    DIVERGENCES,
    OBJECTIVES,
    TokenBatch,
    Totals,
    clip,
    dual_clip,
    fixed_length,
    positive_nll,
    response_means,
    sequence_mean,
    sequence_mis,
    sequence_tis,
    token_mean,
    token_mis,
    token_tis,
)

UNBOUNDED = float("inf")


class Inputs:
    """The inputs of a case by their names; nested lists are tensors."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.cells = values

    def __getattr__(self, name: str) -> Any:
        value = self.cells[name]
        return tensor(value) if isinstance(value, list) else value

    @property
    def mask(self) -> Tensor:
        """[sequence, token]"""
        return tensor(self.cells["mask"]).bool()

    def at_tokens(self, *names: str) -> list[Tensor]:
        """Values of the unmasked tokens."""
        return [getattr(self, name)[self.mask] for name in names]

    @property
    def rows(self) -> Tensor:
        """The sequence of each of these tokens."""
        return self.mask.nonzero()[:, 0]

    def spread(self, flat: Tensor) -> Tensor:
        """Values of the unmasked tokens in their places; 0 at masked ones."""
        return torch.zeros(self.mask.shape, dtype=flat.dtype).masked_scatter(self.mask, flat)

    def batch(self) -> TokenBatch:
        """The tokens of a case with logp, old_logp and adv."""
        logprobs, old, advantages = self.at_tokens("logp", "old_logp", "adv")
        return TokenBatch(logprobs.requires_grad_(), old, advantages, sequence=self.rows)


def tensor(values: Any) -> Tensor:
    """Nested lists as float64; None as NaN."""
    return torch.from_numpy(np.array(values, dtype=np.float64))


def clip_surrogate(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    tokens = inputs.batch()
    bounds = {"clip_low": inputs.eps_low, "clip_high": inputs.eps_high}
    losses, bound = clip(tokens, **bounds)
    totals = _totals(tokens)
    mean = (token_mean(tokens.lengths, totals) * losses).sum()
    (gradient,) = torch.autograd.grad(
        mean,
        tokens.logprobs,
        retain_graph=True,
    )
    terms = inputs.spread(losses)
    results: dict[str, Any] = {
        "ratio": inputs.spread(tokens.ratio),
        "loss_terms": terms,
        "no_dual": terms,
        "token_mean": mean,
        "seq_mean_token_mean": (sequence_mean(tokens.lengths, totals) * losses).sum(),
        "seq_mean_token_sum": _fixed_length_loss(tokens, losses, 1),
        "clipfrac_verl": (bound != 0).double().mean(),
        "grad_wrt_logp_token_mean": inputs.spread(gradient),
    }
    for key in keys:
        if match := re.fullmatch(r"dual_c_(\S+)", key):
            losses_held, _ = dual_clip(
                tokens,
                **bounds,
                dual_clip=float(match[1]),
            )
            results[key] = inputs.spread(losses_held)
        elif match := re.fullmatch(r"dr_grpo_const_(\d+)", key):
            results[key] = _fixed_length_loss(tokens, losses, int(match[1]))
    return results


def objectives(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    tokens = inputs.batch()
    return {
        name: inputs.spread(pick(OBJECTIVES, name, inputs.settings)(tokens)[0]) for name in keys
    }


def vapo_loss(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    tokens = inputs.batch()
    losses, _ = clip(tokens, clip_low=inputs.eps_low, clip_high=inputs.eps_high)
    ppo = (token_mean(tokens.lengths, _totals(tokens)) * losses).sum()
    return {"ppo": ppo, "total": ppo + nll_positive(inputs, keys)["mu_times_nll"]}


def nll_positive(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    (logprobs,) = inputs.at_tokens("logp")
    correct = inputs.correct.bool()[inputs.rows]
    nll = positive_nll(logprobs, correct, num_positive_tokens=int(correct.sum()))
    nothing = positive_nll(logprobs, correct & ~correct, num_positive_tokens=0)
    return {"nll": nll, "mu_times_nll": inputs.mu * nll, "none_correct": nothing}


def global_token_mean(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    mask, terms, num_ranks = inputs.mask, inputs.loss_terms, inputs.dp_size
    total = int(mask.sum())
    shares = _shares(terms, mask, len(mask) // num_ranks, total)
    results: dict[str, Any] = {
        "global_token_mean": _share(terms, mask, total),
        "correct_per_rank_loss_times_dp": [share * num_ranks for share in shares],
    }
    for key in keys:
        if match := re.fullmatch(r"mean_of_micro_means_mb(\d+)", key):
            means = _shares(terms, mask, int(match[1]), None)
            results[key] = sum(means) / len(means)
        elif match := re.fullmatch(r"correct_micro_contributions_mb(\d+)", key):
            results[key] = _shares(terms, mask, int(match[1]), total)
    return results


def kl(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    return {name: form(inputs.logp, inputs.ref_logp) for name, form in DIVERGENCES.items()}


def log_softmax(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    logits = inputs.logits
    first = torch.zeros(len(logits), dtype=torch.int64)
    results: dict[str, Any] = {}
    for temperature in inputs.temperatures.tolist():
        logprobs, entropy = token_logprobs(logits, first, temperature)
        results[f"T={temperature:g}"] = {"logp_token0": logprobs, "entropy": entropy}
    for key in keys:
        if match := re.fullmatch(r"wrong_T=(\S+)_logp_div_T", key):
            results[key] = token_logprobs(logits, first, 1.0)[0] / float(match[1])
    return results


def tis(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    rows = inputs.rows
    old, sampled = inputs.at_tokens("old_logp", "rollout_logp")

    def by_response(weights: Tensor) -> Any:
        first_tokens = [weights[rows == row][0] for row in rows.unique()]
        return first_tokens[0] if len(first_tokens) == 1 else first_tokens

    results: dict[str, Any] = {
        "geo_mean_ratio": by_response(response_means(rows, old - sampled).exp())
    }
    for name, cap in (("ratio", UNBOUNDED), ("tis", inputs.cap)):
        weights = token_tis(old, sampled, rows, correction_cap=cap)
        results[f"token_{name}"] = inputs.spread(weights)
        weights = sequence_tis(old, sampled, rows, correction_cap=cap)
        results[f"seq_{name}"] = by_response(weights)
    return results


def mis(inputs: Inputs, keys: list[str]) -> dict[str, Any]:
    old, sampled = inputs.at_tokens("old_logp", "rollout_logp")
    tokens = (old, sampled, inputs.rows)
    band = {"correction_floor": inputs.floor, "correction_cap": inputs.cap}
    return {
        "token_mis": inputs.spread(token_mis(*tokens, **band)),
        "sequence_mis": inputs.spread(sequence_mis(*tokens, **band)),
    }


def _totals(tokens: TokenBatch) -> Totals:
    return Totals(
        len(tokens.logprobs),
        len(tokens.sequence.unique()),
        positive_tokens=0,
    )


def _fixed_length_loss(tokens: TokenBatch, losses: Tensor, max_tokens: int) -> Tensor:
    weights = fixed_length(tokens.lengths, _totals(tokens), max_tokens=max_tokens)
    return (weights * losses).sum()


def _share(terms: Tensor, mask: Tensor, total: int | None) -> Tensor:
    """The rows' share of the mean over ``total`` tokens; over their own without."""
    losses = terms[mask]
    lengths = mask.sum(dim=1).double()[mask.nonzero()[:, 0]]
    num_tokens = len(losses) if total is None else total
    return (token_mean(lengths, Totals(num_tokens, len(mask), 0)) * losses).sum()


def _shares(terms: Tensor, mask: Tensor, rows: int, total: int | None) -> list[Tensor]:
    parts = range(0, len(mask), rows)
    return [_share(terms[i : i + rows], mask[i : i + rows], total) for i in parts]


TOKEN_CASES = (
    clip_surrogate,
    objectives,
    vapo_loss,
    nll_positive,
    global_token_mean,
    kl,
    log_softmax,
    tis,
    mis,
)
