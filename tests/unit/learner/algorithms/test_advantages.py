"""Advantages and signals where numbers are at an edge: all equal, none at all, half precision."""

import pytest
import torch

from services.learner.algorithms.advantages import (
    ADVANTAGES,
    Advantage,
    centered,
    multiplicative,
    papo,
    process_only,
    standardized,
)
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
@pytest.mark.parametrize("size", [2, 7, 64])
def test_equal_scores_teach_exactly_nothing(name: str, dtype: torch.dtype, size: int) -> None:
    for outcome, process in ((0.1, 0.3), (1.0, 0.7)):
        group = Group([outcome] * size, [True] * size, [process] * size, [-0.3] * size)
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


def test_centered_values_are_exact_where_the_mean_is_not() -> None:
    assert not centered(torch.full((10,), 0.1)).any()


def test_by_default_the_sample_std_is_taken_and_the_process_weighs_as_much_as_the_outcome() -> None:
    group = scores([1, 1, 1, 0], [1.0, 0.5, 0.0, None])
    settings = {"ddof": 1, "denominator": "add", "std_eps": 1e-6}
    for name, weight in (("grpo", {}), ("papo", {"lambda_process": 1.0})):
        plain = ADVANTAGES[name](group)
        assert torch.equal(plain, ADVANTAGES[name](group, **settings, **weight))


@pytest.mark.parametrize(
    ("outcome", "process", "kept"),
    [
        pytest.param([1, 1, 0], [1, 1, None], True, id="accuracy varies, process does not"),
        pytest.param([1, 1, 1], [1, 0.5, 1], True, id="all correct, process differs"),
        pytest.param([1, 1, 1], [0.5, None, None], False, id="all correct, one judged"),
        pytest.param([0, 0, 0], [1, 0, 0.5], False, id="all wrong, process differs"),
    ],
)
def test_papo_keeps_the_groups_that_teach(
    outcome: list[float], process: list[float | None], kept: bool
) -> None:
    for penalty in (None, [0.0, -0.5, -1.0]):
        assert has_signal(scores(outcome, process, penalty), papo) is kept
        assert accuracy_varies(scores(outcome, process, penalty)) is (len(set(outcome)) > 1)


def test_a_difference_below_the_signal_is_none() -> None:
    assert not accuracy_varies(scores([0.0, 1e-6]))
    assert accuracy_varies(scores([0.5, 0.5 + 1.1e-6]))
    assert not has_signal(scores([1, 1]), lambda found: double([0.0, 1e-6]))
    assert has_signal(scores([1, 1]), lambda found: double([0.0, -2e-6]))


@pytest.mark.parametrize(
    ("advantage", "process", "kept"),
    [
        pytest.param(process_only, [0.5, 0.5, 0.5], False, id="the process is the same"),
        pytest.param(multiplicative, [0.0, None, None], False, id="the correct one earns nothing"),
        pytest.param(multiplicative, [0.1, None, None], True, id="the correct one earns something"),
    ],
)
def test_accuracy_that_the_advantage_makes_nothing_of_is_no_signal(
    advantage: Advantage, process: list[float | None], kept: bool
) -> None:
    assert accuracy_varies(scores([1, 0, 0], process))
    assert has_signal(scores([1, 0, 0], process), advantage) is kept


@every_advantage
def test_a_lone_response_teaches_only_what_its_advantage_says(name: str) -> None:
    assert not has_signal(scores([]), ADVANTAGES[name])
    alone_it_counts = name in ("grpo_verl", "reinforce", "multiplicative", "process_only")
    assert has_signal(scores([1], [1.0]), ADVANTAGES[name]) is alone_it_counts
    assert accuracy_varies(scores([0]))
    assert not accuracy_varies(scores([]))


def test_outcomes_pay_what_the_recipe_says_and_a_punishment_grows_with_its_factor() -> None:
    assert outcome_rewards(double([0, 0.25, 1]), (0.5, 2.5)).tolist() == [0.5, 1.0, 2.5]
    lengths = torch.tensor([60, 80, 140])
    penalty = unbounded_overlong_penalty(lengths, limit=100, buffer=40)
    assert penalty.tolist() == [0, -0.5, -2]
    doubled = unbounded_overlong_penalty(lengths, limit=100, buffer=40, factor=2.0)
    assert torch.equal(doubled, 2 * penalty)
