"""What a process says that it does."""

from __future__ import annotations

from services.chassis.activity import Activity, first_words


def test_a_process_does_what_it_began_last_and_has_not_ended() -> None:
    activity = Activity()
    activity.rests("is idle", "waiting")
    with activity.during("loads version 3", "loading"):
        with activity.during("starts its engine", "starting"):
            assert activity.now.words == "starts its engine"
        assert activity.now.words == "loads version 3"
        activity.rests("samples groups")
        assert activity.now.words == "loads version 3"
    assert activity.now.words == "samples groups"


def test_what_is_begun_side_by_side_may_end_in_any_order() -> None:
    activity = Activity()
    first, second = activity.during("trains"), activity.during("waits", "waiting", lambda: ["a"])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert list(activity.now.waits_for()) == ["a"]
    second.__exit__(None, None, None)
    assert activity.now is activity.rest


def test_saying_the_same_again_does_not_make_it_new() -> None:
    activity = Activity()
    activity.rests("is idle", "waiting")
    since = activity.rest.since
    activity.rests("is idle", "waiting")
    assert activity.rest.since == since
    activity.holding(["train:1"])
    since = activity.holds["train:1"]
    activity.holding(["train:2", "train:1"])
    assert activity.holds["train:1"] == since
    activity.holding(["train:2"])
    assert list(activity.holds) == ["train:2"]


def test_an_error_is_told_on_one_line_that_has_an_end() -> None:
    error = ExceptionGroup("of tasks", [ExceptionGroup("inner", [ValueError("one\n  two")])])
    assert first_words(error) == "one two"
    assert first_words(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(first_words(ValueError("x" * 1000))) == 300
