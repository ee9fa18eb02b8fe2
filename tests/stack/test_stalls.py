"""On the real stack: whoever is frozen is named while nothing moves, and nobody before or after."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.stack.conftest import Json, Stack, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


def why(stack: Stack, job_id: str) -> Json:
    with stack.client() as weir:
        return weir.why(job_id)


def stalls(stack: Stack, job_id: str) -> list[str]:
    """The edges that were told, one for each stall."""
    with stack.client() as weir:
        events = list(weir.past_events(job_id))
    return [event["data"]["edge"] for event in events if event["message"].startswith("nothing has")]


@contextmanager
def frozen(process_id: int) -> Iterator[None]:
    os.kill(process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process_id, signal.SIGCONT)


def test_whoever_is_frozen_is_named_while_nothing_moves(stack: Stack) -> None:
    job_id = stack.submit(training={"steps": 10_000, "checkpoint_every": 10_000})
    stack.wait_for_step(job_id, 1)
    assert stalls(stack, job_id) == []
    for name in ("rollout", "grader", "learner"):
        with frozen(stack.leaders()[name]):
            edge = f"no_{name}"
            wait_for(lambda e=edge: why(stack, job_id)["edge"] == e, 30, edge)
            found = why(stack, job_id)
            assert not found["moving"]
            assert "has shown no life for" in found["because"]
            (row,) = [row for row in found["services"] if row["service"] == name]
            assert not row["ready"]
            assert row["doing"].startswith("shows no life; last: ")
        wait_for(lambda: why(stack, job_id)["moving"], 240, f"the job to go on after {name}")
    assert stalls(stack, job_id) == ["no_rollout", "no_grader", "no_learner"]
    with stack.client() as weir:
        weir.cancel(job_id)
    stack.wait_for_end(job_id)
