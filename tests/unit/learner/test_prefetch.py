"""A thread computes one result ahead, and ends with the block."""

from __future__ import annotations

import threading
from functools import partial
from threading import Barrier, Event

import pytest

from services.learner.training.prefetch import Prefetcher

LIMIT_S = 30.0


def names_of_threads() -> set[str]:
    return {thread.name.split("_")[0] for thread in threading.enumerate()}


def test_the_next_result_is_computed_while_one_is_in_use_and_no_later_one() -> None:
    begins = [Event() for _ in range(4)]
    meeting = Barrier(2)

    def compute(number: int) -> int:
        begins[number].set()
        if number == 1:
            meeting.wait(LIMIT_S)
        return number

    with Prefetcher() as prefetcher:
        reads = [prefetcher.add(partial(compute, number)) for number in range(4)]
        assert not begins[0].is_set()
        assert reads[0]() == 0
        meeting.wait(LIMIT_S)  # the second one runs while its reader has the first
        assert [begin.is_set() for begin in begins] == [True, True, False, False]
        assert [read() for read in reads] == [0, 1, 2, 3]
        assert reads[0]() == 0
        assert "prefetching" in names_of_threads()
    assert "prefetching" not in names_of_threads()


def test_an_error_is_raised_where_the_result_is_read_and_ends_the_thread() -> None:
    def read_all() -> None:
        with Prefetcher() as prefetcher:
            reads = [prefetcher.add(partial(divmod, 6, number)) for number in (3, 2, 0, 1)]
            assert [reads[0](), reads[1]()] == [(2, 0), (3, 0)]  # the third one has failed by now
            reads[2]()

    with pytest.raises(ZeroDivisionError):
        read_all()
    assert "prefetching" not in names_of_threads()


def test_results_may_be_read_in_another_order() -> None:
    with Prefetcher() as prefetcher:
        reads = [prefetcher.add(partial(str, number)) for number in range(5)]
        assert [reads[number]() for number in (3, 0, 4, 1, 2)] == ["3", "0", "4", "1", "2"]
