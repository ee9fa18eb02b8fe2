"""What a process says that it does."""

from __future__ import annotations

import pytest
from protocol.messages import Doing, Failure

from services.chassis.activity import Activity
from services.chassis.faults import NotStarted
from services.chassis.service import failure_of


def test_a_process_does_what_it_began_last_and_has_not_ended() -> None:
    activity = Activity()
    activity.rests(Doing.IDLE)
    with activity.during(Doing.LOADS_VERSION, 3):
        with activity.during(Doing.STARTS_ENGINE):
            assert activity.now.doing is Doing.STARTS_ENGINE
        activity.rests(Doing.SAMPLES)
        assert (activity.now.doing, activity.now.number) == (Doing.LOADS_VERSION, 3)
    assert activity.now.doing is Doing.SAMPLES


def test_what_is_begun_side_by_side_may_end_in_any_order() -> None:
    activity = Activity()
    first = activity.during(Doing.TRAINS)
    second = activity.during(Doing.WAITS_FOR_GROUPS, waits_for=lambda: ["a"])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert list(activity.now.waits_for()) == ["a"]
    second.__exit__(None, None, None)
    assert activity.now is activity.rest


def test_saying_the_same_again_does_not_make_it_new() -> None:
    activity = Activity()
    activity.rests(Doing.IDLE)
    rest = activity.rest
    activity.rests(Doing.IDLE)
    assert activity.rest is rest
    activity.holding(["train:1"])
    since = activity.holds["train:1"]
    activity.holding(["train:2", "train:1"])
    assert activity.holds["train:1"] == since
    activity.holding(["train:2"])
    assert list(activity.holds) == ["train:2"]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ExceptionGroup("of tasks", [ValueError("one\n  two")]), Failure(words="one two")),
        (ExceptionGroup("a", [NotStarted("why", "job")]), Failure(words="why", job_id="job")),
        (KeyboardInterrupt(), Failure(words="KeyboardInterrupt")),
        (ValueError("x" * 1000), Failure(words="x" * 299 + "…")),
    ],
)
def test_a_failure_is_told_on_one_line_that_has_an_end_and_names_its_job(
    error: BaseException, failure: Failure
) -> None:
    assert failure_of(error) == failure
