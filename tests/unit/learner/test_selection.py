"""Selection of a step's groups, the lookahead of requests, and no request that waits for ever."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.exchange import Exchange
from protocol.messages import GradedGroup, RolloutRequest
from protocol.recipe import Purpose, Recipe

from services.learner.attempt import Attempt
from services.learner.supply.curriculum import Curriculum
from services.learner.supply.feeder import Feeder
from services.learner.supply.selection import NO_SIGNAL, Selection, oldest_version
from services.learner.training.scoring import ScoredGroup, Scoring
from tests.builders import a_failed_group, a_graded_group, a_group, a_recipe, a_task
from tests.unit.learner.groups import graded


def a_selection(*, step: int = 0, first: int = 0, **training: Any) -> Selection:
    defaults = {
        "steps": 10,
        "groups_per_step": 4,
        "max_staleness": 1,
        "max_oversampling": 3,
    }
    recipe = a_recipe(training=defaults | {"dynamic_sampling": True} | training)
    return Selection(recipe, Scoring.of(recipe), step, first)


def a_graded(
    number: int,
    *,
    signal: bool = True,
    version: int = 0,
) -> GradedGroup:
    return graded(1, not signal, number=number, version=version)


def look_until_complete(
    selection: Selection, make_group: Callable[[int], GradedGroup]
) -> Selection:
    while not selection.is_complete:
        selection.look(make_group(selection.next_number))
    return selection


def numbers(groups: list[ScoredGroup]) -> list[int]:
    return [group.graded.number for group in groups]


def test_groups_without_a_signal_are_dropped_and_replaced_by_the_next() -> None:
    selection = look_until_complete(
        a_selection(first=8), lambda number: a_graded(number, signal=number % 2 == 0)
    )
    assert numbers(selection.kept) == [8, 10, 12, 14]
    assert selection.dropped == [NO_SIGNAL] * 3
    assert (selection.next_number, selection.waste) == (15, 3 / 7)
    assert not selection.is_undersampled


def test_a_step_gives_up_at_its_limit_and_takes_what_there_is() -> None:
    selection = look_until_complete(
        a_selection(), lambda number: a_graded(number, signal=number == 5)
    )
    assert (numbers(selection.kept), len(selection.looked_at)) == ([5], 12)
    assert selection.is_undersampled
    assert (a_selection().waste, selection.waste) == (0, 11 / 12)


@pytest.mark.parametrize(
    ("dynamic", "kept"),
    [
        (False, [0, 1, 3]),
        (True, [0, 1, 3, 4]),
    ],
)
def test_only_with_dynamic_sampling_a_failed_group_is_replaced(
    dynamic: bool, kept: list[int]
) -> None:
    selection = look_until_complete(
        a_selection(dynamic_sampling=dynamic),
        lambda number: a_failed_group(number) if number == 2 else a_graded(number, signal=dynamic),
    )
    assert numbers(selection.kept) == kept
    assert selection.dropped == ["deaths"]
    assert not selection.is_undersampled


def test_surplus_costs_a_step_nothing_of_what_it_may_judge() -> None:
    """A group that is too old by the time it is looked at is surplus."""
    selection = look_until_complete(
        a_selection(step=5),
        lambda number: a_graded(
            number,
            version=3 + (number >= 20),
            signal=number != 21,
        ),
    )
    assert numbers(selection.kept) == [20, 22, 23, 24]
    assert (selection.surplus, selection.judged) == (20, 5)
    assert selection.waste == pytest.approx(1 / 5)
    assert not selection.is_undersampled
    rate = 1 - 1 / 8  # of the judged groups: the age of a group says nothing about the tasks
    assert selection.keep_rate == pytest.approx(1 - (1 - rate) * (7 / 8) ** 3)


def test_the_deficit_is_requested_by_recent_experience() -> None:
    selection = a_selection(max_staleness=0)
    assert selection.lookahead.admitted == 4
    for number in range(4):
        selection.look(a_graded(number, signal=number == 0))
    rate = (7 / 8) ** 3  # three of a memory of eight
    assert selection.keep_rate == pytest.approx(rate)
    assert selection.lookahead.needs == (5,)  # 3 / rate, rounded up
    for number in range(4, 10):
        selection.look(a_graded(number, signal=False))
    assert selection.lookahead.needs == (2,)  # no more than the limit of 12


def test_no_more_is_requested_than_may_be_in_flight() -> None:
    selection = a_selection(max_staleness=3, max_oversampling=100)
    selection.keep_rate = 0.01
    assert sum(selection.lookahead.needs) > 64
    assert selection.lookahead.admitted == selection.recipe.groups_in_flight == 64
    # Nor beyond the last step.
    assert a_selection(step=10, first=40).lookahead.expected_step(42) == 10
    assert a_selection(step=9, max_staleness=5).lookahead.admitted == 4
    assert a_selection(step=10, first=40).lookahead.admitted == 40


def test_a_checked_window_is_never_smaller_than_a_step() -> None:
    selection = a_selection(max_oversampling=1.5)
    checked = []
    while not selection.is_complete:
        selection.look(a_graded(selection.next_number, signal=selection.next_number == 0))
        checked.append([group.number for group in selection.to_check])
    assert checked == [[], [], [], [0, 1, 2, 3], [], [2, 3, 4, 5]]


def train(
    recipe: Recipe,
    chance: random.Random,
    keep_share: float,
    requests: dict[int, RolloutRequest],
    answers: dict[int, GradedGroup],
) -> list[tuple[list[int], list[str]]]:
    """Return the groups that six steps keep and drop; ``chance`` orders the answers."""
    attempt = Attempt(
        cast(Exchange, None),
        "job",
        1,
        recipe,
        Path("unused"),
    )
    feeder = Feeder(
        attempt,
        Curriculum(recipe, {"": [a_task()]}),
        Purpose.TRAIN,
        lambda _: False,
    )
    training = recipe.training
    results = list[tuple[list[int], list[str]]]()
    position = 0
    keep_rate = 1.0
    for step in range(6):
        selection = Selection(recipe, Scoring.of(recipe), step, position, keep_rate)
        while not selection.is_complete:
            lookahead = selection.lookahead
            assert lookahead.admitted <= lookahead.position + recipe.groups_in_flight
            feeder.admit(lookahead)
            for number in range(len(requests), lookahead.admitted):
                requests[number] = request = feeder.request(number)
                assert request.step - training.max_staleness <= request.min_version <= step
            while selection.next_number not in answers:
                assert requests[selection.next_number].min_version <= step, "it waits for itself"
                able = [n for n, request in requests.items() if request.min_version <= step]
                waiting = [n for n in able if n not in answers]
                for number in chance.sample(waiting, chance.randint(0, len(waiting))):
                    outcomes = [1, 0] if chance.random() < keep_share else [1, 1]
                    group = a_group(requests[number], [1, 1], version=step)
                    answers[number] = a_graded_group(group, outcomes)
            selection.look(answers[selection.next_number])
        limit = math.ceil(3 * training.max_oversampling)
        assert not selection.is_undersampled or selection.judged == limit
        oldest = [oldest_version(group.graded, step) for group in selection.kept]
        assert min(oldest, default=step) >= step - training.max_staleness
        results.append((numbers(selection.kept), selection.dropped))
        position = selection.next_number
        keep_rate = selection.keep_rate
    return results


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    max_staleness=st.integers(0, 3),
    keep_share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    max_oversampling=st.sampled_from([1.0, 1.5, 3.0, 10.0]),
    dynamic=st.booleans(),
)
def test_every_step_ends_on_fresh_groups_and_a_repeated_step_decides_the_same(
    seed: int, max_staleness: int, keep_share: float, max_oversampling: float, dynamic: bool
) -> None:
    training = {
        "steps": 8,
        "groups_per_step": 3,
        "max_staleness": max_staleness,
        "dynamic_sampling": dynamic,
        "max_oversampling": max_oversampling,
    }
    recipe = a_recipe(training=training)
    requests = dict[int, RolloutRequest]()
    answers = dict[int, GradedGroup]()
    results = train(recipe, random.Random(seed), keep_share, requests, answers)
    first_answers = dict(answers)
    assert train(recipe, random.Random(seed + 1), keep_share, requests, answers) == results
    assert answers == first_answers, "it waited for nothing"
