"""The loss: the loss of each token, and the weights that sum them up.

An objective maps the policy's own tokens of a micro-batch to their losses and to the bound that
limits each: -1 the lower, 1 the upper, 0 none.

A correction maps the learner's own log-probs of the sampling policy and the sampler's to a weight
per token, without a gradient. The two engines compute slightly different log-probs for the same
weights, so training is slightly off-policy.

A divergence estimates KL(policy || reference) from the policy's own tokens, [token], nats, as in
"Approximating KL Divergence" (Schulman, 2020). The gradient flows through ``logprobs``. That of
k1 itself is 0 in expectation and would penalize nothing; GRPO uses k3.

An aggregation is a weight per token: a micro-batch contributes the weighted sum of its losses, and
the weights count the whole mini-batch, over all micro-batches and all ranks, so that the split
never changes the update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from services.learner.algorithms.logprobs import log_ratio, widen

# exp(20) is 5e8: far beyond every bound, and far from an overflow, whose gradient is NaN even
# if a bound hides it (0 x inf). verl has the same limit. k3 is constant beyond it.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class TokenBatch:
    """The policy's own tokens of a micro-batch, flat. All tensors are [token]."""

    logprobs: Tensor  # float, under the policy being trained; carries the gradient
    old_logprobs: Tensor  # float, under the policy that the ratio is taken against
    advantages: Tensor  # float
    sequence: Tensor  # int64, which response of the micro-batch the token belongs to

    @property
    def log_ratio(self) -> Tensor:
        return log_ratio(self.logprobs, self.old_logprobs)

    @property
    def ratio(self) -> Tensor:
        """The importance ratio of each token, [token], at most exp(`MAX_LOG_RATIO`)."""
        return _bounded_exp(self.log_ratio)

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each token's response, [token] float."""
        return response_sums(self.sequence, torch.ones_like(self.logprobs))


def response_sums(sequence: Tensor, values: Tensor) -> Tensor:
    """Sum the values over each token's response, [token] to [token]."""
    values = widen(values)
    size = int(sequence.max()) + 1 if sequence.numel() else 0
    return values.new_zeros(size).index_add(0, sequence, values)[sequence]


def response_means(sequence: Tensor, values: Tensor) -> Tensor:
    """Average the values over each token's response, [token] to [token]."""
    return response_sums(sequence, values) / response_sums(sequence, torch.ones_like(values))


