"""Log-probs in chunks are those of the dense path; what compares log-probs, at its edges."""

import math
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from services.learner.algorithms import logprobs, pick
from services.learner.algorithms.logprobs import chunked_token_logprobs, token_logprobs
from services.learner.algorithms.loss import CORRECTIONS, DIVERGENCES
from tests.unit.learner.algorithms.random_cases import double

TOKENS, WIDTH, VOCABULARY, TEMPERATURE = 12, 8, 33, 0.7
TOLERANCE = {
    torch.float32: 1e-6,
    torch.bfloat16: 2e-2,
    torch.float64: 1e-12,
}


def model(dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, Tensor, Tensor]:
    """A head, hidden states and targets."""
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, dtype=dtype)
    hidden = torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    return head, hidden, torch.randint(VOCABULARY, (TOKENS,))


def loss(
    logprobs: Tensor,
    entropies: Tensor,
    *,
    of: str = "both",
) -> Tensor:
    """Weighs every token differently, and the entropy too."""
    weights = torch.linspace(-1, 1, len(logprobs), dtype=logprobs.dtype)
    terms = {
        "logprobs": weights * logprobs,
        "entropies": weights.square() * entropies,
    }
    return torch.stack([t.sum() for name, t in terms.items() if of in (name, "both")]).sum()


