"""The losses of tokens at their edges: bounds, overflows, nothing at all."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.learner.algorithms import pick
from services.learner.algorithms.aggregation import AGGREGATIONS, Totals, sequence_mean, token_mean
from services.learner.algorithms.objectives import (
    MAX_LOG_RATIO,
    OBJECTIVES,
    TokenBatch,
    cispo,
    clip,
    dual_clip,
    gspo,
    means_by,
    sums_by,
)
from tests.unit.learner.algorithms.random_cases import double

Objective = Callable[[TokenBatch], tuple[Tensor, Tensor]]

BOUNDS = {"clip_low": 0.25, "clip_high": 0.5}
SETTINGS = {**BOUNDS, "dual_clip": 3.0}
every_objective = pytest.mark.parametrize(
    "objective", [pick(OBJECTIVES, name, SETTINGS) for name in OBJECTIVES], ids=OBJECTIVES
)
every_aggregation = pytest.mark.parametrize(
    "aggregation",
    [pick(AGGREGATIONS, name, {"max_tokens": 7}) for name in AGGREGATIONS],
    ids=AGGREGATIONS,
)


def batch(
    log_ratios: list[float],
    advantages: list[float],
    sequence: list[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> TokenBatch:
    """Tokens whose old log-prob is -1."""
    old = torch.full((len(log_ratios),), -1.0, dtype=dtype)
    logprobs = (old + torch.tensor(log_ratios, dtype=dtype)).requires_grad_()
    rows = list(range(len(log_ratios))) if sequence is None else sequence
    return TokenBatch(
        logprobs,
        old,
        torch.tensor(advantages, dtype=dtype),
        torch.tensor(rows, dtype=torch.int64),
    )


def at_ratios(ratios: list[float], advantages: list[float]) -> TokenBatch:
    return batch([math.log(ratio) for ratio in ratios], advantages)


def gradient(objective: Objective, tokens: TokenBatch) -> Tensor:
    losses, _ = objective(tokens)
    (found,) = torch.autograd.grad(losses.sum(), tokens.logprobs)
    return found


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "bound", "slope"),
    [
        (1.0, 2.0, -2.0, 0, -2.0),
        (1.4, 2.0, -2.8, 0, -2.8),
        (1.6, 2.0, -3.0, 1, 0.0),
        (0.1, 2.0, -0.2, 0, -0.2),
        (0.8, -2.0, 1.6, 0, 1.6),
        (0.7, -2.0, 1.5, -1, 0.0),
        (2.9, -2.0, 5.8, 0, 5.8),
        (3.1, -2.0, 6.2, 0, 6.2),
        (9.0, 0.0, 0.0, 0, 0.0),
    ],
)
def test_clip_by_hand(
    ratio: float, advantage: float, loss: float, bound: int, slope: float
) -> None:
    tokens = at_ratios([ratio], [advantage])
    losses, held = clip(tokens, **BOUNDS)
    assert losses.item() == pytest.approx(loss)
    assert held.item() == bound
    assert gradient(partial(clip, **BOUNDS), tokens).item() == pytest.approx(slope)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "bound", "slope"),
    [
        (1.6, 2.0, -3.0, 1, 0.0),
        (9.0, 2.0, -3.0, 1, 0.0),
        (0.7, -2.0, 1.5, -1, 0.0),
        (2.9, -2.0, 5.8, 0, 5.8),
        (3.1, -2.0, 6.0, 1, 0.0),
        (9.0, 0.0, 0.0, 0, 0.0),
    ],
)
def test_dual_clip_by_hand(
    ratio: float, advantage: float, loss: float, bound: int, slope: float
) -> None:
    tokens = at_ratios([ratio], [advantage])
    losses, held = dual_clip(tokens, **BOUNDS, dual_clip=3.0)
    assert losses.item() == pytest.approx(loss)
    assert held.item() == bound
    assert gradient(partial(dual_clip, **SETTINGS), tokens).item() == pytest.approx(slope)


def test_a_loss_exactly_at_the_dual_bound_is_not_held() -> None:
    tokens = at_ratios([3.0], [-2.0])
    exactly = tokens.ratio.item()
    losses, held = dual_clip(tokens, **BOUNDS, dual_clip=exactly)
    assert losses.item() == 2 * exactly
    assert held.item() == 0


@pytest.mark.parametrize(
    ("ratio", "weight", "bound"), [(1.0, 1.0, 0), (0.6, 0.75, -1), (1.2, 1.2, 0), (1.6, 1.5, 1)]
)
def test_every_token_of_cispo_keeps_a_gradient(ratio: float, weight: float, bound: int) -> None:
    for advantage in (2.0, -2.0):
        tokens = at_ratios([ratio], [advantage])
        losses, held = cispo(tokens, **BOUNDS)
        assert losses.item() == pytest.approx(-weight * advantage * tokens.logprobs.item())
        assert held.item() == bound
        slope = gradient(partial(cispo, **BOUNDS), tokens).item()
        assert slope == pytest.approx(-weight * advantage)


def test_gspo_moves_all_tokens_of_a_response_alike() -> None:
    tokens = batch([0.3, -0.1, 0.4, 0.9], [1.0, 1.0, 1.0, -1.0], [0, 0, 0, 1])
    losses, bound = gspo(tokens, **BOUNDS)
    ratio = math.exp(0.2)
    assert losses.tolist() == pytest.approx([-ratio] * 3 + [math.exp(0.9)])
    assert bound.tolist() == [0] * 4
    slopes = gradient(partial(gspo, **BOUNDS), tokens).tolist()
    assert slopes == pytest.approx([-ratio] * 3 + [math.exp(0.9)])


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=9))
def test_for_responses_of_one_token_gspo_is_clip(pairs: list[tuple[float, float]]) -> None:
    tokens = batch([gap for gap, _ in pairs], [advantage for _, advantage in pairs])
    for found, expected in zip(gspo(tokens, **BOUNDS), clip(tokens, **BOUNDS), strict=True):
        torch.testing.assert_close(found, expected)


@every_objective
def test_the_bound_is_a_flag_without_a_gradient(objective: Objective) -> None:
    _, bound = objective(at_ratios([0.1, 1.0, 9.0], [-1.0, 1.0, 1.0]))
    assert bound.tolist() == [-1, 0, 1]
    assert not bound.requires_grad


@every_objective
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [-1e4, -100.0, 88.0, 100.0, 1e4, math.inf])
def test_no_ratio_makes_a_loss_or_a_gradient_that_is_not_finite(
    objective: Objective, dtype: torch.dtype, gap: float
) -> None:
    for advantage in (1.5, 0.0, -1.5):
        old = torch.tensor([-1.0 - gap, -1.0], dtype=dtype)
        logprobs = torch.tensor([-1.0, -1.0], dtype=dtype, requires_grad=True)
        advantages = torch.tensor([advantage, advantage], dtype=dtype)
        tokens = TokenBatch(logprobs, old, advantages, torch.tensor([0, 1]))
        losses, bound = objective(tokens)
        assert losses.isfinite().all()
        assert gradient(objective, tokens).isfinite().all()
        assert bound.isfinite().all()


def test_a_ratio_is_exact_up_to_its_limit() -> None:
    ratio = batch([0.0, 19.9, 20.0, 20.1, -30.0], [0.0] * 5).ratio.tolist()
    largest = math.exp(MAX_LOG_RATIO)
    assert ratio == pytest.approx([1.0, math.exp(19.9), largest, largest, math.exp(-30.0)])
    assert MAX_LOG_RATIO == 20


@every_objective
@every_aggregation
def test_nothing_is_learned_from_no_token(
    objective: Objective, aggregation: Callable[..., Tensor]
) -> None:
    tokens = batch([], [])
    losses, bound = objective(tokens)
    loss = (aggregation(tokens.lengths, Totals(0, 0, 0)) * losses).sum()
    loss.backward()
    assert losses.shape == bound.shape == tokens.lengths.shape == tokens.ratio.shape == (0,)
    assert loss.item() == 0


@every_objective
def test_half_precision_is_computed_in_float32(objective: Objective) -> None:
    tokens = batch([0.25, -0.5, 0.125], [1.0, -1.0, 0.5], [0, 0, 1], dtype=torch.bfloat16)
    single = batch([0.25, -0.5, 0.125], [1.0, -1.0, 0.5], [0, 0, 1], dtype=torch.float32)
    losses, _ = objective(tokens)
    torch.testing.assert_close(losses, objective(single)[0])
    assert losses.dtype == tokens.ratio.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lengths_are_counted_exactly_in_any_precision(dtype: torch.dtype) -> None:
    tokens = batch([0.0] * 3003, [0.0] * 3003, [0] * 3000 + [1] * 3, dtype=dtype)
    assert tokens.lengths[[0, 2999, 3000, 3002]].tolist() == [3000, 3000, 3, 3]


def test_sums_and_means_are_those_of_each_response() -> None:
    rows = torch.tensor([1, 0, 1, 3])
    values = double([1.0, 10.0, 2.0, 5.0])
    assert sums_by(rows, values).tolist() == [3.0, 10.0, 3.0, 5.0]
    assert means_by(rows, values).tolist() == [1.5, 10.0, 1.5, 5.0]


@every_objective
@every_aggregation
@given(data=st.data())
def test_a_split_into_micro_batches_never_changes_the_loss(
    objective: Objective, aggregation: Callable[..., Tensor], data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    part_of = data.draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    rows = [row for row, length in enumerate(lengths) for _ in range(length)]
    numbers = st.lists(st.floats(-2, 2), min_size=len(rows), max_size=len(rows))
    tokens = batch(data.draw(numbers), data.draw(numbers), rows)
    totals = Totals(len(rows), len(lengths), positive_tokens=0)

    def loss(part: TokenBatch) -> Tensor:
        return (aggregation(part.lengths, totals) * objective(part)[0]).sum()

    shares = []
    for part in range(3):
        mine = torch.tensor([part_of[row] == part for row in rows])
        fields = (tokens.logprobs, tokens.old_logprobs, tokens.advantages, tokens.sequence)
        shares.append(loss(TokenBatch(*(field[mine] for field in fields))))
    torch.testing.assert_close(torch.stack(shares).sum(), loss(tokens))


def test_weights_by_hand() -> None:
    lengths, totals = double([3, 3, 3, 1]), Totals(tokens=8, sequences=4, positive_tokens=0)
    assert token_mean(lengths, totals).tolist() == [1 / 8] * 4
    assert sequence_mean(lengths, totals).tolist() == [1 / 12] * 3 + [1 / 4]
    fixed = pick(AGGREGATIONS, "fixed_length", {"max_tokens": 5})
    assert fixed(lengths, totals).tolist() == [1 / 20] * 4


@every_aggregation
def test_a_mini_batch_of_nothing_does_not_divide_by_zero(
    aggregation: Callable[..., Tensor],
) -> None:
    assert aggregation(double([1.0]), Totals(0, 0, 0)).isfinite().all()
    one = Totals(1, 1, 0)
    assert torch.equal(aggregation(double([1.0]), Totals(0, 0, 0)), aggregation(double([1.0]), one))


def test_one_response_alone_has_the_whole_weight() -> None:
    lengths, alone = double([2, 2]), Totals(tokens=2, sequences=1, positive_tokens=0)
    fixed = pick(AGGREGATIONS, "fixed_length", {"max_tokens": 5})
    assert (
        token_mean(lengths, alone).tolist() == sequence_mean(lengths, alone).tolist() == [0.5] * 2
    )
    assert fixed(lengths, alone).tolist() == [0.2] * 2
