"""The whole stack continues when its parts die, and the ledger adds up."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from protocol.recipe import Purpose

from deploy.launches import python_path
from tests.kept_samples import fates
from tests.stack.conftest import Json, Stack, of_home, start, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
GROUPS_PER_STEP = 4
SERVICES = {"learner", "rollout", "grader", "gateway"}
ENDLESS = {"steps": 100_000, "groups_per_step": GROUPS_PER_STEP}


@pytest.fixture(scope="module")
def job(stack: Stack) -> str:
    """A job that goes through all of this module's deaths, one after another."""
    job_id = stack.submit(training=ENDLESS)
    stack.wait_for_step(job_id, 2)
    return job_id


def wait_for_more_steps(stack: Stack, job_id: str, step: int, cause: str) -> None:
    """Three: two steps' groups may have been there already."""
    wait_for(lambda: stack.step(job_id) > step + 2, 300, f"steps after {cause}")


@pytest.mark.parametrize(
    "name", ["grader", "gateway", "engine core", "rollout", "valkey", "learner"]
)
def test_a_job_gets_over_the_death_of(stack: Stack, job: str, name: str) -> None:
    step = stack.step(job)
    if name == "engine core":
        children = psutil.Process(stack.leaders()["rollout"]).children(recursive=True)
        (core,) = [process for process in children if "EngineCore" in process.name()]
        core.kill()
    else:
        stack.kill(name)
    wait_for_more_steps(stack, job, step, name)


def test_a_paused_job_checkpoints_and_goes_on_where_it_was(stack: Stack, job: str) -> None:
    stack.weir.pause(job)
    wait_for(lambda: stack.weir.job(job)["status"] == "paused", 240, "the pause")
    step = stack.step(job)
    assert (stack.job_folder(job) / f"checkpoints/step-{step:06d}").exists()
    stack.weir.resume(job)
    stack.wait_for_step(job, step + 1)


def test_when_it_is_cancelled_every_group_is_accounted_for_and_what_it_learned_is_a_model(
    stack: Stack, job: str
) -> None:
    following = stack.submit(training={"steps": 1})
    ended = stack.cancel(job)
    assert ended["status"] == "cancelled"
    steps = assert_every_group_is_accounted_for(stack, job)
    assert_no_orphan(stack)
    again = replayed(stack, job, steps[-1]["step"] - 1)
    assert (again.returncode, again.stderr) == (0, "")
    assert f"{GROUPS_PER_STEP} groups, {4 * GROUPS_PER_STEP} responses" in again.stdout
    assert "nothing changes" in again.stdout
    fork = stack.submit(start=f"ftckpt-{job}-{ended['weir']['step']}", training={"steps": 1})
    assert [stack.wait_for_end(each)["status"] for each in (following, fork)] == ["succeeded"] * 2


def test_a_spent_budget_pauses_a_job_and_its_bill_has_every_second_of_a_core(stack: Stack) -> None:
    job_id = stack.submit(training={"steps": 60, "budget_gpu_hours": 2 / 3600})
    wait_for(lambda: stack.weir.job(job_id)["weir"]["attempt"], 60, "the first attempt")
    before = core_seconds(stack)
    wait_for(lambda: stack.weir.job(job_id)["status"] == "paused", 240, "the pause")
    used = core_seconds(stack) - before
    paused = stack.weir.job(job_id)["weir"]
    assert paused["bill"]["gpu_hours"] >= paused["bill"]["budget_gpu_hours"]
    assert "--budget" in paused["waiting_for"]
    # The learner's process starts again, which is no job's.
    wait_for(lambda: is_idle(stack), 240, "an idle stack")
    before = core_seconds(stack)
    stack.weir.resume(job_id, 1.0)
    ended = stack.wait_for_end(job_id)
    used += core_seconds(stack) - before
    assert ended["status"] == "succeeded", ended["error"]
    bill = ended["weir"]["bill"]
    assert sum(bill["core_seconds"].values()) == pytest.approx(used, rel=0.05), bill
    assert bill["core_seconds"].keys() >= {*SERVICES, "redis", "supervisor"}
    phases = bill["phase_seconds"].items()
    of_learner = sum(seconds for phase, seconds in phases if phase.startswith("learner/"))
    assert of_learner == pytest.approx(bill["core_seconds"]["learner"])
    counts = {name.removeprefix("train/"): count for name, count in bill["tokens"].items()}
    assert counts["trained"] == ended["trained_tokens"]
    assert counts["sampled"] == sum(counts.values()) - counts["sampled"] - counts["judged"]


