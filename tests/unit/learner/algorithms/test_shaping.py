"""What a response pays, and which groups have anything to teach."""

import pytest
import torch
from hypothesis import given

from services.learner.algorithms.advantages import (
    ADVANTAGES,
    Advantage,
    grpo,
    grpo_verl,
    multiplicative,
    papo,
    process_only,
)
from services.learner.algorithms.shaping import (
    accuracy_varies,
    has_signal,
    outcome_rewards,
    overlong_penalty,
    unbounded_overlong_penalty,
)
from tests.unit.learner.algorithms.groups import groups, scores
from tests.unit.learner.algorithms.random_cases import double, scores_of
from tests.unit.learner.algorithms.reference import Group


@pytest.mark.parametrize(
    ("outcome", "process", "kept"),
    [
        pytest.param([1, 1, 0], [1, 0, None], True, id="accuracy varies"),
        pytest.param([1, 1, 0], [1, 1, None], True, id="accuracy varies, process does not"),
        pytest.param([1, 1, 1], [1, 0.5, 1], True, id="all correct, process differs"),
        pytest.param([1, 1, 1], [1, None, 1], False, id="all correct, process is the same"),
        pytest.param([1, 1, 1], [0.5, None, None], False, id="all correct, one judged"),
        pytest.param([0, 0, 0], [1, 0, 0.5], False, id="all wrong, process differs"),
        pytest.param([0, 0, 0], [None] * 3, False, id="all wrong"),
    ],
)
def test_papo_keeps_the_groups_that_teach(
    outcome: list[float], process: list[float | None], kept: bool
) -> None:
    for penalty in (None, [0.0, -0.5, -1.0]):
        assert has_signal(scores(outcome, process, penalty), papo) is kept
        assert accuracy_varies(scores(outcome, process, penalty)) is (len(set(outcome)) > 1)


@given(groups(min_size=2))
def test_a_shaped_reward_is_no_signal(group: Group) -> None:
    found = scores_of(group)
    assert has_signal(found, grpo) is accuracy_varies(found) is (len(set(group.outcome)) > 1)


def test_without_weight_the_process_is_no_signal() -> None:
    group = scores([1, 1], [1.0, 0.0])
    assert has_signal(group, papo)
    assert not has_signal(group, lambda found: papo(found, lambda_process=0.0))


def test_a_difference_below_the_signal_is_none() -> None:
    assert not accuracy_varies(scores([0.5, 0.5 + 0.9e-6]))
    assert not accuracy_varies(scores([0.0, 1e-6]))
    assert accuracy_varies(scores([0.5, 0.5 + 1.1e-6]))
    equal = scores([1, 1])
    assert not has_signal(equal, lambda found: double([0.0, 1e-6]))
    assert has_signal(equal, lambda found: double([0.0, -2e-6]))


@pytest.mark.parametrize(
    ("advantage", "process", "kept"),
    [
        pytest.param(process_only, [0.5, 0.5, 0.5], False, id="the process is the same"),
        pytest.param(process_only, [0.5, 0.5, 0.6], True, id="the process differs"),
        pytest.param(multiplicative, [0.0, None, None], False, id="the correct one earns nothing"),
        pytest.param(multiplicative, [0.1, None, None], True, id="the correct one earns something"),
    ],
)
def test_accuracy_that_the_advantage_makes_nothing_of_is_no_signal(
    advantage: Advantage, process: list[float | None], kept: bool
) -> None:
    group = scores([1, 0, 0], process)
    assert accuracy_varies(group)
    assert has_signal(group, advantage) is kept


@pytest.mark.parametrize("advantage", ADVANTAGES.values(), ids=ADVANTAGES)
def test_a_lone_response_teaches_only_what_its_advantage_says(advantage: Advantage) -> None:
    assert not has_signal(scores([0], [0.0]), advantage)
    assert not has_signal(scores([]), advantage)
    alone_it_counts = advantage in (grpo_verl, multiplicative, process_only)
    assert has_signal(scores([1], [1.0]), advantage) is alone_it_counts


def test_the_accuracy_of_a_lone_response_counts_as_varying_and_of_none_does_not() -> None:
    assert accuracy_varies(scores([0]))
    assert not accuracy_varies(scores([]))


def test_outcomes_pay_what_the_recipe_says() -> None:
    accuracy = double([0, 0.25, 1])
    assert outcome_rewards(accuracy, (-1.0, 1.0)).tolist() == [-1.0, -0.5, 1.0]
    assert outcome_rewards(accuracy, (0.5, 2.5)).tolist() == [0.5, 1.0, 2.5]


def test_the_punishment_grows_over_the_buffer_and_stops_at_the_factor() -> None:
    lengths = torch.tensor([0, 60, 61, 80, 100, 140])
    settings = {"limit": 100, "buffer": 40}
    assert overlong_penalty(lengths, **settings).tolist() == [0, 0, -0.025, -0.5, -1, -1]
    unbounded = unbounded_overlong_penalty(lengths, **settings)
    assert unbounded.tolist() == [0, 0, -0.025, -0.5, -1, -2]
    assert overlong_penalty(lengths, **settings, factor=2.0).tolist() == [0, 0, -0.05, -1, -2, -2]
    doubled = unbounded_overlong_penalty(lengths, **settings, factor=2.0)
    assert torch.equal(doubled, 2 * unbounded)
