"""The real stack, disturbed: rolling restarts cost nothing, and every kill is got over."""

import os
import random
import signal
import time

import pytest

from services.gateway.client.client import WeirError
from tests.stack.conftest import Json, Stack, wait_for
from tests.stack.test_stack import assert_every_group_is_accounted_for, assert_no_orphan

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
KILLS = int(os.environ.get("WEIR_CHAOS_KILLS", "50"))


def deaths_noticed(stack: Stack) -> int:
    logs = (stack.home / "logs").glob("*.log")
    return sum(log.read_text(errors="replace").count("a worker has died") for log in logs)


def test_rolling_restarts_of_every_service_are_nobodys_death(stack: Stack) -> None:
    noticed = deaths_noticed(stack)
    job_id = stack.submit(training={"steps": 24})
    stack.wait_for_step(job_id, 2)
    for name in ("grader", "rollout", "gateway", "learner"):
        before = stack.leaders()[name]
        os.kill(before, signal.SIGTERM)
        wait_for(lambda n=name, b=before: stack.leaders().get(n, b) != b, 240, f"another {name}")
        step = max(2, _step(stack, job_id))
        wait_for(lambda s=step: _step(stack, job_id) > s or s > 20, 300, f"steps after {name}")
    wait_for(lambda: _step(stack, job_id) > 0, 240, "the gateway")
    job = stack.wait_for_end(job_id)
    assert_every_group_is_accounted_for(stack, job)
    assert not job["weir"]["result"]["groups"]["dropped"]
    assert deaths_noticed(stack) == noticed


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_every_one_of_many_random_kills_is_got_over(stack: Stack) -> None:
    seed = int(os.environ.get("SEED", time.time()))
    draw = random.Random(seed)
    job_id = stack.submit(training={"steps": 100_000, "checkpoint_every": 5})
    stack.wait_for_step(job_id, 2)
    seconds: dict[str, list[float]] = {}
    for _ in range(KILLS):
        time.sleep(draw.uniform(0, 4))
        name = draw.choice(sorted(stack.leaders()))
        step = _step(stack, job_id)
        stack.kill(name)
        began = time.monotonic()
        # Two steps' groups may have been there already.
        wait_for(lambda s=step: _step(stack, job_id) > s + 2, 120, f"steps after {name}, {seed=}")
        seconds.setdefault(name, []).append(time.monotonic() - began)
    for name, each in sorted(seconds.items()):
        print(f"{name:10} {len(each):3} kills, to the third step {max(each):5.1f} s at the most")
    wait_for(lambda: _step(stack, job_id) > 0, 240, "the gateway")
    job = stack.job(job_id)
    assert job["status"] == "running", job["weir"]
    last = [event["data"] for event in _past_events(stack, job_id) if "reward" in event["data"]][-1]
    account = last["groups"]
    assert not account["dropped"], account
    assert account["asked"] == account["trained"] + account["under_way"]
    with stack.client() as weir:
        weir.cancel(job_id)
    stack.wait_for_end(job_id)
    assert_no_orphan(stack)


def _step(stack: Stack, job_id: str) -> int:
    """The job's step; -1 while the gateway is not there."""
    try:
        return int(stack.job(job_id)["weir"]["step"])
    except WeirError:
        return -1


def _past_events(stack: Stack, job_id: str) -> list[Json]:
    with stack.client() as weir:
        return list(weir.past_events(job_id))
