"""Log-probs and entropies in chunks are those of the dense path, in values and gradients."""

import math

import pytest
import torch
from torch import Tensor, nn

from services.learner.algorithms.logprobs import chunked_token_logprobs, token_logprobs

TOKENS, WIDTH, VOCABULARY, TEMPERATURE = 12, 8, 33, 0.7
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}


def model(dtype: torch.dtype) -> tuple[nn.Linear, Tensor, Tensor]:
    """A head, hidden states and targets."""
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=dtype)
    hidden = torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    return head, hidden, torch.randint(VOCABULARY, (TOKENS,))


def loss(logprobs: Tensor, entropies: Tensor) -> Tensor:
    """Weighs every token differently, and the entropy too."""
    weights = torch.linspace(-1, 1, len(logprobs), dtype=logprobs.dtype)
    return (weights * logprobs).sum() + (weights.square() * entropies).sum()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("chunk_tokens", [1, 3, 4, 5, 11, 12, 13, 1000])
def test_chunks_have_the_values_and_gradients_of_the_whole(
    dtype: torch.dtype, chunk_tokens: int
) -> None:
    head, hidden, targets = model(dtype)
    dense = token_logprobs(head(hidden), targets, TEMPERATURE)
    expected = torch.autograd.grad(loss(*dense), [hidden, head.weight])
    chunked = chunked_token_logprobs(hidden, head, targets, TEMPERATURE, chunk_tokens)
    found = torch.autograd.grad(loss(*chunked), [hidden, head.weight])
    for one, other in zip((*chunked, *found), (*dense, *expected), strict=True):
        torch.testing.assert_close(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert chunked[0].dtype == torch.promote_types(dtype, torch.float32)


def test_only_a_chunk_of_logits_exists_and_the_backward_pass_computes_it_again() -> None:
    head, hidden, targets = model(torch.float32)
    seen: list[int] = []

    def counted(part: Tensor) -> Tensor:
        seen.append(len(part))
        return head(part)

    logprobs, entropies = chunked_token_logprobs(hidden, counted, targets, TEMPERATURE, 5)
    assert seen == [5, 5, 2]
    loss(logprobs, entropies).backward()
    assert sorted(seen) == [2, 2, 5, 5, 5, 5]


def test_one_token_or_none_is_one_chunk() -> None:
    head, hidden, targets = model(torch.float32)
    seen: list[int] = []

    def counted(part: Tensor) -> Tensor:
        seen.append(len(part))
        return head(part)

    for length in (0, 1):
        chunked_token_logprobs(hidden[:length], counted, targets[:length], TEMPERATURE, 1)
    assert seen == [0, 1]


def test_no_token_has_no_log_prob() -> None:
    head, hidden, targets = model(torch.float32)
    logprobs, entropies = chunked_token_logprobs(hidden[:0], head, targets[:0], TEMPERATURE, 4)
    assert logprobs.shape == entropies.shape == (0,)
    (logprobs.sum() + entropies.sum()).backward()
    assert head.weight.grad is not None
    assert not head.weight.grad.any()


def test_log_probs_without_gradients_are_the_same() -> None:
    head, hidden, targets = model(torch.float32)
    with_gradients = chunked_token_logprobs(hidden, head, targets, TEMPERATURE, 5)
    with torch.no_grad():
        without = chunked_token_logprobs(hidden, head, targets, TEMPERATURE, 5)
    for one, other in zip(without, with_gradients, strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad


def test_log_probs_and_entropies_have_the_right_gradients() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 4, 2])
    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, targets, TEMPERATURE), [logits])


def test_a_sure_and_a_uniform_distribution() -> None:
    logits = torch.tensor([[200.0, 0.0, 0.0, 0.0], [3.0, 3.0, 3.0, 3.0]], requires_grad=True)
    logprobs, entropies = token_logprobs(logits, torch.tensor([0, 1]), 1.0)
    assert logprobs.tolist() == pytest.approx([0.0, -math.log(4)])
    assert entropies.tolist() == pytest.approx([0.0, math.log(4)])
    (logprobs.sum() + entropies.sum()).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_half_precision_logits_are_normalized_in_float32() -> None:
    logits = torch.randn(4, 1000).bfloat16()
    logprobs, entropies = token_logprobs(logits, torch.tensor([0, 1, 2, 3]), TEMPERATURE)
    expected = token_logprobs(logits.float(), torch.tensor([0, 1, 2, 3]), TEMPERATURE)
    assert torch.equal(logprobs, expected[0])
    assert torch.equal(entropies, expected[1])
