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
    MAX_LOG_RATIO,
    OBJECTIVES,
    TokenBatch,
    Totals,
)
from tests.unit.learner.algorithms.random_cases import double, random_responses

Objective = Callable[[TokenBatch], tuple[Tensor, Tensor]]
Aggregation = Callable[[Tensor, Totals], Tensor]

BOUNDS = {"clip_low": 0.25, "clip_high": 0.5}
SETTINGS = {**BOUNDS, "dual_clip": 3.0, "tau_positive": 1.0, "tau_negative": 2.0}
CHOSEN = {name: pick(OBJECTIVES, name, SETTINGS) for name in OBJECTIVES}
WEIGHTS = {name: pick(AGGREGATIONS, name, {"max_tokens": 7}) for name in AGGREGATIONS}
every_objective = pytest.mark.parametrize("objective", CHOSEN.values(), ids=CHOSEN)
every_aggregation = pytest.mark.parametrize("aggregation", WEIGHTS.values(), ids=WEIGHTS)


def batch(
    log_ratios: list[float],
    advantages: list[float],
    rows: list[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> TokenBatch:
    """Tokens whose old log-prob is -1, each of a response of its own unless ``rows`` tells."""
    old = torch.full((len(log_ratios),), -1.0, dtype=dtype)
    logprobs = (old + torch.tensor(log_ratios, dtype=dtype)).requires_grad_()
    sequence = torch.tensor(range(len(log_ratios)) if rows is None else rows, dtype=torch.int64)
    return TokenBatch(logprobs, old, torch.tensor(advantages, dtype=dtype), sequence)


def gradient(losses: Tensor, tokens: TokenBatch) -> Tensor:
    (found,) = torch.autograd.grad(losses.sum(), tokens.logprobs)
    return found


@pytest.mark.parametrize(
    ("ratio", "advantage", "slopes"),
    [
        (1.4, 2.0, {"clip": -2.8, "dual_clip": -2.8, "gspo": -2.8, "cispo": -2.8}),
        (1.6, 2.0, {"clip": 0.0, "dual_clip": 0.0, "gspo": 0.0, "cispo": -3.0}),
        (0.7, 2.0, {"clip": -1.4, "dual_clip": -1.4, "gspo": -1.4, "cispo": -1.5}),
        (0.7, -2.0, {"clip": 0.0, "dual_clip": 0.0, "gspo": 0.0, "cispo": 1.5}),
        (3.1, -2.0, {"clip": 6.2, "dual_clip": 0.0, "gspo": 6.2, "cispo": 3.0}),
    ],
)
def test_a_bound_ends_the_gradient_and_cispos_only_limits_it(
    ratio: float, advantage: float, slopes: dict[str, float]
) -> None:
    tokens = batch([math.log(ratio)], [advantage])
    found = {name: gradient(CHOSEN[name](tokens)[0], tokens).item() for name in slopes}
    assert found == pytest.approx(slopes)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slopes"),
    [
        (1.6, 2.0, {"dppo": -3.2, "ipo": -3.2, "gmpo": -3.2}),  # whose logarithm is .47
        (1.7, 2.0, {"dppo": -3.4, "gmpo": 0.0}),  # .53
        (2.3, 2.0, {"dppo": -4.6, "gmpo": 0.0}),  # p from .368 to .846
        (2.4, 2.0, {"dppo": 0.0, "ipo": 0.0, "gmpo": 0.0}),  # to .883
        (0.77, -2.0, {"dppo": 1.54, "gmpo": 0.0}),  # -.26
        (0.4, -2.0, {"dppo": 0.8, "gmpo": 0.0}),  # to .147
        (0.3, -2.0, {"dppo": 0.0, "ipo": 0.0, "gmpo": 0.0}),  # to .110
        (0.3, 2.0, {"dppo": -0.6, "ipo": 0.0, "gmpo": -0.6}),
        (2.7, -2.0, {"dppo": 5.4, "ipo": 0.0, "gmpo": 5.4}),
    ],
)
def test_a_trust_region_ends_the_gradient_of_what_leaves_it(
    ratio: float, advantage: float, slopes: dict[str, float]
) -> None:
    tokens = batch([math.log(ratio)], [advantage])
    found = {name: gradient(CHOSEN[name](tokens)[0], tokens).item() for name in slopes}
    assert found == pytest.approx(slopes)


def test_a_soft_gate_fades_on_both_sides_and_the_faster_the_steeper() -> None:
    ratios = [0.01, 1.0, 2.0, 4.0]
    slopes: list[list[float]] = []
    for advantage in (1.0, -1.0):
        tokens = batch([math.log(ratio) for ratio in ratios], [advantage] * 4)
        found = gradient(CHOSEN["sapo"](tokens)[0], tokens) / double(ratios)
        slopes.append((-advantage * found).tolist())
    assert slopes[0] == pytest.approx([0.790075, 1.0, 0.786448, 0.180707], abs=1e-6)
    assert slopes[1] == pytest.approx([0.426402, 1.0, 0.419974, 0.009866], abs=1e-6)


@pytest.mark.parametrize("objective", [of for n, of in CHOSEN.items() if n != "cispo"])
def test_the_gradient_is_that_of_finite_differences(objective: Objective) -> None:
    tokens = random_responses(Random(8), 6).batch()
    logprobs = tokens.logprobs.requires_grad_()
    assert torch.autograd.gradcheck(lambda at: objective(replace(tokens, logprobs=at))[0], logprobs)


@every_objective
def test_the_bound_is_a_flag_without_a_gradient(objective: Objective) -> None:
    _, bound = objective(batch([-2.0, 0.0, 2.0], [-1.0, 1.0, 1.0]))
    assert bound.tolist() == ([0, 0, 0] if objective is CHOSEN["sapo"] else [-1, 0, 1])
    assert not bound.requires_grad


@every_objective
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [-1e4, 88.0, 1e4, math.inf])
def test_no_ratio_makes_a_loss_or_a_gradient_that_is_not_finite(
    objective: Objective, dtype: torch.dtype, gap: float
) -> None:
    old = torch.tensor([-1.0 - gap, -1.0], dtype=dtype)
    for advantage in (1.5, 0.0, -1.5):
        logprobs = torch.tensor([-1.0, -1.0], dtype=dtype, requires_grad=True)
        advantages = torch.tensor([advantage, advantage], dtype=dtype)
        tokens = TokenBatch(logprobs, old, advantages, torch.tensor([0, 1]))
        losses, _ = objective(tokens)
        assert losses.isfinite().all()
        assert gradient(losses, tokens).isfinite().all()


