"""Samples without a signal are not computed, prompts once, and the update is the same."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tests.engine.both_ways import compare_gradients, train_both_ways
from tests.engine.outputs import TOLERANCE, largest_gap, parameters_in
from tests.engine.ranks import Ranks

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

FORMULAS: list[dict[str, Any]] = [
    {"aggregation": aggregation, "objective": objective}
    for aggregation, objective in product(
        ("token_mean", "sequence_mean", "fixed_length"), ("clip", "gspo", "gmpo", "cispo")
    )
]
OTHERS: list[dict[str, Any]] = [
    {"positive_lm_weight": 0.1, "aggregation": "sequence_mean"},
    {"correction": "sequence_tis", "old_logprobs": "recompute"},
    {"correction": "token_mis", "updates_per_batch": 1, "micro_batch_tokens": 4096},
    {"updates_per_batch": 6, "old_logprobs": "recompute"},
    {"idle_groups": [0, 1, 2, 3, 4, 5], "updates_per_batch": 1},
]
CASES = [
    {"micro_batch_tokens": 60, "updates_per_batch": 3, **case} for case in (*FORMULAS, *OTHERS)
]
# Their means have the tokens of all samples below the line, so they are equal, not estimates.
EXACT = ("loss", "advantage_mean", "advantage_abs_mean", "updates")


@pytest.fixture(scope="module")
def exact_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that computes in float64 everywhere: Llama's norms would compute in float32."""
    folder = tmp_path_factory.mktemp("exact")
    config = GPTNeoXConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    GPTNeoXForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_gradient_is_equal_in_float64(ranks: Ranks, exact_model: Path, num_ranks: int) -> None:
    results = ranks.run(compare_gradients, ranks=num_ranks, model=exact_model, cases=CASES)
    for case, result in zip(CASES, results, strict=True):
        assert result["gap"] < 1e-12, case
        for name in EXACT:
            lean, whole = result["metrics"][name], result["whole metrics"][name]
            assert lean == pytest.approx(whole, rel=1e-5, abs=1e-9), (case, name)
    for case, result in zip(CASES[:-1], results[:-1], strict=True):
        assert max(result["norms"]) > 1e-3, case
        assert result["positions"] < 0.9, case


def test_a_row_that_ranks_share_has_the_same_gradient(ranks: Ranks, exact_model: Path) -> None:
    cases = [{"sequence_parallel": 2, "micro_batch_tokens": 60}]
    (result,) = ranks.run(compare_gradients, ranks=2, model=exact_model, cases=cases)
    assert result["gap"] < 1e-12
    assert result["positions"] < 0.75


def test_spot_checks_estimate_the_metrics_of_all_tokens(ranks: Ranks, exact_model: Path) -> None:
    cases = [{"spot_check_every": every} for every in (1, 8)]
    every_sample, sparse = ranks.run(compare_gradients, model=exact_model, cases=cases)
    for name in ("entropy", "parity_mean", "mismatch_kl", "clip_fraction"):
        whole = every_sample["whole metrics"][name]
        assert every_sample["metrics"][name] == pytest.approx(whole, rel=1e-5), name
    whole = sparse["whole metrics"]
    assert sparse["metrics"]["entropy"] == pytest.approx(whole["entropy"], rel=0.05)
    assert 0 < sparse["metrics"]["trained_share"] < 0.5
    assert whole["trained_share"] == pytest.approx(1)
    assert every_sample["without log-prob"] == 0 < sparse["without log-prob"]


@pytest.mark.parametrize(
    ("num_ranks", "settings"),
    [
        (1, {"zero_stage": 0}),
        (2, {"zero_stage": 1, "recompute_activations": True}),
        (2, {"zero_stage": 3}),
        (1, {"lora": {"rank": 4}}),
    ],
)
def test_weights_move_alike_under_deepspeed(
    ranks: Ranks, model: Path, tmp_path: Path, num_ranks: int, settings: dict[str, Any]
) -> None:
    norms = ranks.run(
        train_both_ways,
        ranks=num_ranks,
        model=model,
        out=tmp_path,
        micro_batch_tokens=60,
        **settings,
    )
    assert norms[2] == norms[5] == 0
    steps = []
    for step in range(3):
        lean, whole = (parameters_in(tmp_path / f"{name} {step}") for name in ("lean", "whole"))
        steps.append(lean)
        assert largest_gap(lean, whole) < TOLERANCE
    assert largest_gap(steps[1], steps[2]) > TOLERANCE  # the moments move the weights
