"""What was lost of groups, and whether it is more than the recipe allows."""

from typing import Any

import pytest
from protocol.messages import GradedGroup
from protocol.recipe import Purpose

from services.learner.supply.lost import Lost, failed, too_much_lost, ungraded
from tests.builders import a_graded_group, a_group, a_recipe, a_request


def a_failure(
    number: int, reason: str = "deaths: 3 workers died", purpose: Purpose = Purpose.TRAIN
) -> GradedGroup:
    return GradedGroup(purpose=purpose, number=number, failure=reason)


def some_groups(failing: int, of: int = 10, purpose: Purpose = Purpose.TRAIN) -> list[GradedGroup]:
    requests = [a_request(number=number, purpose=purpose) for number in range(failing, of)]
    whole = [a_graded_group(a_group(request)) for request in requests]
    return [*(a_failure(number, purpose=purpose) for number in range(failing)), *whole]


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize(("failing", "most", "pauses"), [(5, 0.5, 0), (6, 0.5, 1), (10, 1.0, 0)])
def test_more_failed_groups_than_allowed_are_too_many(
    purpose: Purpose, failing: int, most: float, pauses: int
) -> None:
    recipe = a_recipe(training={"max_failed": most})
    lost = too_much_lost(some_groups(failing, purpose=purpose), recipe, accepted=0)
    assert [(part.kind, part.share, allowed) for part, allowed in lost] == [
        ("failed", failing / 10, most)
    ] * pauses


def test_failures_are_counted_by_reason_and_the_last_one_is_told_in_full() -> None:
    groups = [
        a_failure(0),
        a_failure(1, "failures: RuntimeError: a: b"),
        a_failure(2, "failures: CUDA"),
    ]
    assert failed(groups) == Lost(
        "failed", 1.0, {"deaths": 1, "failures": 2}, example="failures: CUDA"
    )
    assert len(failed([a_failure(0, "x" * 10**6)]).example) < 1000
    assert failed([]) == Lost("failed", 0, {})


def test_what_was_accepted_has_not_failed_but_still_counts_as_asked() -> None:
    groups = some_groups(4, of=4)
    assert [failed(groups, accepted).share for accepted in (0, 1, 3, 4)] == [1, 0.75, 0.25, 0]


def test_an_evaluation_pauses_for_groups_that_failed_but_not_for_scores() -> None:
    lost = [a_grade(lost=True)] * 2
    groups = [
        a_graded_group(a_group(a_request(purpose=purpose)), grades=lost) for purpose in Purpose
    ]
    found = {g.purpose: len(too_much_lost([g], a_recipe(), accepted=0)) for g in groups}
    assert found == {Purpose.TRAIN: 1, Purpose.PRETRAIN: 1, Purpose.EVAL: 0}


def test_failed_groups_and_lost_scores_are_told_of_together() -> None:
    ungradable = a_graded_group(a_group(a_request(number=3)), grades=[a_grade(lost=True)] * 2)
    groups = [*some_groups(3, of=3), ungradable]
    kinds = [part.kind for part, _ in too_much_lost(groups, a_recipe(), accepted=0)]
    assert sorted(kinds) == ["failed", "ungradable"]


@pytest.mark.parametrize(("one_in", "pauses"), [(100, False), (10, True)])
def test_one_ungradable_score_in_a_hundred_is_no_reason_to_pause(one_in: int, pauses: bool) -> None:
    groups = []
    for number in range(16):
        grades = [a_grade(lost=(number * 8 + i) % one_in == 0) for i in range(8)]
        group = a_group(a_request(number=number, group_size=8))
        groups.append(a_graded_group(group, grades=grades))
    assert bool(too_much_lost(groups, a_recipe(), accepted=0)) is pauses


def a_grade(*, lost: bool) -> dict[str, Any]:
    ungradable = {"kind": "ungradable", "reason": "timeout"}
    return {"outcome": ungradable if lost else {"kind": "graded", "value": 1}}


def test_what_was_accepted_is_no_longer_ungradable_but_still_counts_as_asked() -> None:
    lost = [
        a_graded_group(a_group(a_request(number=number)), grades=[a_grade(lost=True)] * 2)
        for number in range(4)
    ]
    assert [ungraded(lost, accepted).share for accepted in (0, 1, 3, 4)] == [1, 0.75, 0.25, 0]


def test_the_share_of_ungradable_scores_counts_only_what_was_asked_for() -> None:
    lost = {"kind": "ungradable", "reason": "timeout"}
    right = {"kind": "graded", "value": 1}
    grades = [{"outcome": right, "process": lost}, {"outcome": right}]
    assert ungraded([a_graded_group(a_group(), grades=grades), a_failure(1)]) == Lost(
        "ungradable", 1 / 3, {"timeout": 1}
    )
    assert ungraded([]) == Lost("ungradable", 0, {})
