"""What takes long on the whole stack: jobs of other kinds that die, restarts, and who is frozen."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from protocol.recipe import Purpose

from tests.kept_samples import counted, fates, last_samples
from tests.stack.conftest import Json, Stack, wait_for
from tests.stack.test_stack import (
    ENDLESS,
    assert_every_group_is_accounted_for,
    assert_no_orphan,
    step_of,
)

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
KILLS = int(os.environ.get("WEIR_CHAOS_KILLS", "50"))
GROUPS_PER_STEP = 4


def deaths_noticed(stack: Stack) -> int:
    logs = (stack.home / "logs").glob("*.log")
    return sum(log.read_text(errors="replace").count("a worker has died") for log in logs)


@pytest.mark.long
def test_rolling_restarts_of_every_service_are_nobodys_death(stack: Stack) -> None:
    noticed = deaths_noticed(stack)
    job_id = stack.submit(training=ENDLESS)
    stack.wait_for_step(job_id, 2)
    for name in ("grader", "rollout", "gateway", "learner"):
        before, step = stack.leaders()[name], step_of(stack, job_id)
        os.kill(before, signal.SIGTERM)
        wait_for(lambda n=name, b=before: stack.leaders().get(n, b) != b, 240, f"another {name}")
        wait_for(lambda s=step: step_of(stack, job_id) > s + 2, 300, f"steps after {name}")
    assert_every_group_is_accounted_for(stack, job_id)
    assert deaths_noticed(stack) == noticed
    end(stack, job_id)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_every_one_of_many_random_kills_is_got_over(stack: Stack) -> None:
    seed = int(os.environ.get("SEED", time.time()))
    draw = random.Random(seed)
    job_id = stack.submit(training=ENDLESS | {"checkpoint_every": 5})
    stack.wait_for_step(job_id, 2)
    seconds: dict[str, list[float]] = {}
    for _ in range(KILLS):
        time.sleep(draw.uniform(0, 4))
        name = draw.choice(sorted(stack.leaders()))
        step = step_of(stack, job_id)
        stack.kill(name)
        began = time.monotonic()
        wait_for(lambda s=step: step_of(stack, job_id) > s + 2, 300, f"steps after {name}, {seed=}")
        seconds.setdefault(name, []).append(time.monotonic() - began)
    for name, each in sorted(seconds.items()):
        print(f"{name:10} {len(each):3} kills, to the third step {max(each):5.1f} s at the most")
    wait_for(lambda: step_of(stack, job_id) > 0, 240, "the gateway")
    assert_every_group_is_accounted_for(stack, job_id)
    end(stack, job_id)
    assert_no_orphan(stack)


def end(stack: Stack, job_id: str) -> None:
    with stack.client() as weir:
        weir.cancel(job_id)
    stack.wait_for_end(job_id)


@pytest.mark.long
def test_a_job_refills_its_steps_and_survives_the_death_of_its_learner(stack: Stack) -> None:
    sampling = {"dynamic_sampling": True, "max_oversampling": 4.0, "checkpoint_every": 5}
    sizes = {"steps": 12, "groups_per_step": GROUPS_PER_STEP}
    job_id = stack.submit(training=sizes | sampling, algorithm={"advantage": "grpo"})
    stack.wait_for_step(job_id, 7)
    stack.kill("learner")
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["error"]

    steps = [event["data"] for event in stack.events(job_id) if "reward" in event["data"]]
    assert [data["step"] for data in steps] == list(range(1, 13))
    for data in steps:
        assert_balanced(data["groups"])
        assert data["signal"] == 1
        judged = data["looked_at"] - data["surplus"]
        assert data["waste"] == pytest.approx(1 - data["kept"] / judged)
        assert data["kept"] == GROUPS_PER_STEP or judged == 4 * GROUPS_PER_STEP
    ledger = job["weir"]["result"]["groups"]
    assert_balanced(ledger)
    assert ledger["under_way"] == 0
    assert ledger["dropped"]["no_signal"] > 0
    # Both attempts have told of steps: their sums agree only if they decided the same.
    looked_at = sum(data["looked_at"] for data in steps)
    assert ledger["trained"] == sum(data["kept"] for data in steps)
    kept = fates(stack.job_folder(job_id) / "samples", Purpose.TRAIN)
    assert list(kept) == list(range(looked_at))
    assert counted(kept)["used"] == ledger["trained"]
    assert counted(kept)["no_signal"] == ledger["dropped"]["no_signal"]


def assert_balanced(account: Json) -> None:
    dropped = sum(account["dropped"].values())
    assert account["asked"] == account["trained"] + dropped + account["under_way"]


@pytest.mark.long
def test_the_critic_learns_before_the_policy_moves_and_survives_a_death(stack: Stack) -> None:
    job_id = stack.submit(
        training={"steps": 3, "groups_per_step": GROUPS_PER_STEP, "checkpoint_every": 2},
        algorithm={"advantage": "length_adaptive_gae"},
        critic={"pretrain_steps": 20, "optimizer": {"learning_rate": 1e-3}},
    )
    folder = stack.job_folder(job_id)
    checkpoints = folder / "checkpoints"
    wait_for(lambda: any(checkpoints.glob("step-*-pretrain-*")), 300, "a pretraining checkpoint")
    stack.kill("learner")
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["error"]
    data = [event["data"] for event in stack.events(job_id)]
    pretrained = [entry["pretrain_step"] for entry in data if "pretrain_step" in entry]
    assert pretrained == list(range(1, 21))

    result = job["weir"]["result"]
    for name, steps in (("pretraining_groups", 20), ("groups", 3)):
        assert_balanced(result[name])
        assert (result[name]["asked"], result[name]["under_way"]) == (steps * GROUPS_PER_STEP, 0)
    versions = {
        span.version
        for _, sampled in last_samples(folder / "samples").values()
        if sampled.graded.purpose is Purpose.PRETRAIN and sampled.graded.group is not None
        for response in sampled.graded.group.responses
        for span in response.spans
    }
    assert versions == {0}
    assert result["critic"] == str(folder / "critic")
    assert all(is_model(folder / name) for name in ("critic", "critic-pretrained", "model"))


def is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


@pytest.mark.long
def test_whoever_is_frozen_is_named_while_nothing_moves_and_nobody_before_or_after(
    stack: Stack,
) -> None:
    job_id = stack.submit(training=ENDLESS | {"checkpoint_every": 10_000})
    stack.wait_for_step(job_id, 1)
    assert stalls(stack, job_id) == []
    for name in ("rollout", "grader", "learner"):
        with frozen(stack.leaders()[name]):
            edge = f"no_{name}"
            wait_for(lambda e=edge: why(stack, job_id)["edge"] == e, 240, edge)
            found = why(stack, job_id)
            assert not found["moving"]
            assert "has shown no life for" in found["because"]
            (row,) = [row for row in found["services"] if row["service"] == name]
            assert not row["ready"]
            assert row["doing"].startswith("shows no life; last: ")
        wait_for(lambda: why(stack, job_id)["moving"], 240, f"the job to go on after {name}")
    assert stalls(stack, job_id) == ["no_rollout", "no_grader", "no_learner"]
    end(stack, job_id)


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
