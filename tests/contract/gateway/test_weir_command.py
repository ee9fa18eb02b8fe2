"""The ``weir`` command against the real gateway; the test plays the learner."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.gateway.stack import (
    JOBS,
    RECIPE,
    TASKS,
    Stack,
    a_checkpoint,
    a_job,
    a_learner,
    an_event,
    know,
    start_weir,
    take_up,
    tell,
)
from weir.__main__ import main

pytestmark = pytest.mark.redis

BY_HAND = """
name = "by hand"
[model]
path = "tiny"
dtype = "float32"
max_context = 64
prompt_template = "{prompt}"
[tasks]
train = "train.jsonl"
[rollout]
group_size = 4
[rollout.sampling]
max_tokens = 16
[reward]
process = "equation_steps"
[training]
steps = 2
groups_per_step = 4
"""
Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recipe, its tasks, and a known stack."""
    (tmp_path / "recipe.toml").write_text(BY_HAND)
    (tmp_path / "train.jsonl").write_text(TASKS)
    know(tmp_path, stack.url)
    monkeypatch.chdir(tmp_path)
    for name in ("WEIR_URL", "WEIR_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def weir(here: Path, capsys: pytest.CaptureFixture[str]) -> Weir:
    """Runs a verb there: its exit status, what it said, and what it complained of."""

    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        out, err = capsys.readouterr()
        return status, out, err

    return run


def learn(stack: Stack, job_id: str, steps: int, **end: Any) -> None:
    """Be the learner: report some steps, then end the job."""
    take_up(stack, job_id, state="running")
    for step in range(1, steps + 1):
        data = {"step": step, "reward": step / 4, "tokens_per_second": 1234.5}
        tell(stack, an_event(job_id, step, type="metrics", data=data))
    take_up(stack, job_id, **end)


def newest_id(http: httpx.Client) -> str:
    return http.get(JOBS, params={"limit": 1}).json()["data"][0]["id"]


# ---------------------------------------------------------------------- submitting


def test_run_submits_the_recipe_and_follows_its_job(
    stack: Stack, http: httpx.Client, weir: Weir
) -> None:
    with a_learner(stack) as learned:
        status, out, err = weir("run", "recipe.toml")
    assert status == 0, err
    (job_id,) = learned
    assert f"{job_id} is queued: by hand, 2 steps" in out
    assert "m12" in out
    assert f"{job_id} succeeded: /final" in out
    job = http.get(f"{JOBS}/{job_id}").json()
    assert job["weir"]["recipe"]["model"]["path"] == str(stack.models / "tiny")


@pytest.mark.parametrize(
    ("words", "step", "name"),
    [((), 4, "tiny"), (("recipe.toml", "--step", "2"), 2, "by hand")],
)
def test_a_job_goes_on_from_a_checkpoint_of_another_by_its_recipe_or_a_new_one(
    stack: Stack, http: httpx.Client, weir: Weir, words: tuple[str, ...], step: int, name: str
) -> None:
    job = a_job(http)
    for kept in (2, 4):
        a_checkpoint(stack, job["id"], kept)
    take_up(stack, job["id"], state="failed", error="the disk is gone")
    with a_learner(stack) as learned:
        assert weir("fork", job["id"], *words)[0] == 0
    forked = http.get(f"{JOBS}/{learned[0]}").json()
    assert forked["model"] == f"ftckpt-{job['id']}-{step}"
    assert forked["weir"]["recipe"]["name"] == name
    if not words:
        assert forked["training_file"] == job["training_file"]
        recipes = [each["weir"]["recipe"] | {"model": None} for each in (forked, job)]
        assert recipes[0] == recipes[1]


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(
    stack: Stack, http: httpx.Client, weir: Weir
) -> None:
    job_id = a_job(http)["id"]
    assert weir("fork", job_id)[::2] == (
        2,
        f"weir: {job_id} has no such checkpoint; the steps of those it has kept: none\n",
    )
    a_checkpoint(stack, job_id, 4)
    status, _, err = weir("fork", job_id, "--step", "3")
    assert (status, err.endswith(": 4\n")) == (2, True)
    assert newest_id(http) == job_id


# ---------------------------------------------------------------------- watching


def test_watch_prints_a_line_per_step_and_the_end(
    stack: Stack, http: httpx.Client, weir: Weir
) -> None:
    job_id = a_job(http)["id"]
    learn(stack, job_id, steps=2, state="failed", error="the judge is away")
    status, out, err = weir("watch", job_id)
    assert "step 1/3  reward 0.250  tokens/s 1,234\n" in out
    assert "step 2/3  reward 0.500" in out
    assert (status, err) == (1, f"weir: {job_id} failed: the judge is away\n")


def test_ctrl_c_detaches_and_says_how_to_come_back(
    stack: Stack, http: httpx.Client, here: Path
) -> None:
    job_id = a_job(http)["id"]
    learn(stack, job_id, steps=1, state="running")
    process = start_weir(here, "watch", job_id)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("step 1/3")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert f"weir watch {job_id}" in out
    assert f"weir cancel {job_id}" in out
    assert http.get(f"{JOBS}/{job_id}").json()["status"] == "running"


# ---------------------------------------------------------------------- asking


def test_jobs_are_listed_paused_resumed_cancelled_and_deleted(
    stack: Stack, http: httpx.Client, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a name as long as a name may be, or at least nearly as long"
    job = a_job(http, recipe=RECIPE | {"name": name})
    job_id = job["id"]
    take_up(stack, job_id, state="running")
    assert weir("delete", job_id)[0] == 2
    assert weir("pause", job_id) == (0, f"{job_id} is pausing\n", "")
    take_up(stack, job_id, state="paused")
    assert weir("resume", job_id) == (0, f"{job_id} is queued\n", "")
    assert http.get(f"{JOBS}/{job_id}").json()["weir"]["requested"] == "run"
    monkeypatch.setenv("COLUMNS", "20")  # where a narrow terminal cuts nothing
    (line,) = [line for line in weir("jobs")[1].splitlines() if line.startswith(f"{job_id} ")]
    assert name in line
    assert line.rstrip().endswith(job["model"])
    status, out, _ = weir("jobs", "--limit", "1", "--json")
    assert (status, [json.loads(line)["id"] for line in out.splitlines()]) == (0, [job_id])
    assert weir("cancel", job_id) == (0, f"{job_id} is cancelled\n", "")
    assert weir("pause", job_id)[0] == 2
    assert weir("watch", job_id)[0] == 1
    assert weir("delete", job_id) == (0, f"{job_id} is deleted\n", "")
    assert http.get(f"{JOBS}/{job_id}").status_code == 404


# ---------------------------------------------------------------------- what is wrong


def test_wrong_input_is_named_and_exits_with_2(stack: Stack, here: Path, weir: Weir) -> None:
    (here / "typo.toml").write_text(BY_HAND.replace("steps = 2", "stepz = 2"))
    (here / "bad.toml").write_text(BY_HAND.replace("train.jsonl", "bad.jsonl"))
    (here / "bad.jsonl").write_text('{"id": "a", "prompt": "b"}\n')
    for words, named in {
        ("run", "typo.toml"): "training.stepz",
        ("run", "bad.toml"): "bad.jsonl: line 1: answer",
        ("run", "absent.toml"): "absent.toml",
        ("watch", "ftjob-none"): "ftjob-none",
        ("evaluations", "ftjob-none"): "ftjob-none",
    }.items():
        status, out, err = weir(*words)
        assert (status, out, named in err) == (2, "", True), err
    (here / "tiny").mkdir()  # a folder of this machine is sent by its full path
    status, _, err = weir("run", "recipe.toml")
    assert (status, str(here.resolve() / "tiny") in err) == (2, True)


def test_it_says_what_to_do_when_nothing_runs_or_the_key_is_wrong(
    stack: Stack, here: Path, weir: Weir
) -> None:
    know(here, stack.url, key="wrong")
    status, _, err = weir("jobs")
    assert (status, "wrong API key" in err) == (2, True)
    know(here, "http://127.0.0.1:9")
    status, _, err = weir("jobs")
    assert (status, "http://127.0.0.1:9" in err, "weir up" in err) == (2, True, True)
