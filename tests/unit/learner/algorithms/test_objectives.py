"""The losses of tokens at their edges: bounds, gradients, overflows, nothing at all."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from services.learner.algorithms import pick
from services.learner.algorithms.loss import (
    AGGREGATIONS,
    OBJECTIVES,
    TokenBatch,
    Totals,
    vanishes_without_advantage,
)
from tests.unit.learner.algorithms.random_cases import double, random_responses

Objective = Callable[[TokenBatch], tuple[Tensor, Tensor]]
Aggregation = Callable[[Tensor, Totals], Tensor]

BOUNDS = {"clip_low": 0.25, "clip_high": 0.5}
SETTINGS = {
    **BOUNDS,
    "dual_clip": 3.0,
    "tau_positive": 1.0,
    "tau_negative": 2.0,
}
OBJECTIVE = {name: pick(OBJECTIVES, name, SETTINGS) for name in OBJECTIVES}
WEIGHTS = {name: pick(AGGREGATIONS, name, {"max_tokens": 7}) for name in AGGREGATIONS}
every_objective = pytest.mark.parametrize("objective", OBJECTIVE.values(), ids=OBJECTIVE)
every_aggregation = pytest.mark.parametrize("aggregation", WEIGHTS.values(), ids=WEIGHTS)


def batch(
    log_ratios: list[float],
    advantages: list[float],
    rows: list[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> TokenBatch:
    """Tokens whose old log-prob is -1, each of a response of its own unless ``rows`` tells."""
    old = torch.full(
        (len(log_ratios),),
        -1.0,
        dtype=dtype,
    )
    logprobs = (old + torch.tensor(log_ratios, dtype=dtype)).requires_grad_()
    sequence = torch.tensor(
        range(len(log_ratios)) if rows is None else rows,
        dtype=torch.int64,
    )
    return TokenBatch(
        logprobs,
        old,
        torch.tensor(advantages, dtype=dtype),
        sequence,
    )


def gradient(losses: Tensor, tokens: TokenBatch) -> Tensor:
    return torch.autograd.grad(losses.sum(), tokens.logprobs)[0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [
        (1.4, 2.0, -2.8),
        (1.6, 2.0, -3.0),
        (0.7, 2.0, -1.5),
        (0.7, -2.0, 1.5),
        (3.1, -2.0, 3.0),
    ],
)
def test_cispos_bound_limits_the_gradient_and_never_ends_it(
    ratio: float, advantage: float, slope: float
) -> None:
    tokens = batch([math.log(ratio)], [advantage])
    assert gradient(OBJECTIVE["cispo"](tokens)[0], tokens).item() == pytest.approx(slope)


@pytest.mark.parametrize("name", sorted(OBJECTIVES.keys() - {"cispo"}))
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    tokens = random_responses(Random(8), 6).batch()
    logprobs = tokens.logprobs.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda at: OBJECTIVE[name](replace(tokens, logprobs=at))[0], logprobs
    )


@every_objective
def test_the_bound_is_a_flag_without_a_gradient(objective: Objective) -> None:
    _, bound = objective(batch([-2.0, 0.0, 2.0], [-1.0, 1.0, 1.0]))
    assert bound.tolist() == ([0, 0, 0] if objective is OBJECTIVE["sapo"] else [-1, 0, 1])
    assert not bound.requires_grad


@every_objective
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ],
)
@pytest.mark.parametrize("gap", [-1e4, 88.0, 1e4, math.inf])
def test_no_ratio_makes_a_loss_or_a_gradient_that_is_not_finite(
    objective: Objective, dtype: torch.dtype, gap: float
) -> None:
    old = torch.tensor([-1.0 - gap, -1.0], dtype=dtype)
    for advantage in (1.5, 0.0, -1.5):
        logprobs = torch.tensor(
            [-1.0, -1.0],
            dtype=dtype,
            requires_grad=True,
        )
        advantages = torch.tensor([advantage, advantage], dtype=dtype)
        tokens = TokenBatch(logprobs, old, advantages, torch.tensor([0, 1]))
        losses, _ = objective(tokens)
        assert losses.isfinite().all()
        assert gradient(losses, tokens).isfinite().all()


def test_a_ratio_is_exact_up_to_its_limit() -> None:
    ratio = batch([0.0, 19.9, 20.0, 20.1, -30.0], [0.0] * 5).ratio.tolist()
    largest = math.exp(20.0)
    assert ratio == pytest.approx([1.0, math.exp(19.9), largest, largest, math.exp(-30.0)])


@every_objective
@every_aggregation
def test_nothing_is_learned_from_no_token(objective: Objective, aggregation: Aggregation) -> None:
    tokens = batch([], [])
    losses, bound = objective(tokens)
    loss = (aggregation(tokens.lengths, Totals(0, 0, 0)) * losses).sum()
    loss.backward()
    assert losses.shape == bound.shape == tokens.lengths.shape == tokens.ratio.shape == (0,)
    assert loss.item() == 0
    nothing, one = (aggregation(double([1.0]), Totals(n, n, 0)) for n in (0, 1))
    assert torch.equal(nothing, one)  # not divided by zero


@every_objective
def test_half_precision_is_computed_in_float32(objective: Objective) -> None:
    numbers = (
        [0.25, -0.5, 0.125],
        [1.0, -1.0, 0.5],
        [0, 0, 1],
    )
    half, single = (batch(*numbers, dtype) for dtype in (torch.bfloat16, torch.float32))
    torch.testing.assert_close(
        objective(half)[0],
        objective(single)[0],
    )
    assert half.ratio.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lengths_are_counted_exactly_in_any_precision(dtype: torch.dtype) -> None:
    tokens = batch(
        [0.0] * 3003,
        [0.0] * 3003,
        [0] * 3000 + [1] * 3,
        dtype,
    )
    assert tokens.lengths[[0, 2999, 3000, 3002]].tolist() == [3000, 3000, 3, 3]


@every_objective
@every_aggregation
def test_a_split_into_micro_batches_never_changes_the_loss(
    objective: Objective, aggregation: Aggregation
) -> None:
    for seed in range(5):
        random = Random(seed)
        tokens = random_responses(random, 6).batch()
        part_of = torch.tensor([random.randrange(3) for _ in range(6)])[tokens.sequence]
        totals = Totals(
            len(tokens.logprobs),
            6,
            positive_tokens=0,
        )
        parts = [TokenBatch(*(v[part_of == n] for v in vars(tokens).values())) for n in range(3)]
        whole, *shares = (
            (aggregation(part.lengths, totals) * objective(part)[0]).sum()
            for part in (tokens, *parts)
        )
        torch.testing.assert_close(
            torch.stack(shares).sum(),
            whole,
        )


def test_an_objective_of_an_extension_is_probed_for_losses_without_an_advantage() -> None:
    def only_chosen(tokens: TokenBatch) -> tuple[Tensor, Tensor]:
        losses = torch.zeros_like(tokens.advantages)
        chosen = tokens.advantages != 0
        losses[chosen] = -(tokens.advantages * tokens.logprobs)[chosen]
        return losses, torch.zeros_like(losses)

    def with_penalty(tokens: TokenBatch) -> tuple[Tensor, Tensor]:
        losses = tokens.log_ratio.square() - tokens.advantages * tokens.ratio
        return losses, torch.zeros_like(losses)

    assert vanishes_without_advantage(only_chosen)
    assert not vanishes_without_advantage(with_penalty)
