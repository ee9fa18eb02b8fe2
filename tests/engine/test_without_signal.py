"""A sample without a signal is not computed, and the update is the same."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ranks import Ranks
from tests.engine.told import TOLERANCE, largest_gap, parameters_in
from tests.engine.without_signal import compare_gradients, train_both_ways

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


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_gradient_is_equal_in_float64(ranks: Ranks, model: Path, num_ranks: int) -> None:
    results = ranks.run(compare_gradients, ranks=num_ranks, model=model, cases=CASES)
    for case, result in zip(CASES, results, strict=True):
        assert result["gap"] < 1e-12, case
        for name in EXACT:
            lean, whole = result["metrics"][name], result["whole metrics"][name]
            assert lean == pytest.approx(whole, rel=1e-5, abs=1e-9), (case, name)
    for case, result in zip(CASES[:-1], results[:-1], strict=True):
        assert max(result["norms"]) > 1e-3, case
        assert result["positions"] < 0.9, case


def test_a_row_that_ranks_share_has_the_same_gradient(ranks: Ranks, model: Path) -> None:
    cases = [{"sequence_parallel": 2, "micro_batch_tokens": 60}]
    (result,) = ranks.run(compare_gradients, ranks=2, model=model, cases=cases)
    assert result["gap"] < 1e-12
    assert result["positions"] < 0.75


def test_spot_checks_estimate_the_metrics_of_all_tokens(ranks: Ranks, model: Path) -> None:
    cases = [{"spot_check_every": every} for every in (1, 8)]
    every_sample, sparse = ranks.run(compare_gradients, model=model, cases=cases)
    for name in ("entropy", "parity_mean", "mismatch_kl", "clip_fraction"):
        whole = every_sample["whole metrics"][name]
        assert every_sample["metrics"][name] == pytest.approx(whole, rel=1e-5), name
    whole = sparse["whole metrics"]
    assert sparse["metrics"]["entropy"] == pytest.approx(whole["entropy"], rel=0.05)
    assert 0 < sparse["metrics"]["trained_share"] < 0.5
    assert whole["trained_share"] == 1
    assert every_sample["without log-prob"] == 0 < sparse["without log-prob"]


@pytest.mark.parametrize(("num_ranks", "zero_stage"), [(1, 0), (2, 1), (2, 3)])
def test_weights_move_alike_under_deepspeed(
    ranks: Ranks, model: Path, tmp_path: Path, num_ranks: int, zero_stage: int
) -> None:
    norms = ranks.run(
        train_both_ways,
        ranks=num_ranks,
        model=model,
        out=tmp_path,
        zero_stage=zero_stage,
        micro_batch_tokens=60,
    )
    assert norms[2] == norms[5] == 0
    steps = []
    for step in range(3):
        lean, whole = (parameters_in(tmp_path / f"{name} {step}") for name in ("lean", "whole"))
        steps.append(lean)
        assert largest_gap(lean, whole) < TOLERANCE
    assert largest_gap(steps[1], steps[2]) > TOLERANCE  # the moments move the weights
