"""What was lost of groups, whether it is more than the recipe allows, and engines that fail."""

from typing import Any

import pytest
from protocol.messages import Failure, Grade, Graded, Status, Ungradable
from protocol.recipe import Purpose

from services.learner.job.limits import FailedStarts, Lost, too_much_lost, why_none_can_work
from tests.builders import (
    a_failed_group,
    a_graded_group,
    a_group,
    a_recipe,
    a_request,
    a_status,
    an_episodes_group,
)

LOST, RIGHT = Ungradable(reason="timeout"), Graded(value=1.0)
STRICT = a_recipe(training={"max_failed": 0.0}, reward={"max_ungradable": 0.0})


def a_whole(number: int, *outcomes: Graded | Ungradable, purpose: Purpose = Purpose.TRAIN):
    outcomes = outcomes or (RIGHT, RIGHT)
    group = a_group(a_request(number=number, purpose=purpose, group_size=len(outcomes)))
    return a_graded_group(group, grades=[Grade(outcome=outcome) for outcome in outcomes])


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize(("failing", "most", "pauses"), [(5, 0.5, 0), (6, 0.5, 1), (10, 1.0, 0)])
def test_more_failed_groups_than_allowed_are_too_many(
    purpose: Purpose, failing: int, most: float, pauses: int
) -> None:
    groups = [a_failed_group(number, purpose=purpose) for number in range(failing)]
    groups += [a_whole(number, purpose=purpose) for number in range(failing, 10)]
    lost = too_much_lost(groups, a_recipe(training={"max_failed": most}), accepted=0)
    assert [(part.kind, part.share, part.most) for part in lost] == [
        ("failed", failing / 10, most)
    ] * pauses


def test_failures_are_counted_by_reason_and_the_last_one_is_told_in_full() -> None:
    reasons = (("deaths", "3"), ("failures", "RuntimeError: a: b"), ("failures", "CUDA"))
    groups = [a_failed_group(number, *reason) for number, reason in enumerate(reasons)]
    counts = {"deaths": 1, "failures": 2}
    assert too_much_lost(groups, STRICT, 0) == [Lost("failed", 1.0, 0.0, counts, "failures: CUDA")]
    (lost,) = too_much_lost([a_failed_group(0, message="x" * 10**6)], STRICT, 0)
    assert len(lost.example) < 1000
    assert too_much_lost([], STRICT, 0) == []


def test_what_was_accepted_is_not_lost_but_still_counts_as_asked() -> None:
    for groups in (
        [a_failed_group(n) for n in range(4)],
        [a_whole(n, LOST, LOST) for n in range(4)],
    ):
        for accepted, shares in ((0, [1]), (1, [0.75]), (3, [0.25]), (4, [])):
            assert [part.share for part in too_much_lost(groups, STRICT, accepted)] == shares


def test_an_evaluation_pauses_for_groups_that_failed_but_not_for_scores() -> None:
    for purpose in Purpose:
        found = too_much_lost([a_whole(0, LOST, purpose=purpose)], a_recipe(), accepted=0)
        assert len(found) == (purpose is not Purpose.EVAL)


def test_the_share_of_ungradable_scores_counts_only_what_was_asked_for() -> None:
    grades = [Grade(outcome=RIGHT, process=LOST), Grade(outcome=RIGHT)]
    groups = [a_graded_group(a_group(), grades=grades), a_failed_group(1)]
    assert too_much_lost(groups, STRICT, 0)[1] == Lost("ungradable", 1 / 3, 0.0, {"timeout": 1})


def test_a_pause_for_broken_episodes_tells_the_last_words_of_the_environment() -> None:
    group = an_episodes_group(1.0, None, None, 7.0)
    lost, right = Grade(outcome=Ungradable(reason="episode_failed")), Grade(outcome=RIGHT)
    grades = [right, lost, lost, right]
    (found,) = too_much_lost([a_graded_group(group, grades=grades)], STRICT, 0)
    assert (found.share, found.example) == (0.5, "kaputt 2")
    assert "mend the environment" in found.words("step 1")
    out_of_range = Grade(outcome=Ungradable(reason="reward_out_of_range"))
    grades = [right, lost, lost, out_of_range]
    (found,) = too_much_lost([a_graded_group(group, grades=grades)], STRICT, 0)
    assert found.example == "the reward 7"


def test_what_no_worker_can_work_on_is_told_only_where_it_is_all() -> None:
    impossible = [a_failed_group(number, "unworkable", "too long") for number in (0, 1)]
    assert str(why_none_can_work(impossible, accepted=0)).startswith("too long;")
    assert why_none_can_work(impossible, accepted=1) is None
    assert why_none_can_work([*impossible, a_whole(2)], accepted=0) is None
    assert why_none_can_work([*impossible, a_failed_group(2)], accepted=0) is None


# ---------------------------------------- engines that do not start


def a_rollout(
    starts: int, replica: str = "rollout-1", job: str | None = "job", **more: Any
) -> Status:
    """A rollout in so many lives in a row that were never ready."""
    failure = Failure(words=f"any words at all {starts}", job_id=job) if starts > 1 else None
    doing = {
        "ready": starts == 0,
        "doing": "starts_its_engine",
        "starts": starts,
        "failure": failure,
    }
    return a_status("rollout", **(doing | {"replica": replica} | more))


@pytest.mark.parametrize("before", [0, 7])  # 0: the engine of the job before was ready
def test_only_starts_for_the_job_itself_count(before: int) -> None:
    starts, first = FailedStarts("job"), max(1, before)
    assert starts.why_none_works([a_rollout(before, job="another")]) is None
    for life in (first, first + 1, first + 2):
        assert starts.why_none_works([a_rollout(life)]) is None
    assert "any words at all" in str(starts.why_none_works([a_rollout(first + 3)]))
    assert starts.failed_before == (before > 1)


def test_the_same_words_twice_are_enough() -> None:
    starts, same = FailedStarts("job"), Failure(words="no such head", job_id="job")
    told = [starts.why_none_works([a_rollout(life, failure=same)]) for life in (1, 2, 3)]
    assert told[:2] == [None, None]
    assert "no such head" in str(told[2])


def test_what_failed_for_the_job_in_an_earlier_attempt_had_not_failed_before_it_came() -> None:
    for was_held_up in (False, True):
        starts = FailedStarts("job", was_held_up=was_held_up)
        told = [starts.why_none_works([a_rollout(life)]) is not None for life in (5, 6, 7, 8)]
        assert told == [False, False, False, True]
        assert starts.failed_before == was_held_up


@pytest.mark.parametrize(
    "other",
    [
        a_rollout(1, "rollout-2"),  # it is still at its first try
        a_rollout(0, "rollout-2"),  # it serves
        a_rollout(9, "rollout-2", job=None),  # such as a package that is missing: no job's fault
    ],
)
def test_one_rollout_that_has_not_failed_for_the_job_is_enough_to_wait_for(other: Status) -> None:
    starts = FailedStarts("job")
    starts.why_none_works([a_rollout(1), a_rollout(min(other.starts, 1), "rollout-2")])
    assert starts.why_none_works([a_rollout(9), other]) is None


def test_what_breaks_once_an_engine_has_served_the_job_costs_it_nothing() -> None:
    starts = FailedStarts("job")
    starts.why_none_works([a_rollout(0, holds={"train:0": 1.0})])
    assert starts.why_none_works([a_rollout(9)]) is None
