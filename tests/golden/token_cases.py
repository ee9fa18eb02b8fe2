"""Cases about tokens: objectives, aggregations, divergences, corrections, log-probs."""

from __future__ import annotations

import re
from typing import Any

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


def tensor(values: Any) -> Tensor:
    """Nested lists as float64; None as NaN."""
    return torch.tensor(_without_none(values), dtype=torch.float64)


def mask_of(inputs: dict[str, Any]) -> Tensor:
    """The case's mask, [sequence, token] bool."""
    return torch.tensor(inputs["mask"], dtype=torch.bool)


def spread(mask: Tensor, flat: Tensor) -> list[list[float]]:
    """Values of the unmasked tokens in their places; 0 at masked ones."""
    return torch.zeros(mask.shape, dtype=flat.dtype).masked_scatter(mask, flat).tolist()


def token_batch(inputs: dict[str, Any]) -> TokenBatch:
    """The unmasked tokens of a case with logp, old_logp and adv."""
    mask = mask_of(inputs)
    flat = [tensor(inputs[name])[mask] for name in ("logp", "old_logp", "adv")]
    flat[0].requires_grad_()
    return TokenBatch(*flat, sequence=mask.nonzero()[:, 0])


def _without_none(values: Any) -> Any:
    if isinstance(values, list):
        return [_without_none(value) for value in values]
    return float("nan") if values is None else values


