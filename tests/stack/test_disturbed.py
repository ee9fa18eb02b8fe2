"""The real stack, disturbed for long: rolling restarts cost nothing, and every kill is got over."""

import os
import random
import signal
import time

import pytest

from tests.stack.conftest import Stack, wait_for
from tests.stack.test_stack import (
    ENDLESS,
    assert_every_group_is_accounted_for,
    assert_no_orphan,
    wait_for_more_steps,
)

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(3600)]
KILLS = int(os.environ.get("WEIR_CHAOS_KILLS", "50"))


def deaths_noticed(stack: Stack) -> int:
    logs = (stack.home / "logs").glob("*.log")
    return sum(log.read_text(errors="replace").count("a worker has died") for log in logs)


def test_rolling_restarts_of_every_service_are_nobodys_death(stack: Stack) -> None:
    before = deaths_noticed(stack)
    job_id = stack.submit(training=ENDLESS)
    stack.wait_for_step(job_id, 2)
    for name in ("grader", "rollout", "gateway", "learner"):
        leader = stack.leaders()[name]
        step = stack.step(job_id)
        os.kill(leader, signal.SIGTERM)
        wait_for(lambda n=name, p=leader: stack.leaders().get(n, p) != p, 240, f"another {name}")
        wait_for_more_steps(stack, job_id, step, name)
    assert_every_group_is_accounted_for(stack, job_id)
    assert deaths_noticed(stack) == before
    stack.cancel(job_id)


def test_every_one_of_many_random_kills_is_got_over(stack: Stack) -> None:
    seed = int(os.environ.get("SEED", time.time()))
    draw = random.Random(seed)
    job_id = stack.submit(training=ENDLESS | {"checkpoint_every": 5})
    stack.wait_for_step(job_id, 2)
    for _ in range(KILLS):
        time.sleep(draw.uniform(0, 4))
        name = draw.choice(sorted(stack.leaders()))
        step = stack.step(job_id)
        stack.kill(name)
        began = time.monotonic()
        wait_for_more_steps(stack, job_id, step, f"{name}, {seed=}")
        print(f"{name:10} {time.monotonic() - began:5.1f} s to the third step")
    assert_every_group_is_accounted_for(stack, job_id)
    stack.cancel(job_id)
    assert_no_orphan(stack)
