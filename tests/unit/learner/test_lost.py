"""What was lost of groups, and whether it is more than the recipe allows."""

import pytest
from protocol.messages import Grade, Graded, GradedGroup, Ungradable
from protocol.recipe import Purpose

from services.learner.supply.lost import (
    Lost,
    failed,
    too_much_lost,
    ungraded,
    why_none_can_work,
)
from tests.builders import a_graded_group, a_group, a_recipe, a_request

LOST, RIGHT = Ungradable(reason="timeout"), Graded(value=1.0)


def a_failure(
    number: int, reason: str = "deaths: 3 workers died", purpose: Purpose = Purpose.TRAIN
) -> GradedGroup:
    return GradedGroup(purpose=purpose, number=number, failure=reason)


def a_whole(number: int, *outcomes: Graded | Ungradable, purpose: Purpose = Purpose.TRAIN):
    outcomes = outcomes or (RIGHT, RIGHT)
    group = a_group(a_request(number=number, purpose=purpose, group_size=len(outcomes)))
    return a_graded_group(group, grades=[Grade(outcome=outcome) for outcome in outcomes])


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize(("failing", "most", "pauses"), [(5, 0.5, 0), (6, 0.5, 1), (10, 1.0, 0)])
def test_more_failed_groups_than_allowed_are_too_many(
    purpose: Purpose, failing: int, most: float, pauses: int
) -> None:
    recipe = a_recipe(training={"max_failed": most})
    groups = [a_failure(number, purpose=purpose) for number in range(failing)]
    groups += [a_whole(number, purpose=purpose) for number in range(failing, 10)]
    lost = too_much_lost(groups, recipe, accepted=0)
    assert [(part.kind, part.share, allowed) for part, allowed in lost] == [
        ("failed", failing / 10, most)
    ] * pauses


def test_failures_are_counted_by_reason_and_the_last_one_is_told_in_full() -> None:
    reasons = ("deaths: 3", "failures: RuntimeError: a: b", "failures: CUDA")
    found = failed([a_failure(number, reason) for number, reason in enumerate(reasons)])
    assert found == Lost("failed", 1.0, {"deaths": 1, "failures": 2}, example=reasons[-1])
    assert len(failed([a_failure(0, "x" * 10**6)]).example) < 1000
    assert failed([]) == Lost("failed", 0, {})


def test_what_was_accepted_is_not_lost_but_still_counts_as_asked() -> None:
    failures = [a_failure(number) for number in range(4)]
    without_score = [a_whole(number, LOST, LOST) for number in range(4)]
    for accepted, share in ((0, 1), (1, 0.75), (3, 0.25), (4, 0)):
        assert failed(failures, accepted).share == share
        assert ungraded(without_score, accepted).share == share


def test_an_evaluation_pauses_for_groups_that_failed_but_not_for_scores() -> None:
    for purpose in Purpose:
        found = too_much_lost([a_whole(0, LOST, purpose=purpose)], a_recipe(), accepted=0)
        assert len(found) == (purpose is not Purpose.EVAL)


@pytest.mark.parametrize(("one_in", "pauses"), [(100, 0), (10, 1)])
def test_one_ungradable_score_in_a_hundred_is_no_reason_to_pause(one_in: int, pauses: int) -> None:
    groups = [
        a_whole(n, *(LOST if (n * 8 + i) % one_in == 0 else RIGHT for i in range(8)))
        for n in range(16)
    ]
    assert len(too_much_lost(groups, a_recipe(), accepted=0)) == pauses


def test_the_share_of_ungradable_scores_counts_only_what_was_asked_for() -> None:
    grades = [Grade(outcome=RIGHT, process=LOST), Grade(outcome=RIGHT)]
    found = ungraded([a_graded_group(a_group(), grades=grades), a_failure(1)])
    assert found == Lost("ungradable", 1 / 3, {"timeout": 1})
    assert ungraded([]) == Lost("ungradable", 0, {})


def test_what_no_worker_can_work_on_is_told_only_where_it_is_all() -> None:
    impossible = [a_failure(number, "unworkable: too long") for number in (0, 1)]
    assert str(why_none_can_work(impossible, accepted=0)).startswith("too long;")
    assert why_none_can_work(impossible, accepted=1) is None
    assert why_none_can_work([*impossible, a_whole(2)], accepted=0) is None
    assert why_none_can_work([*impossible, a_failure(2)], accepted=0) is None