def test_a_ratio_is_exact_up_to_its_limit() -> None:
    ratio = batch([0.0, 19.9, 20.0, 20.1, -30.0], [0.0] * 5).ratio.tolist()
    largest = math.exp(20.0)
    assert ratio == pytest.approx([1.0, math.exp(19.9), largest, largest, math.exp(-30.0)])
    assert MAX_LOG_RATIO == 20


@every_objective
@every_aggregation
def test_nothing_is_learned_from_no_token(objective: Objective, aggregation: Aggregation) -> None:
    tokens = batch([], [])
    losses, bound = objective(tokens)
    loss = (aggregation(tokens.lengths, Totals(0, 0, 0)) * losses).sum()
    loss.backward()
    assert losses.shape == bound.shape == tokens.lengths.shape == tokens.ratio.shape == (0,)
    assert loss.item() == 0


@every_aggregation
def test_a_mini_batch_of_nothing_does_not_divide_by_zero(aggregation: Aggregation) -> None:
    nothing, one = (aggregation(double([1.0]), Totals(n, n, 0)) for n in (0, 1))
    assert torch.equal(nothing, one)


@every_objective
def test_half_precision_is_computed_in_float32(objective: Objective) -> None:
    numbers = ([0.25, -0.5, 0.125], [1.0, -1.0, 0.5], [0, 0, 1])
    half, single = (batch(*numbers, dtype) for dtype in (torch.bfloat16, torch.float32))
    torch.testing.assert_close(objective(half)[0], objective(single)[0])
    assert half.ratio.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lengths_are_counted_exactly_in_any_precision(dtype: torch.dtype) -> None:
    tokens = batch([0.0] * 3003, [0.0] * 3003, [0] * 3000 + [1] * 3, dtype)
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
        totals = Totals(len(tokens.logprobs), 6, positive_tokens=0)
        parts = [TokenBatch(*(v[part_of == n] for v in vars(tokens).values())) for n in range(3)]
        whole, *shares = (
            (aggregation(part.lengths, totals) * objective(part)[0]).sum()
            for part in (tokens, *parts)
        )
        torch.testing.assert_close(torch.stack(shares).sum(), whole)
