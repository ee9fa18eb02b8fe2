"""The formulas against numbers worked out elsewhere to six decimals, and their properties."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.learner.algorithms import pick
from services.learner.algorithms.advantages import (
    ADVANTAGES,
    GroupScores,
    grpo,
    order_safe_lambda,
    papo,
)
from services.learner.algorithms.aggregation import token_mean
from services.learner.algorithms.logprobs import token_logprobs
from services.learner.algorithms.objectives import TokenBatch, clip

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "golden.json").read_text())["cases"]
ATOL = 2e-6


def cases(function: str) -> list[Any]:
    found = [case for case in GOLDEN if case["fn"] == function]
    assert found, function
    return [pytest.param(case["inputs"], case["expected"], id=case["id"]) for case in found]


def scores(
    outcome: list[float], process: list[float | None], accuracy: list[float] | None = None
) -> GroupScores:
    raw = outcome if accuracy is None else accuracy
    return GroupScores(
        outcome=torch.tensor(outcome, dtype=torch.float64),
        correct=torch.tensor([value == 1 for value in raw]),
        process=torch.tensor(
            [math.nan if value is None else value for value in process], dtype=torch.float64
        ),
    )


def assert_close(actual: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=torch.float64), atol=ATOL, rtol=0
    )


@pytest.mark.parametrize(("inputs", "expected"), cases("papo_group"))
def test_papo_is_the_released_code_to_six_decimals(
    inputs: dict[str, Any], expected: dict[str, Any]
) -> None:
    group = scores(inputs["orm"], inputs["prm"], inputs.get("acc"))
    wanted = expected["code_add_ddof1"]
    assert_close(papo(group, lambda_process=1.0), wanted["a_total"])
    assert_close(papo(group, lambda_process=0.0), wanted["a_out"])
    assert_close(papo(group, lambda_process=1.0) - grpo(group), wanted["a_proc"])


@pytest.mark.parametrize(("inputs", "expected"), cases("papo_missing"))
def test_a_missing_process_score_leaves_only_the_process_statistics(
    inputs: dict[str, Any], expected: dict[str, Any]
) -> None:
    group = scores(inputs["orm"], inputs["prm"])
    assert_close(papo(group) - grpo(group), expected["a_proc"])


@pytest.mark.parametrize(("inputs", "expected"), cases("grpo_advantage"))
def test_grpo_standardizes_with_the_sample_deviation(
    inputs: dict[str, Any], expected: dict[str, Any]
) -> None:
    rewards = inputs["rewards"]
    assert_close(grpo(scores(rewards, [None] * len(rewards))), expected["verl_ddof1_eps1e6"])


@pytest.mark.parametrize(("inputs", "expected"), cases("order_safe_lambda"))
def test_the_order_safe_bound_falls_with_the_group(
    inputs: dict[str, Any], expected: dict[str, Any]
) -> None:
    for size in inputs["G"]:
        assert order_safe_lambda(size) == pytest.approx(expected[str(size)]["lambda_max"], abs=1e-6)


@pytest.mark.parametrize(
    ("inputs", "expected"), [c for c in cases("clip_surrogate") if "dual" not in str(c.id)]
)
def test_the_clipped_objective_and_its_token_mean(
    inputs: dict[str, Any], expected: dict[str, Any]
) -> None:
    mask = torch.tensor(inputs["mask"], dtype=torch.bool)
    tensors = [torch.tensor(inputs[name], dtype=torch.float64) for name in ("logp", "old_logp")]
    advantages = torch.tensor(inputs["adv"], dtype=torch.float64)
    tokens = TokenBatch(tensors[0][mask], tensors[1][mask], advantages[mask])
    losses = clip(tokens, clip_low=inputs["eps_low"], clip_high=inputs["eps_high"])
    terms = torch.tensor(expected["loss_terms"], dtype=torch.float64)[mask]
    assert_close(losses, terms.tolist())
    mean = token_mean(losses, num_tokens=int(mask.sum()))
    assert mean.item() == pytest.approx(expected["token_mean"], abs=ATOL)


@pytest.mark.parametrize(("inputs", "expected"), cases("global_token_mean"))
def test_micro_batches_add_up_to_the_global_mean(
    inputs: dict[str, Any], expected: dict[str, Any]
) -> None:
    mask = torch.tensor(inputs["mask"], dtype=torch.bool)
    terms = torch.tensor(inputs["loss_terms"], dtype=torch.float64)
    total = int(mask.sum())
    shares = [token_mean(terms[i][mask[i]], num_tokens=total) for i in range(len(terms))]
    assert_close(torch.stack(shares), expected["correct_micro_contributions_mb1"])
    assert torch.stack(shares).sum().item() == pytest.approx(
        expected["global_token_mean"], abs=ATOL
    )


@pytest.mark.parametrize(("inputs", "expected"), cases("log_softmax"))
def test_log_probs_and_entropy_are_after_temperature(
    inputs: dict[str, Any], expected: dict[str, Any]
) -> None:
    logits = torch.tensor(inputs["logits"], dtype=torch.float64)
    for temperature in inputs["temperatures"]:
        first = torch.zeros(len(logits), dtype=torch.int64)
        logprobs, entropy = token_logprobs(logits, first, temperature)
        wanted = expected[f"T={temperature:g}"]
        assert_close(logprobs.double(), wanted["logp_token0"])
        assert_close(entropy.double(), wanted["entropy"])


outcomes = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=16)


@given(outcomes, st.data())
def test_process_advantages_sum_to_zero_over_the_correct(
    outcome: list[float], data: st.DataObject
) -> None:
    process = data.draw(st.lists(st.floats(0, 1), min_size=len(outcome), max_size=len(outcome)))
    group = scores(outcome, list(process))
    part = papo(group) - grpo(group)
    assert part[~group.correct].abs().sum() <= 1e-9
    assert abs(part.sum().item()) <= 1e-6


@given(outcomes, st.floats(0, 1))
def test_a_wrong_answers_process_score_changes_nothing(outcome: list[float], score: float) -> None:
    low = scores(outcome, [0.5 if value else 0.0 for value in outcome])
    high = scores(outcome, [0.5 if value else score for value in outcome])
    assert torch.equal(papo(low), papo(high))


def test_an_advantage_takes_only_the_settings_it_names() -> None:
    group = scores([1, 1, 0, 0], [1.0, 0.5, 0, 0])
    settings = {"lambda_process": 0.5, "clip_low": 0.2}
    assert torch.equal(pick(ADVANTAGES, "grpo", settings)(group), grpo(group))
    assert torch.equal(pick(ADVANTAGES, "papo", settings)(group), papo(group, lambda_process=0.5))
