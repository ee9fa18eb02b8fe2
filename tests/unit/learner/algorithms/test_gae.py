"""Advantages from a critic: masks, edges, and whitening over ranks."""

import math
import threading
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.learner.algorithms import pick
from services.learner.algorithms.gae import (
    CRITIC_ADVANTAGES,
    Episodes,
    bare_length_lambda,
    discounted,
    gae,
    length_adaptive_gae,
    length_adaptive_lambda,
    returns_of,
    whitened,
)
from tests.unit.learner.algorithms.random_cases import double, random_episodes

SETTINGS = {"gamma": 0.9, "lambda_actor": 0.8, "lambda_critic": 0.95, "length_alpha": 0.3}
every_estimate = pytest.mark.parametrize(
    "estimate",
    [pick(CRITIC_ADVANTAGES, name, SETTINGS) for name in CRITIC_ADVANTAGES],
    ids=CRITIC_ADVANTAGES,
)


def one_episode(
    rewards: list[float], values: list[float], mask: list[bool] | None = None
) -> Episodes:
    on = [True] * len(rewards) if mask is None else mask
    return Episodes(double([rewards]), double([values]), torch.tensor([on], dtype=torch.bool))


@every_estimate
@given(st.integers(0, 10_000))
def test_masked_tokens_and_their_values_never_matter(estimate, seed: int) -> None:
    case = random_episodes(Random(seed), num_responses=3)
    advantages, returns = estimate(case.episodes)
    mask = case.episodes.mask
    assert not advantages[~mask].any()
    assert not returns[~mask].any()
    for row, (rewards, values) in enumerate(zip(case.rewards, case.values, strict=True)):
        alone = estimate(one_episode(rewards, values))
        torch.testing.assert_close(advantages[row][mask[row]], alone[0][0])
        torch.testing.assert_close(returns[row][mask[row]], alone[1][0])


@every_estimate
def test_estimates_leave_their_inputs_as_they_were(estimate) -> None:
    episodes = one_episode([0.0, 1.0], [0.25, 0.5])
    estimate(episodes)
    assert episodes.rewards.tolist() == [[0.0, 1.0]]
    assert episodes.values.tolist() == [[0.25, 0.5]]


@every_estimate
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0)])
def test_no_token_has_no_advantage(estimate, shape: tuple[int, int]) -> None:
    nothing = torch.zeros(shape)
    for found in estimate(Episodes(nothing, nothing, nothing.bool())):
        assert found.shape == shape


@every_estimate
def test_a_response_of_one_token_earns_its_surprise(estimate) -> None:
    advantages, returns = estimate(one_episode([1.0], [0.25]))
    assert advantages.tolist() == [[0.75]]
    assert returns.tolist() == [[1.0]]


@every_estimate
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(estimate, dtype: torch.dtype) -> None:
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.25, 0.5, 0.375]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    half = estimate(Episodes(rewards.to(dtype), values.to(dtype), mask))
    single = estimate(Episodes(rewards, values, mask))
    for found, expected in zip(half, single, strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


def test_plain_gae_has_one_lambda_for_both() -> None:
    episodes = one_episode([0.0, 0.0, 1.0], [0.1, 0.2, 0.3])
    advantages, returns = gae(episodes, gamma=0.9, lambda_actor=0.5)
    torch.testing.assert_close(returns, advantages + episodes.values)


def test_targets_are_monte_carlo_returns_whatever_the_critic_says() -> None:
    episodes = one_episode([0.0, 0.0, 2.0], [5.0, -7.0, 3.0])
    found = returns_of(episodes, gamma=0.5, lambda_=1.0)
    assert found.tolist() == [[0.5, 1.0, 2.0]]


def test_each_response_may_have_its_own_lambda() -> None:
    episodes = Episodes(double([[0, 1]] * 2), double([[0.5, 0.5]] * 2), torch.ones(2, 2).bool())
    found = discounted(episodes, gamma=1.0, lambda_=double([0.0, 1.0]))
    assert found.tolist() == [[0.0, 0.5], [0.5, 0.5]]


def test_the_lambda_of_a_response_counts_only_its_own_tokens() -> None:
    mask = [True, False, True, False, True, True, False]
    episodes = one_episode([0.0] * 7, [0.0, 9.0, 0.5, 9.0, 0.25, 0.5, 9.0], mask)
    settings = {"gamma": 1.0, "length_alpha": 0.3, "lambda_critic": 1.0}
    advantages, _ = length_adaptive_gae(episodes, **settings)
    expected = discounted(episodes, gamma=1.0, lambda_=1 - 1 / (0.3 * 4))
    torch.testing.assert_close(advantages, expected, atol=1e-12, rtol=0)


def test_the_adaptive_lambda_is_never_negative() -> None:
    lengths = double([0, 1, 10, 20, 25, 400])
    expected = [0.0, 0.0, 0.0, 0.0, 0.2, 0.95]
    assert length_adaptive_lambda(lengths, 0.05).tolist() == pytest.approx(expected)
    assert bare_length_lambda(double([1, 10, 20]), 0.05).tolist() == pytest.approx([-19, -1, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_whitened_advantages_have_mean_0_and_variance_1(dtype: torch.dtype) -> None:
    values = (torch.arange(3000, dtype=torch.float64) % 7).to(dtype)
    white = whitened(values, lambda sums: sums)
    assert white.dtype == torch.promote_types(dtype, torch.float32)
    assert white.double().mean().item() == pytest.approx(0, abs=1e-6)
    assert white.double().var().item() == pytest.approx(1, abs=1e-6)


def test_the_variance_is_never_0() -> None:
    white = whitened(double([1.0, 1.0 + 2e-4]), lambda sums: sums)
    assert white.tolist() == pytest.approx([-1e-4 / math.sqrt(3e-8), 1e-4 / math.sqrt(3e-8)])
    assert whitened(double([0.3] * 5), lambda sums: sums).tolist() == pytest.approx([0.0] * 5)


@pytest.mark.parametrize("values", [[], [0.7]])
def test_without_two_tokens_there_is_nothing_to_whiten(values: list[float]) -> None:
    assert whitened(double(values), lambda sums: sums).tolist() == values


class Ranks:
    """Adds tensors up over two threads, as an all-reduce does over ranks."""

    def __init__(self) -> None:
        self.meeting = threading.Barrier(2, timeout=20)
        self.given: list[Tensor | None] = [None, None]

    def add_up(self, rank: int, mine: Tensor) -> Tensor:
        self.given[rank] = mine
        self.meeting.wait()
        total = sum(given for given in self.given if given is not None)
        self.meeting.wait()
        assert isinstance(total, Tensor)
        return total


@pytest.mark.parametrize("split", [0, 1, 4, 9])
def test_whitening_is_the_same_on_any_number_of_ranks(split: int) -> None:
    values = torch.arange(9, dtype=torch.float64).square()
    shares, ranks, found = (values[:split], values[split:]), Ranks(), {}

    def whiten_on(rank: int) -> None:
        found[rank] = whitened(shares[rank], lambda mine: ranks.add_up(rank, mine))

    threads = [threading.Thread(target=whiten_on, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = whitened(values, lambda sums: sums)
    torch.testing.assert_close(torch.cat([found[0], found[1]]), alone)