@pytest.mark.parametrize("of", ["logprobs", "entropies", "both"])
@pytest.mark.parametrize("learned", [(0, 1, 2), (0, 1), (0,), (1,)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("chunk_tokens", [1, 5, 12, 13])
@pytest.mark.parametrize("all_rows", [True, False])
def test_chunks_have_the_values_and_gradients_of_the_whole(
    *, dtype: torch.dtype, chunk_tokens: int, learned: tuple[int, ...], of: str, all_rows: bool
) -> None:
    """Without the rows of the head that are beyond the ids in use, if there are any."""
    head, hidden, targets = model(dtype)
    tensors = (hidden, head.weight, head.bias)
    for index, tensor in enumerate(tensors):
        tensor.requires_grad_(index in learned)
    num_ids = None if all_rows else int(targets.max()) + 1
    dense = token_logprobs(
        head(hidden)[:, :num_ids],
        targets,
        TEMPERATURE,
    )
    settings = (targets, TEMPERATURE, chunk_tokens)
    chunked = chunked_token_logprobs(*tensors, *settings, num_ids=num_ids)
    expected, gradients = (
        torch.autograd.grad(
            loss(*values, of=of),
            [tensors[index] for index in learned],
        )
        for values in (dense, chunked)
    )
    for one, other in zip(
        (*chunked, *gradients),
        (*dense, *expected),
        strict=True,
    ):
        torch.testing.assert_close(
            one,
            other,
            atol=TOLERANCE[dtype],
            rtol=TOLERANCE[dtype],
        )
    assert chunked[0].dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize(
    ("head_learns", "of", "again"),
    [
        (True, "logprobs", True),
        (False, "both", True),
        (False, "logprobs", False),
    ],
)
@pytest.mark.parametrize(
    ("length", "size", "chunks"),
    [
        (12, 5, [5, 5, 2]),
        (1, 1, [1]),
        (0, 4, [0]),
    ],
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
    computed: list[int] = []

    def count_and_multiply(part: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        computed.append(len(part))
        return linear(part, weight, bias)

    monkeypatch.setattr(logprobs, "linear", count_and_multiply)
    part = (
        hidden[:length],
        head.weight,
        head.bias,
        targets[:length],
        TEMPERATURE,
        size,
    )
    values = chunked_token_logprobs(*part)
    assert computed == chunks
    loss(*values, of=of).backward()
    keeps_logits = head_learns and len(chunks) == 1
    assert computed == chunks * (1 + (again and not keeps_logits))
    assert [len(tensor) for tensor in values] == [length, length]
    with torch.no_grad():
        assert not any(tensor.requires_grad for tensor in chunked_token_logprobs(*part))


@pytest.mark.parametrize("head_learns", [True, False])
def test_compiled_log_probs_are_one_graph_each_and_the_same(
    monkeypatch: pytest.MonkeyPatch, *, head_learns: bool
) -> None:
    """As on a GPU, but without its code: chunks of two lengths."""
    compile_graph = partial(torch.compile, dynamic=True, fullgraph=True, backend="aot_eager")
    monkeypatch.setattr(logprobs, "_compiled", cache(compile_graph))
    head, hidden, targets = model()
    head.requires_grad_(head_learns)
    learned = [hidden, *(head.parameters() if head_learns else ())]
    for of in ("logprobs", "both"):
        results = []
        for compiles in (False, True):
            values = chunked_token_logprobs(
                hidden, head.weight, head.bias, targets, TEMPERATURE, 5, compiles=compiles
            )
            results.append((*values, *torch.autograd.grad(loss(*values, of=of), learned)))
        torch.testing.assert_close(*results, atol=1e-6, rtol=1e-6)


def test_half_precision_logits_are_normalized_in_float32() -> None:
    logits, targets = torch.randn(4, 1000).bfloat16(), torch.arange(4)
    half, single = (token_logprobs(x, targets, TEMPERATURE) for x in (logits, logits.float()))
    assert torch.equal(torch.stack(half), torch.stack(single))


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_weight_is_bounded_and_carries_no_gradient(name: str, dtype: torch.dtype) -> None:
    old = torch.tensor(
        [-1.0, -1.0, -0.5],
        dtype=dtype,
        requires_grad=True,
    )
    sampled, rows = torch.tensor([-1.0, -300.0, -0.5], dtype=dtype), torch.tensor([0, 0, 1])
    correction = pick(CORRECTIONS, name, {"correction_cap": 2.0, "correction_floor": 1.0})
    weights = correction(old, sampled, rows)
    expected = {
        "none": [1, 1, 1],
        "token_tis": [1, 2, 1],
        "sequence_tis": [2, 2, 1],
        "token_mis": [1, 0, 1],
        "sequence_mis": [0, 0, 1],
    }
    assert weights.tolist() == expected[name]
    assert weights.dtype == torch.float32
    assert not weights.requires_grad
    assert correction(old[:0], sampled[:0], rows[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("k1", -0.5),
        ("k2", -0.5),
        ("k3", 1 - math.exp(0.5)),
    ],
)
def test_the_gradient_of_a_divergence(name: str, slope: float) -> None:
    logprobs = double([-1.5]).requires_grad_()
    (gradient,) = torch.autograd.grad(
        DIVERGENCES[name](logprobs, double([-1.0])).sum(),
        logprobs,
    )
    assert gradient.item() == pytest.approx(slope)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("gap", [-1e4, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_gap_makes_a_divergence_or_a_gradient_that_is_not_finite(
    name: str, gap: float, dtype: torch.dtype
) -> None:
    logprobs = torch.tensor([0.0], dtype=dtype, requires_grad=True)
    divergence = DIVERGENCES[name](
        logprobs,
        torch.tensor([gap], dtype=dtype),
    )
    (gradient,) = torch.autograd.grad(divergence.sum(), logprobs)
    assert torch.stack([divergence, gradient]).isfinite().all()
    assert divergence.dtype == torch.float32


def test_k3_is_exact_up_to_its_limit() -> None:
    penalties = DIVERGENCES["k3"](
        double([0.0] * 4),
        double([19.9, 20.0, 20.1, -50.0]),
    )
    largest = math.exp(20.0) - 21
    assert penalties.tolist() == pytest.approx([math.exp(19.9) - 20.9, largest, largest, 49.0])


def test_a_head_of_bfloat16_computes_in_float32() -> None:
    torch.manual_seed(0)
    hidden, weight = 8 * torch.randn(TOKENS, 64).bfloat16(), torch.randn(VOCABULARY, 64).bfloat16()
    targets = torch.randint(VOCABULARY, (TOKENS,))
    narrow = [tensor.detach().clone().requires_grad_() for tensor in (hidden, weight)]
    wide = [tensor.float().detach().requires_grad_() for tensor in (hidden, weight)]
    values = chunked_token_logprobs(
        narrow[0],
        narrow[1],
        None,
        targets,
        TEMPERATURE,
        5,
    )
    expected = token_logprobs(linear(*wide), targets, TEMPERATURE)
    torch.testing.assert_close(values, expected, atol=1e-4, rtol=1e-5)
    gradients = torch.autograd.grad(loss(*values), narrow)
    for one, other in zip(
        gradients,
        torch.autograd.grad(loss(*expected), wide),
        strict=True,
    ):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(
            one.float(),
            other,
            atol=1e-4,
            rtol=2**-8,
        )
