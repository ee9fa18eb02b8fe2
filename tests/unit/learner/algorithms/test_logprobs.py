"""Log-probs in chunks are those of the dense path; what compares log-probs, at its edges."""

import math
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from services.learner.algorithms import logprobs, pick
from services.learner.algorithms.logprobs import chunked_token_logprobs, token_logprobs
from services.learner.algorithms.loss import CORRECTIONS, DIVERGENCES
from tests.unit.learner.algorithms.random_cases import double

TOKENS, WIDTH, VOCABULARY, TEMPERATURE = 12, 8, 33, 0.7
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float64: 1e-12}


def model(dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, Tensor, Tensor]:
    """A head, hidden states and targets."""
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, dtype=dtype)
    hidden = torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    return head, hidden, torch.randint(VOCABULARY, (TOKENS,))


def loss(logprobs: Tensor, entropies: Tensor, *, of: str = "both") -> Tensor:
    """Weighs every token differently, and the entropy too."""
    weights = torch.linspace(-1, 1, len(logprobs), dtype=logprobs.dtype)
    terms = {"logprobs": weights * logprobs, "entropies": weights.square() * entropies}
    return torch.stack([t.sum() for name, t in terms.items() if of in (name, "both")]).sum()


@pytest.mark.parametrize("of", ["logprobs", "entropies", "both"])
@pytest.mark.parametrize("learned", [(0, 1, 2), (0, 1), (0,), (1,)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("chunk_tokens", [1, 5, 12, 13])
def test_chunks_have_the_values_and_gradients_of_the_whole(
    dtype: torch.dtype, chunk_tokens: int, learned: tuple[int, ...], of: str
) -> None:
    head, hidden, targets = model(dtype)
    tensors = (hidden, head.weight, head.bias)
    for index, tensor in enumerate(tensors):
        tensor.requires_grad_(index in learned)
    dense = token_logprobs(head(hidden), targets, TEMPERATURE)
    chunked = chunked_token_logprobs(*tensors, targets, TEMPERATURE, chunk_tokens)
    expected, found = (
        torch.autograd.grad(loss(*values, of=of), [tensors[index] for index in learned])
        for values in (dense, chunked)
    )
    for one, other in zip((*chunked, *found), (*dense, *expected), strict=True):
        torch.testing.assert_close(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert chunked[0].dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize(
    ("head_learns", "of", "again"),
    [(True, "logprobs", True), (False, "both", True), (False, "logprobs", False)],
)
@pytest.mark.parametrize(
    ("length", "size", "chunks"), [(12, 5, [5, 5, 2]), (1, 1, [1]), (0, 4, [0])]
)
def test_only_a_chunk_of_logits_exists_and_the_backward_pass_computes_it_again_if_it_must(
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    size: int,
    chunks: list[int],
    *,
    head_learns: bool,
    of: str,
    again: bool,
) -> None:
    head, hidden, targets = model()
    head.requires_grad_(head_learns)
    seen: list[int] = []

    def counted(part: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        seen.append(len(part))
        return linear(part, weight, bias)

    monkeypatch.setattr(logprobs, "linear", counted)
    part = (hidden[:length], head.weight, head.bias, targets[:length])
    found = chunked_token_logprobs(*part, TEMPERATURE, size)
    assert seen == chunks
    loss(*found, of=of).backward()
    keeps_logits = head_learns and len(chunks) == 1
    assert seen == chunks * (1 + (again and not keeps_logits))
    assert [len(values) for values in found] == [length, length]


def test_without_gradients_nothing_is_kept_for_them() -> None:
    head, hidden, targets = model()
    with torch.no_grad():
        found = chunked_token_logprobs(hidden, head.weight, head.bias, targets, TEMPERATURE, 5)
    assert not any(values.requires_grad for values in found)


def test_half_precision_logits_are_normalized_in_float32() -> None:
    logits, targets = torch.randn(4, 1000).bfloat16(), torch.tensor([0, 1, 2, 3])
    found = token_logprobs(logits, targets, TEMPERATURE)
    for one, other in zip(found, token_logprobs(logits.float(), targets, TEMPERATURE), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_weight_is_bounded_and_carries_no_gradient(name: str, dtype: torch.dtype) -> None:
    old = torch.tensor([-1.0, -1.0, -0.5], dtype=dtype, requires_grad=True)
    sampled, rows = torch.tensor([-1.0, -300.0, -0.5], dtype=dtype), torch.tensor([0, 0, 1])
    correction = pick(CORRECTIONS, name, {"correction_cap": 2.0, "correction_floor": 1.0})
    weights = correction(old, sampled, rows)
    expected = {"none": [1, 1, 1], "token_tis": [1, 2, 1], "sequence_tis": [2, 2, 1]}
    expected |= {"token_mis": [1, 0, 1], "sequence_mis": [0, 0, 1]}
    assert weights.tolist() == expected[name]
    assert weights.dtype == torch.float32
    assert not weights.requires_grad
    assert correction(old[:0], sampled[:0], rows[:0]).shape == (0,)


@pytest.mark.parametrize(("name", "slope"), [("k1", -0.5), ("k2", -0.5), ("k3", 1 - math.exp(0.5))])
def test_the_gradient_of_a_divergence(name: str, slope: float) -> None:
    logprobs = double([-1.5]).requires_grad_()
    (found,) = torch.autograd.grad(DIVERGENCES[name](logprobs, double([-1.0])).sum(), logprobs)
    assert found.item() == pytest.approx(slope)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("gap", [-1e4, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_gap_makes_a_divergence_or_a_gradient_that_is_not_finite(
    name: str, gap: float, dtype: torch.dtype
) -> None:
    logprobs = torch.tensor([0.0], dtype=dtype, requires_grad=True)
    divergence = DIVERGENCES[name](logprobs, torch.tensor([gap], dtype=dtype))
    (gradient,) = torch.autograd.grad(divergence.sum(), logprobs)
    assert divergence.isfinite().all()
    assert gradient.isfinite().all()
    assert divergence.dtype == torch.float32


def test_k3_is_exact_up_to_its_limit() -> None:
    found = DIVERGENCES["k3"](double([0.0] * 4), double([19.9, 20.0, 20.1, -50.0]))
    largest = math.exp(20.0) - 21
    assert found.tolist() == pytest.approx([math.exp(19.9) - 20.9, largest, largest, 49.0])


def test_a_head_of_bfloat16_computes_in_float32() -> None:
    torch.manual_seed(0)
    hidden, weight = 8 * torch.randn(TOKENS, 64).bfloat16(), torch.randn(VOCABULARY, 64).bfloat16()
    targets = torch.randint(VOCABULARY, (TOKENS,))
    tensors = [each.detach().clone().requires_grad_() for each in (hidden, weight)]
    wide = [each.float().detach().requires_grad_() for each in (hidden, weight)]
    found = chunked_token_logprobs(tensors[0], tensors[1], None, targets, TEMPERATURE, 5)
    expected = token_logprobs(linear(*wide), targets, TEMPERATURE)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    gradients = torch.autograd.grad(loss(*found), tensors)
    for one, other in zip(gradients, torch.autograd.grad(loss(*expected), wide), strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.float(), other, atol=1e-4, rtol=2**-8)


@pytest.mark.parametrize("learned", [(0, 1, 2), (0,)], ids=str)
def test_rows_beyond_the_ids_in_use_have_no_part(learned: tuple[int, ...]) -> None:
    head, hidden, targets = model()
    num = int(targets.max()) + 1
    tensors = [hidden, head.weight, cast(Tensor, head.bias)]
    for index, tensor in enumerate(tensors):
        tensor.requires_grad_(index in learned)
    of_head = tensors[0], tensors[1], tensors[2]
    found = chunked_token_logprobs(*of_head, targets, TEMPERATURE, 5, num_ids=num)
    expected = token_logprobs(head(hidden)[:, :num], targets, TEMPERATURE)
    torch.testing.assert_close(found, expected)
    needed = [tensors[index] for index in learned]
    torch.testing.assert_close(
        torch.autograd.grad(loss(*found), needed), torch.autograd.grad(loss(*expected), needed)
    )
