"""Somebody who plays the learner while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.messages import JobState

from tests.contract.gateway.stack import Stack, record_events, take_up
from tests.sample_stores import record, sample_facts, write_segment


@contextmanager
def a_learner(stack: Stack) -> Iterator[list[str]]:
    """Be the learner of every job that is submitted meanwhile: a sample, an event, a success."""
    before, stop, learned = stack.left()[0], threading.Event(), list[str]()

    def learn() -> None:
        while not stop.wait(0.1):
            for job_id in stack.left()[0] - before - {*learned}:
                folder = stack.data_dir / "jobs" / job_id / "samples"
                facts = sample_facts(97, step=12)
                write_segment(folder, "000001-000000", record(facts, ["It is 3.", "No."]))
                take_up(stack, job_id, state=JobState.RUNNING)
                record_events(stack, job_id, range(12, 13))
                take_up(stack, job_id, state=JobState.SUCCEEDED, result={"model": "/final"})
                learned.append(job_id)

    thread = threading.Thread(target=learn)
    thread.start()
    try:
        yield learned
    finally:
        stop.set()
        thread.join()
