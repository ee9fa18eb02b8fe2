"""The whole stack, and what it does when parts of it die: it goes on, and the ledger adds up."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from protocol.recipe import Purpose

from tests.kept_samples import counted, fates
from tests.stack.conftest import ROOT, Stack, group, of_home, start, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
STEPS, GROUPS_PER_STEP = 24, 4


def assert_every_group_is_accounted_for(stack: Stack, job: dict[str, Any]) -> None:
    """Asked = trained + dropped, each number kept, each step told of once and in order."""
    assert job["status"] == "succeeded", job["error"]
    ledger = job["weir"]["result"]["groups"]
    assert ledger["asked"] == STEPS * GROUPS_PER_STEP
    assert ledger["under_way"] == 0
    assert ledger["trained"] + sum(ledger["dropped"].values()) == ledger["asked"]
    kept = fates(stack.job_folder(job["id"]) / "samples", Purpose.TRAIN)
    assert list(kept) == list(range(ledger["asked"]))
    assert counted(kept) == {"used": ledger["trained"], **ledger["dropped"]}
    events = [event["data"] for event in stack.events(job["id"])]
    assert [data["step"] for data in events if "reward" in data] == list(range(1, STEPS + 1))


def assert_no_orphan(stack: Stack) -> None:
    """Every process of the stack belongs to the group of one that is supervised now."""

    def groups() -> set[int]:
        return {group(process_id) for process_id in of_home(stack.home)}

    supervisor = group(stack.supervisor.pid)
    wait_for(lambda: groups() <= {*stack.leaders().values(), supervisor}, 240, "orphans to end")


def replayed(stack: Stack, job_id: str, step: int) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "services.gateway.cli",
        "replay",
        job_id,
        "--step",
        str(step),
    ]
    environment = os.environ | {
        "WEIR_HOME": str(stack.home),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "proto"), str(ROOT)]),
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_job_survives_the_death_of_every_service(stack: Stack) -> None:
    job_id = stack.submit()
    stack.wait_for_step(job_id, 3)
    stack.kill("learner")
    stack.wait_for_step(job_id, 9)
    stack.kill("grader")
    stack.wait_for_step(job_id, 14)
    stack.kill("rollout")
    job = stack.wait_for_end(job_id)
    assert job["weir"]["attempt"] == 2
    assert_every_group_is_accounted_for(stack, job)
    assert job["weir"]["result"]["parity_tokens"] > 0
    assert job["weir"]["result"]["parity_max_abs"] <= 1e-3
    assert_no_orphan(stack)
    again = replayed(stack, job_id, 12)
    assert (again.returncode, again.stderr) == (0, "")
    assert f"{GROUPS_PER_STEP} groups, {4 * GROUPS_PER_STEP} responses" in again.stdout
    assert "nothing changes" in again.stdout


def test_a_job_survives_the_death_of_the_exchange(stack: Stack) -> None:
    job_id = stack.submit()
    stack.wait_for_step(job_id, 6)
    stack.kill("valkey")
    assert_every_group_is_accounted_for(stack, stack.wait_for_end(job_id))


def test_a_cancelled_job_ends_and_the_next_one_runs(stack: Stack) -> None:
    doomed, following = stack.submit(training={"steps": 5000}), stack.submit()
    stack.wait_for_step(doomed, 2)
    with stack.client() as weir:
        weir.cancel(doomed)
    ended = stack.wait_for_end(doomed)
    assert ended["status"] == "cancelled"
    # What it had learned by then is a model that another job starts from.
    fork = stack.submit(start=f"ftckpt-{doomed}-{ended['weir']['step']}", training={"steps": 1})
    assert_every_group_is_accounted_for(stack, stack.wait_for_end(following))
    assert stack.wait_for_end(fork)["status"] == "succeeded"


def test_a_paused_job_checkpoints_and_goes_on_where_it_was(stack: Stack) -> None:
    job_id = stack.submit()
    stack.wait_for_step(job_id, 5)
    stack.ask(job_id, "pause")
    wait_for(lambda: stack.job(job_id)["status"] == "paused", 240, "the pause")
    step = stack.job(job_id)["weir"]["step"]
    folders = (stack.job_folder(job_id) / "checkpoints").glob("step-*")
    assert f"step-{step:06d}" in {folder.name for folder in folders}
    stack.ask(job_id, "resume")
    assert_every_group_is_accounted_for(stack, stack.wait_for_end(job_id))


def test_a_job_survives_the_death_of_the_supervisor(tmp_path: Path) -> None:
    """What it leaves behind leaves, the next one waits for that, and takes everything with it."""
    home = tmp_path / "home"
    first = start(home)
    first.wait_until_up()
    for path in (home, *home.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert len(of_home(home)) >= 5
    job_id = first.submit()
    first.wait_for_step(job_id, 3)
    first.supervisor.kill()
    first.supervisor.wait()
    second = start(home)
    wait_for(lambda: not (home / "stack.json").exists(), 240, "the earlier stack to leave")
    try:
        second.wait_until_up()
        assert_every_group_is_accounted_for(second, second.wait_for_end(job_id))
    finally:
        second.supervisor.send_signal(signal.SIGINT)
        assert second.supervisor.wait(60) == 0
    assert not of_home(home)
    assert not (home / "stack.json").exists()