def core_seconds(stack: Stack) -> float:
    """The processor time of the supervisor, and of all its descendants with those that ended."""
    supervisor = psutil.Process(stack.supervisor.pid)
    used = sum(supervisor.cpu_times()[:4])
    for process in supervisor.children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            used += sum(process.cpu_times()[:4])
    return used


def is_idle(stack: Stack) -> bool:
    before = core_seconds(stack)
    time.sleep(2)
    return core_seconds(stack) - before < 0.3


def assert_every_group_is_accounted_for(stack: Stack, job_id: str) -> list[Json]:
    """Each step told of once and in order, nothing lost, each number trained; returns the steps."""
    steps = stack.metrics(job_id)
    assert [data["step"] for data in steps] == list(range(1, len(steps) + 1))
    account = steps[-1]["groups"]
    assert not account["dropped"]
    assert account["trained"] == len(steps) * GROUPS_PER_STEP
    assert account["asked"] == account["trained"] + account["under_way"]
    fate_of = fates(stack.job_folder(job_id) / "samples", Purpose.TRAIN)
    assert {fate_of[number] for number in range(account["trained"])} == {"used"}
    gaps = [data["parity_max"] for data in steps if data.get("parity_tokens")]
    assert 0 <= max(gaps) <= 1e-3
    return steps


def assert_no_orphan(stack: Stack) -> None:
    """Every process of the stack belongs to the group of one that is supervised now."""

    def is_tidy() -> bool:
        supervised = {*stack.leaders().values(), os.getpgid(stack.supervisor.pid)}
        with suppress(ProcessLookupError):  # one has just ended
            return {os.getpgid(process_id) for process_id in of_home(stack.home)} <= supervised
        return False

    wait_for(is_tidy, 240, "orphans to end")


def replayed(stack: Stack, job_id: str, step: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weir", "replay", job_id, "--step", str(step)],
        env=os.environ
        | {
            "WEIR_HOME": str(stack.home),
            "PYTHONPATH": python_path({}),
        },
        capture_output=True,
        text=True,
    )


def test_two_ranks_survive_the_death_of_the_supervisor_and_a_stop_saves_what_they_learned(
    tmp_path: Path,
) -> None:
    """What it leaves behind leaves, the next one waits for that, and takes everything with it."""
    home = tmp_path / "a home"
    first = start(home, WEIR_LEARNER_RANKS="2", WEIR_TURNS="0")
    first.wait_until_up()
    for path in (home, *home.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    orphans = of_home(home)
    assert len(orphans) >= 6
    shared = {**ENDLESS, "checkpoint_every": ENDLESS["steps"], "sequence_parallel": 2}
    job_id = first.submit(
        training=shared,
        model={"lora": {"rank": 2}},
    )
    first.wait_for_step(job_id, 2)
    step = first.step(job_id)
    first.supervisor.kill()
    first.supervisor.wait()
    second = start(home, WEIR_LEARNER_RANKS="2", WEIR_TURNS="0")
    try:
        wait_for(lambda: not (home / "stack.json").exists(), 240, "the earlier stack to leave")
        assert not orphans & of_home(home)
        second.wait_until_up()
        second.wait_for_step(job_id, step + 2)
        assert_every_group_is_accounted_for(second, job_id)
        used = second.weir.job(job_id)["weir"]["bill"]["core_seconds"]
        assert {*SERVICES, "redis"} <= used.keys()
        assert min(used.values()) > 0, used
        metrics = httpx.get(second.facts["metrics"]["rollout-0"]).text
        (seconds,) = re.findall(r'weir_phase_seconds_total{phase="sleeping"} (.*)', metrics)
        assert float(seconds) > 0, "the engine does not take turns with the learner"
    finally:
        second.supervisor.send_signal(signal.SIGINT)
        assert second.supervisor.wait(240) == 0
    assert not of_home(home)
    assert not (home / "stack.json").exists()
    # The ranks of the first stack may have had the time for one, too.
    checkpoint = max((home / "data/jobs" / job_id / "checkpoints").glob("step-*"))
    assert int(checkpoint.name.removeprefix("step-")) >= step + 2
    files = {path.name for path in (checkpoint / "model").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