def clip(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate as a loss, [token] (arXiv:1707.06347, equation 7).

    ``clip_high > clip_low`` is DAPO's clip-higher (arXiv:2503.14476, equation 10).
    """
    return _clipped(tokens.ratio, tokens.advantages, clip_low, clip_high)


def dual_clip(
    tokens: TokenBatch, *, clip_low: float, clip_high: float, dual_clip: float
) -> tuple[Tensor, Tensor]:
    """`clip` with a loss of at most ``dual_clip`` x |A| for negative advantages, [token].

    Dual-clip PPO (arXiv:1912.09729, equation 5): a token that became very likely although it is bad
    stops pushing. Above ``1 + clip_high`` this bound is the delta of INTELLECT-2's two-sided
    clipping (arXiv:2505.07291), there 4.
    """
    losses, bound = clip(tokens, clip_low=clip_low, clip_high=clip_high)
    limit = -dual_clip * tokens.advantages
    exceeds = (tokens.advantages < 0) & (losses > limit)
    bound = torch.where(exceeds, torch.ones_like(bound), bound)
    return torch.where(exceeds, limit, losses), bound


def gspo(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """The clipped surrogate with a ratio per response, [token]: GSPO (arXiv:2507.18071), eq. 5, 7.

    The ratio is the geometric mean of the response's token ratios; every token of a response has
    the same loss, so that a sequence mean is the paper's.
    """
    ratio = _bounded_exp(response_means(tokens.sequence, tokens.log_ratio))
    return _clipped(ratio, tokens.advantages, clip_low, clip_high)


def cispo(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """REINFORCE with a clipped importance weight, [token]: MiniMax-M1 (arXiv:2506.13585), eq. 4, 5.

    The weight is clipped and detached, so every token keeps a gradient. The paper has no lower
    bound: ``clip_low = 1``.
    """
    ratio = tokens.ratio.detach()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = -weight * tokens.advantages * widen(tokens.logprobs)
    return losses, _sign(weight, ratio)


def dppo(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """The surrogate within a trust region of probabilities, [token]: DPPO (arXiv:2602.04879).

    Its mask by the binary total variation: a token is left out where its advantage is positive and
    its probability rose by more than ``clip_high``, or negative and it fell by more than
    ``clip_low``. The ratio is not clipped. The paper measures from the policy that sampled:
    ``old_logprobs = "rollout"``.
    """
    moved = _moved(tokens)
    rose = (tokens.advantages > 0) & (moved > clip_high)
    fell = (tokens.advantages < 0) & (moved < -clip_low)
    return _without(rose, fell, tokens)


def ipo(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """`dppo` with a mask for advantages of either sign, [token]: IPO of prime-rl.

    INTELLECT Policy Optimization: where sampling runs ahead of training, the sign does not predict
    which way a probability has moved. It measures from the policy that sampled, with bounds of 0.2,
    and adds 0.001 times the square of the log-ratio, which this leaves out.
    """
    moved = _moved(tokens)
    return _without(moved > clip_high, moved < -clip_low, tokens)


def _moved(tokens: TokenBatch) -> Tensor:
    """Return the rise of each token's probability, [token]."""
    new = widen(tokens.logprobs.detach())
    old = widen(tokens.old_logprobs)
    return new.exp() - old.exp()


def _without(rose: Tensor, fell: Tensor, tokens: TokenBatch) -> tuple[Tensor, Tensor]:
    """Return the surrogate of tokens that moved little, and a flag for the others."""
    losses = (-tokens.ratio * tokens.advantages).masked_fill(rose | fell, 0.0)
    return losses, rose.to(losses.dtype) - fell.to(losses.dtype)


def sapo(tokens: TokenBatch, *, tau_positive: float, tau_negative: float) -> tuple[Tensor, Tensor]:
    """A soft gate instead of a clip, [token]: SAPO (arXiv:2511.20347).

    The ratio becomes ``sigmoid(tau (ratio - 1)) 4 / tau``, whose slope is 1 at a ratio of 1 and
    fades on both sides, the faster the larger tau. The paper aggregates by the sequence mean.
    """
    ratio = tokens.ratio
    tau = torch.full_like(ratio, tau_negative).masked_fill(tokens.advantages > 0, tau_positive)
    gate = torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    return -gate * tokens.advantages, torch.zeros_like(gate).detach()


def gmpo(tokens: TokenBatch, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """The geometric mean of clipped token ratios, [token]: GMPO (arXiv:2507.20673).

    Unlike `gspo` it clips before the mean, and by the logarithm, as the paper's code does: at
    ``-clip_low`` for negative advantages, at ``clip_high`` for positive ones. The paper has 0.4 for
    both, and aggregates by the sequence mean.
    """
    log_ratio = tokens.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    low = log_ratio.clamp(min=-clip_low)
    high = log_ratio.clamp(max=clip_high)
    bounded = torch.where(tokens.advantages > 0, high, low)
    ratio = _bounded_exp(response_means(tokens.sequence, bounded))
    return -ratio * tokens.advantages, _sign(bounded, log_ratio) * (tokens.advantages != 0)


def importance_sampling(tokens: TokenBatch) -> tuple[Tensor, Tensor]:
    """REINFORCE, off its policy: the advantage times the unclipped ratio, [token]."""
    return -tokens.ratio * tokens.advantages, torch.zeros_like(tokens.ratio)


def cross_entropy(tokens: TokenBatch) -> tuple[Tensor, Tensor]:
    """The negative log-likelihood, weighted by the advantages, [token]."""
    losses = -widen(tokens.logprobs) * tokens.advantages
    return losses, torch.zeros_like(losses)


def _bounded_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def _clipped(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    free = ratio * advantages
    clipped = bounded * advantages
    bound = torch.where(clipped < free, _sign(bounded, ratio), torch.zeros_like(ratio))
    return -torch.minimum(free, clipped), bound.detach()


def _sign(bounded: Tensor, ratio: Tensor) -> Tensor:
    """Return 1 if the upper bound was below the ratio, -1 if the lower one was above it."""
    return (ratio - bounded).sign().detach()


def none(old_logprobs: Tensor, behavior_logprobs: Tensor, sequence: Tensor) -> Tensor:
    """No correction: 1 for every token, [token]."""
    return torch.ones_like(log_ratio(old_logprobs, behavior_logprobs))


def token_tis(
    old_logprobs: Tensor, behavior_logprobs: Tensor, sequence: Tensor, *, correction_cap: float
) -> Tensor:
    """Truncated importance weights, [token]: min(pi_learner / pi_sampler, cap).

    Source: "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (Yao et al.,
    2025).

    Args:
        old_logprobs: [token], by the learner, of the policy that sampled.
        behavior_logprobs: [token], by the sampler.
        sequence: [token], which response the token belongs to.
        correction_cap: > 0; a small one bounds the variance.
    """
    return log_ratio(old_logprobs, behavior_logprobs).exp().clamp(max=correction_cap).detach()


def sequence_tis(
    old_logprobs: Tensor, behavior_logprobs: Tensor, sequence: Tensor, *, correction_cap: float
) -> Tensor:
    """Truncated importance weights of whole responses, [token]: the product over its tokens.

    Unbiased where a token's weight is not, but it explodes with the length of a response.
    """
    gap = response_sums(sequence, log_ratio(old_logprobs, behavior_logprobs))
    return gap.exp().clamp(max=correction_cap).detach()


def token_mis(
    old_logprobs: Tensor,
    behavior_logprobs: Tensor,
    sequence: Tensor,
    *,
    correction_floor: float,
    correction_cap: float,
) -> Tensor:
    """Masked importance weights, [token]: 0 outside [floor, cap]; IcePop (arXiv:2510.18855).

    A token that the two engines disagree about is left out; `token_tis` would learn from it.
    The band of Ring-1T is [0.5, 5].
    """
    ratio = log_ratio(old_logprobs, behavior_logprobs).exp()
    return _within(ratio, correction_floor, correction_cap)


def sequence_mis(
    old_logprobs: Tensor,
    behavior_logprobs: Tensor,
    sequence: Tensor,
    *,
    correction_floor: float,
    correction_cap: float,
) -> Tensor:
    """Masked importance weights of whole responses, [token]: 0 where the product is outside.

    Source: "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference
    Mismatch" (Liu, Li et al., 2025), which has no floor.
    """
    gap = response_sums(sequence, log_ratio(old_logprobs, behavior_logprobs))
    return _within(gap.exp(), correction_floor, correction_cap)


def _within(ratio: Tensor, floor: float, cap: float) -> Tensor:
    """Not a product with the mask, since 0 x inf is NaN."""
    return torch.where((ratio >= floor) & (ratio <= cap), ratio, 0.0).detach()


def k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """log p - log q: unbiased, of either sign, with the gradient of k2."""
    penalty = k2(logprobs, reference_logprobs)
    value = log_ratio(logprobs, reference_logprobs).detach()
    return value + penalty - penalty.detach()


def k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """(log p - log q)^2 / 2: biased, never negative, and the right gradient."""
    return 0.5 * log_ratio(logprobs, reference_logprobs).square()


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """q / p - 1 - log(q / p): unbiased, never negative (GRPO, arXiv:2402.03300, equation 4)."""
    gap = log_ratio(reference_logprobs, logprobs).clamp(max=MAX_LOG_RATIO)
    return gap.exp() - gap - 1


@dataclass(frozen=True)
class Totals:
    """The size of a mini-batch, over all micro-batches and ranks."""

    tokens: int  # the policy's own
    sequences: int  # responses
    positive_tokens: int  # the policy's own of correct responses


def token_mean(lengths: Tensor, totals: Totals) -> Tensor:
    """1 / tokens, [token]: every token weighs the same (DAPO, arXiv:2503.14476, equation 8).

    Args:
        lengths: [token] float, the number of tokens of each token's response.
        totals: of the whole mini-batch.
    """
    return torch.full_like(lengths, 1 / max(1, totals.tokens))


def sequence_mean(lengths: Tensor, totals: Totals) -> Tensor:
    """1 / (responses x length), [token]: responses weigh the same (GRPO, arXiv:2402.03300)."""
    return 1 / (lengths * max(1, totals.sequences))


def fixed_length(lengths: Tensor, totals: Totals, *, max_tokens: int) -> Tensor:
    """1 / (responses x longest response), [token]: Dr. GRPO (arXiv:2503.20783), section 3.2.

    A constant, so that neither long nor short responses are favoured; never the length of a batch.

    Args:
        lengths: [token] float, the number of tokens of each token's response.
        totals: of the whole mini-batch.
        max_tokens: of a response, or of all turns of an episode.
    """
    return torch.full_like(lengths, 1 / (max(1, totals.sequences) * max_tokens))


def positive_nll(logprobs: Tensor, correct: Tensor, *, num_positive_tokens: int) -> Tensor:
    """A micro-batch's share of the mean negative log-likelihood of right answers, scalar.

    VAPO (arXiv:2504.05118), equation 9: over the tokens of correct responses only, 0 if there are
    none.

    Args:
        logprobs: [token].
        correct: [token] bool, whether the token's response is correct by raw accuracy.
        num_positive_tokens: tokens of correct responses in the whole mini-batch, over all ranks.
    """
    return -widen(logprobs[correct]).sum() / max(1, num_positive_tokens)


def vanishes_without_advantage(objective: Callable[[TokenBatch], tuple[Tensor, Tensor]]) -> bool:
    """Return whether an advantage of 0 gives no loss and no gradient, wherever a ratio lies.

    That holds for all objectives of this module; an extension may add another one.
    """
    logprobs = torch.linspace(-2 * MAX_LOG_RATIO, 0.0, 64, requires_grad=True)
    zeros = torch.zeros_like(logprobs)
    old_logprobs = torch.full_like(zeros, -MAX_LOG_RATIO)
    losses, _ = objective(TokenBatch(logprobs, old_logprobs, zeros, zeros.long()))
    if losses.any() or not losses.requires_grad:
        return not losses.any()
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs, materialize_grads=True)
    return not gradient.any()


OBJECTIVES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "clip": clip,
    "dual_clip": dual_clip,
    "gspo": gspo,
    "cispo": cispo,
    "dppo": dppo,
    "ipo": ipo,
    "sapo": sapo,
    "gmpo": gmpo,
}

CORRECTIONS: dict[str, Callable[..., Tensor]] = {
    "none": none,
    "token_tis": token_tis,
    "sequence_tis": sequence_tis,
    "token_mis": token_mis,
    "sequence_mis": sequence_mis,
}

DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
}

AGGREGATIONS: dict[str, Callable[..., Tensor]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "fixed_length": fixed_length,
}