def clip_surrogate(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    mask, tokens = mask_of(inputs), token_batch(inputs)
    bounds = {"clip_low": inputs["eps_low"], "clip_high": inputs["eps_high"]}
    losses, bound = clip(tokens, **bounds)
    totals = _totals(tokens)
    mean = (token_mean(tokens.lengths, totals) * losses).sum()
    (gradient,) = torch.autograd.grad(mean, tokens.logprobs, retain_graph=True)
    terms = spread(mask, losses.detach())
    got: dict[str, Any] = {
        "ratio": spread(mask, tokens.ratio.detach()),
        "loss_terms": terms,
        "no_dual": terms,
        "token_mean": mean.item(),
        "seq_mean_token_mean": (sequence_mean(tokens.lengths, totals) * losses).sum().item(),
        "seq_mean_token_sum": _fixed_length_loss(tokens, losses, 1),
        "clipfrac_verl": (bound != 0).double().mean().item(),
        "grad_wrt_logp_token_mean": spread(mask, gradient),
    }
    for key in keys:
        if match := re.fullmatch(r"dual_c_(\S+)", key):
            held, _ = dual_clip(tokens, **bounds, dual_clip=float(match[1]))
            got[key] = spread(mask, held.detach())
        elif match := re.fullmatch(r"dr_grpo_const_(\d+)", key):
            got[key] = _fixed_length_loss(tokens, losses, int(match[1]))
    return got


def objectives(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    mask, tokens = mask_of(inputs), token_batch(inputs)
    chosen = {name: pick(OBJECTIVES, name, inputs["settings"]) for name in keys}
    return {name: spread(mask, of(tokens)[0].detach()) for name, of in chosen.items()}


def vapo_loss(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    tokens = token_batch(inputs)
    losses, _ = clip(tokens, clip_low=inputs["eps_low"], clip_high=inputs["eps_high"])
    ppo = (token_mean(tokens.lengths, _totals(tokens)) * losses).sum().item()
    nll = nll_positive(inputs, keys)
    return {"ppo": ppo, "total": ppo + nll["mu_times_nll"]}


def nll_positive(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    mask = mask_of(inputs)
    logprobs, rows = tensor(inputs["logp"])[mask], mask.nonzero()[:, 0]
    correct = torch.tensor(inputs["correct"], dtype=torch.bool)[rows]
    nll = positive_nll(logprobs, correct, num_positive_tokens=int(correct.sum())).item()
    nothing = positive_nll(logprobs, correct & ~correct, num_positive_tokens=0).item()
    return {"nll": nll, "mu_times_nll": inputs["mu"] * nll, "none_correct": nothing}


def global_token_mean(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    mask, terms = mask_of(inputs), tensor(inputs["loss_terms"])
    rows, total = len(mask), int(mask.sum())
    num_ranks = inputs["dp_size"]
    got: dict[str, Any] = {
        "global_token_mean": _share(terms, mask, total),
        "correct_per_rank_loss_times_dp": [
            share * num_ranks for share in _shares(terms, mask, rows // num_ranks, total)
        ],
    }
    for key in keys:
        if match := re.fullmatch(r"mean_of_micro_means_mb(\d+)", key):
            means = _shares(terms, mask, int(match[1]), None)
            got[key] = sum(means) / len(means)
        elif match := re.fullmatch(r"correct_micro_contributions_mb(\d+)", key):
            got[key] = _shares(terms, mask, int(match[1]), total)
    return got


def kl(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    logprobs, reference = tensor(inputs["logp"]), tensor(inputs["ref_logp"])
    return {name: formula(logprobs, reference).tolist() for name, formula in DIVERGENCES.items()}


def log_softmax(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    logits = tensor(inputs["logits"])
    first = torch.zeros(len(logits), dtype=torch.int64)
    got: dict[str, Any] = {}
    for temperature in inputs["temperatures"]:
        logprobs, entropy = token_logprobs(logits, first, temperature)
        got[f"T={temperature:g}"] = {
            "logp_token0": logprobs.tolist(),
            "entropy": entropy.tolist(),
        }
    for key in keys:
        if match := re.fullmatch(r"wrong_T=(\S+)_logp_div_T", key):
            got[key] = (token_logprobs(logits, first, 1.0)[0] / float(match[1])).tolist()
    return got


def tis(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    mask, cap = mask_of(inputs), inputs["cap"]
    old, sampled = tensor(inputs["old_logp"])[mask], tensor(inputs["rollout_logp"])[mask]
    rows = mask.nonzero()[:, 0]

    def by_response(weights: Tensor) -> Any:
        first_tokens = [weights[rows == row][0].item() for row in rows.unique()]
        return first_tokens[0] if len(first_tokens) == 1 else first_tokens

    return {
        "token_ratio": spread(mask, token_tis(old, sampled, rows, correction_cap=UNBOUNDED)),
        "token_tis": spread(mask, token_tis(old, sampled, rows, correction_cap=cap)),
        "seq_ratio": by_response(sequence_tis(old, sampled, rows, correction_cap=UNBOUNDED)),
        "seq_tis": by_response(sequence_tis(old, sampled, rows, correction_cap=cap)),
        "geo_mean_ratio": by_response(response_means(rows, old - sampled).exp()),
    }


def mis(inputs: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    mask = mask_of(inputs)
    of = (tensor(inputs["old_logp"])[mask], tensor(inputs["rollout_logp"])[mask])
    band = {"correction_floor": inputs["floor"], "correction_cap": inputs["cap"]}
    rows = mask.nonzero()[:, 0]
    return {
        "token_mis": spread(mask, token_mis(*of, rows, **band)),
        "sequence_mis": spread(mask, sequence_mis(*of, rows, **band)),
    }


def _totals(tokens: TokenBatch) -> Totals:
    return Totals(len(tokens.logprobs), len(tokens.sequence.unique()), positive_tokens=0)


def _fixed_length_loss(tokens: TokenBatch, losses: Tensor, max_tokens: int) -> float:
    weights = fixed_length(tokens.lengths, _totals(tokens), max_tokens=max_tokens)
    return (weights * losses).sum().item()


def _share(terms: Tensor, mask: Tensor, total: int | None) -> float:
    """The rows' share of the mean over ``total`` tokens; over their own without."""
    losses = terms[mask]
    lengths = mask.sum(dim=1).double()[mask.nonzero()[:, 0]]
    num_tokens = len(losses) if total is None else total
    return (token_mean(lengths, Totals(num_tokens, len(mask), 0)) * losses).sum().item()


def _shares(terms: Tensor, mask: Tensor, rows: int, total: int | None) -> list[float]:
    parts = range(0, len(mask), rows)
    return [_share(terms[i : i + rows], mask[i : i + rows], total) for i in parts]


TOKEN_CASES = {
    "clip_surrogate": clip_surrogate,
    "objectives": objectives,
    "vapo_loss": vapo_loss,
    "nll_positive": nll_positive,
    "global_token_mean": global_token_mean,
    "kl": kl,
    "log_softmax": log_softmax,
    "tis": tis,
    "mis": mis,
}
