"""Advantages from a critic, its own loss, and right answers alone, at their edges."""

import math

import pytest
import torch
from torch import Tensor

from services.learner.algorithms import pick
from services.learner.algorithms.gae import (
    CRITIC_ADVANTAGES,
    Episodes,
    Moments,
    value_loss,
    whitened,
)
from services.learner.algorithms.loss import positive_nll
from tests.unit.learner.algorithms.random_cases import double

SETTINGS = {
    "gamma": 0.9,
    "lambda_actor": 0.8,
    "lambda_critic": 0.95,
    "length_alpha": 0.3,
}
every_estimate = pytest.mark.parametrize(
    "estimate",
    [pick(CRITIC_ADVANTAGES, name, SETTINGS) for name in CRITIC_ADVANTAGES],
    ids=CRITIC_ADVANTAGES,
)


@every_estimate
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0)])
def test_no_token_has_no_advantage(estimate, shape: tuple[int, int]) -> None:
    nothing = torch.zeros(shape)
    for result in estimate(Episodes(nothing, nothing, nothing.bool())):
        assert result.shape == shape


@every_estimate
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(estimate, dtype: torch.dtype) -> None:
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.25, 0.5, 0.375]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    half = estimate(
        Episodes(
            rewards.to(dtype),
            values.to(dtype),
            mask,
        )
    )
    single = estimate(Episodes(rewards, values, mask))
    assert {result.dtype for result in half} == {torch.float32}
    assert torch.equal(torch.stack(half), torch.stack(single))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_whitened_advantages_have_mean_0_and_variance_1(dtype: torch.dtype) -> None:
    values = (torch.arange(3000, dtype=torch.float64) % 7).to(dtype)
    white = whitened(values, lambda sums: sums)
    assert white.dtype == torch.promote_types(dtype, torch.float32)
    assert white.double().mean().item() == pytest.approx(0, abs=1e-6)
    assert white.double().var().item() == pytest.approx(1, abs=1e-6)


def test_the_variance_is_never_0_and_one_token_is_left_as_it_is() -> None:
    white = whitened(double([1.0, 1.0 + 2e-4]), lambda sums: sums)
    assert white.tolist() == pytest.approx([-1e-4 / math.sqrt(3e-8), 1e-4 / math.sqrt(3e-8)])
    for values in ([], [0.7]):
        assert whitened(double(values), lambda sums: sums).tolist() == values
    half = whitened(
        torch.tensor([0.5], dtype=torch.bfloat16),
        lambda sums: sums,
    )
    assert half.dtype == torch.float32


@pytest.mark.parametrize("split", [0, 1, 4, 9])
def test_whitening_is_the_same_on_any_number_of_ranks(split: int) -> None:
    values = torch.arange(9, dtype=torch.float64).square()
    whole: list[Tensor] = []
    alone = whitened(
        values,
        lambda sums: whole.append(sums) or sums,
    )

    def whiten_share(share: Tensor) -> tuple[Tensor, list[Tensor]]:
        sums, totals = list[Tensor](), iter(whole)
        return whitened(
            share,
            lambda own: sums.append(own) or next(totals),
        ), sums

    (first, sums), (second, other_sums) = map(whiten_share, (values[:split], values[split:]))
    torch.testing.assert_close(
        torch.cat([first, second]),
        alone,
    )
    torch.testing.assert_close(
        [a + b for a, b in zip(sums, other_sums, strict=True)],
        whole,
    )


@pytest.mark.parametrize(
    ("value_clip", "expected", "slopes"),
    [
        (None, [0.125, 0.125, 0.125], [0.5, -0.5, 0.5]),
        (0.25, [0.125, 0.28125, 0.28125], [0.5, 0.0, 0.0]),
    ],
)
def test_a_value_gains_nothing_from_moving_too_far(
    value_clip: float | None, expected: list[float], slopes: list[float]
) -> None:
    values = double([1.5, 1.5, 0.5]).requires_grad_()
    targets = double([1.0, 2.0, 0.0])
    losses = value_loss(values, double([1.0] * 3), targets, value_clip=value_clip)
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    assert losses.tolist() == pytest.approx(expected)
    assert gradient.tolist() == pytest.approx(slopes)
    half = values.detach().bfloat16()
    assert value_loss(half, half, half, value_clip=value_clip).dtype == torch.float32


def test_the_moments_of_ranks_add_up_and_are_exact_in_half_precision() -> None:
    returns, values = double([0.5, -1.0, 2.0, 0.25]), double([1.0, 0.5, -0.5, 2.0])
    parts = [Moments.of(returns[part], values[part]) for part in (slice(0, 1), slice(1, 4))]
    sums = [
        a + b
        for a, b in zip(
            *(vars(part).values() for part in parts),
            strict=True,
        )
    ]
    assert Moments(*sums) == Moments.of(returns, values)
    ones = torch.ones(3000, dtype=torch.bfloat16)
    assert Moments.of(ones, ones) == Moments(3000.0, 3000.0, 3000.0, 0.0, 0.0)


def test_where_nothing_varies_there_is_nothing_to_explain() -> None:
    for returns in ([], [1.0], [0.1] * 7, [0.0, 2e-6]):
        moments = Moments.of(
            double(returns),
            double([0.5] * len(returns)),
        )
        assert math.isnan(moments.explained_variance())
    barely = Moments.of(
        double([0.0, 2.1e-6]),
        double([0.0, 2.1e-6]),
    )
    assert barely.explained_variance() == pytest.approx(1)


def test_only_right_answers_are_imitated_and_all_of_the_mini_batch_counts() -> None:
    logprobs = torch.tensor(
        [-1.0, -math.inf, -3.0, -2.0],
        requires_grad=True,
    )
    correct = torch.tensor([True, False, True, False])
    nll = positive_nll(logprobs, correct, num_positive_tokens=8)
    nll.backward()
    assert nll.item() == 0.5
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.125, 0.0, -0.125, 0.0]
    nothing = positive_nll(
        logprobs.bfloat16(),
        correct & ~correct,
        num_positive_tokens=0,
    )
    assert (nothing.item(), nothing.dtype) == (0, torch.float32)
    assert positive_nll(logprobs[:1], correct[:1], num_positive_tokens=0).item() == 1
