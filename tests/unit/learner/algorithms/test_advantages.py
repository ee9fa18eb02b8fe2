"""Advantages and signals where numbers are at an edge: all equal, none at all, half precision."""

import pytest
import torch

from services.learner.algorithms.advantages import ADVANTAGES, standardized
from services.learner.algorithms.shaping import (
    accuracy_varies,
    has_signal,
    outcome_rewards,
    unbounded_overlong_penalty,
)
from tests.unit.learner.algorithms.random_cases import double, scores, scores_of
from tests.unit.learner.algorithms.reference import Group

every_advantage = pytest.mark.parametrize("name", ADVANTAGES)


@pytest.mark.parametrize("name", [name for name in ADVANTAGES if name != "reinforce"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 7, 10, 64])
def test_equal_scores_teach_exactly_nothing(name: str, dtype: torch.dtype, size: int) -> None:
    for outcome, process, penalty in (
        (0.1, 0.3, -0.3),
        (1.0, 0.7, -0.3),
        (0.1, 0.1, 0.0),
    ):
        group = Group(
            [outcome] * size,
            [True] * size,
            [process] * size,
            [penalty] * size,
        )
        assert not ADVANTAGES[name](scores_of(group, dtype)).any()


@every_advantage
@pytest.mark.filterwarnings("error")
def test_no_response_and_no_process_score_are_no_error(name: str) -> None:
    assert ADVANTAGES[name](scores([])).shape == (0,)
    assert ADVANTAGES[name](scores([1, 1, 0])).isfinite().all()


def test_a_std_at_the_gate_is_no_difference_only_where_eps_is_added() -> None:
    at_gate = double([0.0, 1.0])  # whose std is 0.5
    assert not standardized(at_gate, ddof=0, denominator="add", std_eps=0.5).any()
    assert standardized(at_gate, ddof=0, denominator="max", std_eps=0.5).tolist() == [-1.0, 1.0]


def test_by_default_the_sample_std_is_taken_and_the_process_weighs_as_much_as_the_outcome() -> None:
    group = scores([1, 1, 1, 0], [1.0, 0.5, 0.0, None])
    settings = {"ddof": 1, "denominator": "add", "std_eps": 1e-6}
    for name, weight in (("grpo", {}), ("papo", {"lambda_process": 1.0})):
        plain = ADVANTAGES[name](group)
        assert torch.equal(plain, ADVANTAGES[name](group, **settings, **weight))


@pytest.mark.parametrize(
    ("name", "outcome", "process", "kept"),
    [
        pytest.param(
            "papo",
            [1, 1, 0],
            [1, 1, None],
            True,
            id="accuracy varies",
        ),
        pytest.param(
            "papo",
            [1, 1, 1],
            [1, 0.5, 1],
            True,
            id="all correct, process differs",
        ),
        pytest.param(
            "papo",
            [1, 1, 1],
            [0.5, None, None],
            False,
            id="all correct, one judged",
        ),
        pytest.param(
            "papo",
            [0, 0, 0],
            [1, 0, 0.5],
            False,
            id="all wrong, process differs",
        ),
        pytest.param(
            "process_only",
            [1, 0, 0],
            [0.5] * 3,
            False,
            id="the process is the same",
        ),
        pytest.param(
            "multiplicative",
            [1, 0, 0],
            [0, None, None],
            False,
            id="it earns nothing",
        ),
        pytest.param(
            "multiplicative",
            [1, 0, 0],
            [0.1, None, None],
            True,
            id="it earns something",
        ),
    ],
)
def test_a_group_is_kept_if_its_advantages_without_punishments_differ(
    name: str, outcome: list[float], process: list[float | None], kept: bool
) -> None:
    for penalty in (None, [0.0, -0.5, -1.0]):
        group = scores(outcome, process, penalty)
        assert has_signal(group, ADVANTAGES[name]) is kept
        assert accuracy_varies(group) is (len(set(outcome)) > 1)


def test_a_difference_below_the_signal_is_none() -> None:
    assert not accuracy_varies(scores([0.0, 1e-6]))
    assert accuracy_varies(scores([0.5, 0.5 + 1.1e-6]))
    assert not has_signal(scores([1, 1]), lambda _: double([0.0, 1e-6]))
    assert has_signal(scores([1, 1]), lambda _: double([0.0, -2e-6]))


@every_advantage
def test_a_lone_response_teaches_only_what_its_advantage_says(name: str) -> None:
    assert not has_signal(scores([]), ADVANTAGES[name])
    alone_it_counts = name in ("grpo_verl", "reinforce", "multiplicative", "process_only")
    assert has_signal(scores([1], [1.0]), ADVANTAGES[name]) is alone_it_counts
    assert accuracy_varies(scores([0]))
    assert not accuracy_varies(scores([]))


def test_outcomes_pay_what_the_recipe_says_and_a_punishment_grows_with_its_factor() -> None:
    assert outcome_rewards(double([0, 0.25, 1]), (0.5, 2.5)).tolist() == [0.5, 1.0, 2.5]
    for factor, expected in (
        ({}, [0, -0.5, -2]),
        ({"factor": 2.0}, [0, -1, -4]),
    ):
        lengths = torch.tensor([60, 80, 140])
        penalty = unbounded_overlong_penalty(lengths, limit=100, buffer=40, **factor)
        assert penalty.tolist() == expected
