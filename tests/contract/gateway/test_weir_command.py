"""The ``weir`` command as a process, against the real gateway; the test plays the learner."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from protocol.exchange import Exchange

from services.gateway.client.client import WeirClient, WeirError
from services.learner.job.phases.summary import summarize
from services.learner.job.report import Reporter
from tests.builders import a_graded_group, a_group, a_request, a_task
from tests.contract.gateway.command import know, start_weir, weir
from tests.contract.gateway.stack import (
    JOBS,
    KEY,
    TASKS,
    Stack,
    a_body,
    a_job,
    an_event,
    take_up,
)
from tests.contract.gateway.stack import RECIPE as REST_RECIPE

pytestmark = pytest.mark.redis

RECIPE = """
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


@pytest.fixture
def here(tmp_path: Path, stack: Stack) -> Path:
    """A folder with a recipe, its tasks, and a known stack."""
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "train.jsonl").write_text(TASKS)
    know(tmp_path, stack.url)
    return tmp_path


def test_a_verb_of_the_grader_is_run_by_its_module(here: Path) -> None:
    response = {"response": r"So it is \boxed{42}.", "answer": "42"}
    (here / "responses.jsonl").write_text(json.dumps(response))
    status, out, err = weir(here, "grade", "responses.jsonl")
    assert (status, err) == (0, "")
    assert json.loads(out)["verdict"] is True
    assert weir(here, "grade", "absent.jsonl")[0] == 2


def test_why_says_where_a_job_is_and_what_it_waits_for(
    stack: Stack, http: httpx.Client, here: Path
) -> None:
    job_id = a_job(http)["id"]
    status, out, err = weir(here, "why", job_id)
    assert (status, err) == (0, "")
    assert out.startswith(f"{job_id} is queued at step 0/3")
    assert "waits for" in out or "about to be taken up" in out
    take_up(stack, job_id, state="failed", error="the disk is gone", finished_at=time.time())
    status, out, _ = weir(here, "why", job_id)
    assert (status, out.splitlines()[0]) == (
        0,
        f"{job_id} is failed at step 0/3: it has ended: failed: the disk is gone",
    )
    assert weir(here, "why", "ftjob-absent")[0] == 2


def newest_job(http: httpx.Client) -> dict[str, Any]:
    return http.get(JOBS, params={"limit": 1}).json()["data"][0]


def learn(stack: Stack, job_id: str, steps: int, **end: Any) -> None:
    """Be the learner: report some steps, then end the job."""

    async def report(exchange: Exchange) -> None:
        for step in range(1, steps + 1):
            data = {"step": step, "reward": step / 4, "tokens_per_second": 1234.5}
            await exchange.record_event(an_event(job_id, step, type="metrics", data=data))

    take_up(stack, job_id, state="running")
    stack.exchange(report)
    take_up(stack, job_id, **end)


@pytest.mark.parametrize(
    ("end", "status", "word"),
    [
        ({"state": "succeeded", "result": {"model": "/final"}}, 0, "succeeded: /final"),
        ({"state": "failed", "error": "the judge is away"}, 1, "failed: the judge is away"),
    ],
)
def test_run_submits_the_recipe_prints_a_line_per_step_and_the_end(
    stack: Stack, http: httpx.Client, here: Path, end: dict[str, Any], status: int, word: str
) -> None:
    before = newest_id(http)
    process = start_weir(here, "run", "recipe.toml")
    job = wait_for_another_job(http, before)
    learn(stack, job["id"], steps=2, **end)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert f"{job['id']} is queued: by hand, 2 steps" in out
    assert "step 1/2  reward 0.250  tokens/s 1,234\n" in out
    assert "step 2/2  reward 0.500" in out
    assert word in out + err
    assert job["weir"]["recipe"]["model"]["path"] == str(stack.models / "tiny")


def test_a_stack_elsewhere_finds_the_model_of_the_same_recipe_below_its_own_roots(
    stack: Stack, http: httpx.Client, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f" {KEY},another\n")
    before = newest_id(http)
    run = ("run", "recipes/demo.toml")
    process = start_weir(Path.cwd(), *run, WEIR_URL=stack.url, WEIR_API_KEYS_FILE=str(keys))
    job = wait_for_another_job(http, before)
    learn(stack, job["id"], steps=1, state="succeeded", result={"model": "/final"})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert job["model"] == "examples/arithmetic/base-model"
    assert job["weir"]["recipe"]["model"]["path"] == str(stack.models / job["model"])


def newest_id(http: httpx.Client) -> str | None:
    jobs = http.get(JOBS, params={"limit": 1}).json()["data"]
    return jobs[0]["id"] if jobs else None


def wait_for_another_job(http: httpx.Client, before: str | None) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while newest_id(http) == before:
        assert time.monotonic() < deadline, "no job was submitted"
        time.sleep(0.1)
    return newest_job(http)


def test_ctrl_c_detaches_and_says_how_to_come_back(
    stack: Stack, http: httpx.Client, here: Path
) -> None:
    job_id = a_job(http)["id"]
    learn(stack, job_id, steps=1, state="running")
    process = start_weir(here, "watch", job_id)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("step 1/3")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"`weir watch {job_id}`" in out
    assert f"`weir cancel {job_id}`" in out
    assert http.get(f"{JOBS}/{job_id}").json()["status"] == "running"


def test_jobs_lists_and_cancel_cancels(http: httpx.Client, here: Path) -> None:
    job_id = a_job(http)["id"]
    assert weir(here, "cancel", job_id)[:2] == (0, f"{job_id} is cancelled\n")
    status, out, _ = weir(here, "jobs")
    assert status == 0
    assert job_id in out
    assert weir(here, "watch", job_id)[0] == 1
    newest = a_job(http)
    status, out, _ = weir(here, "jobs", "--limit", "1", "--json")
    assert (status, [json.loads(line)["id"] for line in out.splitlines()]) == (0, [newest["id"]])


def test_pause_and_resume_ask_a_job_and_say_how_it_is(
    stack: Stack, http: httpx.Client, here: Path
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="running")
    assert weir(here, "pause", job_id)[:2] == (0, f"{job_id} is pausing\n")
    take_up(stack, job_id, state="paused")
    assert weir(here, "resume", job_id)[:2] == (0, f"{job_id} is queued\n")
    assert http.get(f"{JOBS}/{job_id}").json()["weir"]["requested"] == "run"
    weir(here, "cancel", job_id)
    assert weir(here, "pause", job_id)[0] == 2


def test_jobs_and_watch_say_what_a_job_waits_for(
    stack: Stack, http: httpx.Client, here: Path
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="paused", error="the disk [/data] is full")
    expected = f"{job_id} is paused and waits for this to be mended: the disk [/data] is full\n"
    assert expected in weir(here, "jobs")[1]
    watching = start_weir(here, "watch", job_id)
    assert watching.stdout is not None
    assert watching.stdout.readline() == expected
    take_up(stack, job_id, state="succeeded", error=None)
    assert watching.wait(timeout=60) == 0


def test_jobs_cuts_nothing_in_a_narrow_terminal(
    http: httpx.Client, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(
        http,
        recipe=REST_RECIPE
        | {"name": "a name as long as a name may be, or at least nearly as long"},
    )
    monkeypatch.setenv("COLUMNS", "20")
    status, out, _ = weir(here, "jobs")
    assert status == 0
    (line,) = [line for line in out.splitlines() if line.startswith(f"{job['id']} ")]
    assert job["weir"]["recipe"]["name"] in line
    assert line.rstrip().endswith(job["model"])


def evaluate(stack: Stack, job_id: str) -> None:
    """Be the learner: tell of two evaluations, as many steps apart as a page holds events."""

    async def report(exchange: Exchange) -> None:
        reporter = Reporter(exchange, job_id)
        for step, outcomes in ((0, [1, 0]), (1000, [1, 1])):
            groups = [
                a_graded_group(a_group(a_request(number=n, task=a_task(id=f"t{n}"))), outcomes)
                for n in range(8)
            ]
            await reporter.evaluation(summarize(step, groups), {})
            if step == 0:
                for number in range(1000):
                    await exchange.record_event(an_event(job_id, number))

    stack.exchange(report)


def test_evaluations_shows_what_a_job_did_on_held_out_tasks_while_it_runs(
    stack: Stack, http: httpx.Client, here: Path
) -> None:
    job_id = a_job(http)["id"]
    status, out, err = weir(here, "evaluations", job_id)
    assert (status, "no evaluation yet" in out) == (0, True), err
    take_up(stack, job_id, state="running")
    evaluate(stack, job_id)
    status, out, err = weir(here, "evaluations", job_id)
    assert status == 0, err
    head, first, last, gain = (line.split() for line in out.splitlines())
    assert head[:4] == ["step", "tasks", "responses", "avg@k"]
    assert first[:4] == ["0", "8", "16", "0.500"]
    assert last[:4] == ["1000", "8", "16", "1.000"]
    assert gain[:8] == ["accuracy", "+0.500", "from", "step", "0", "to", "step", "1000,"]
    assert "the same 8 tasks, paired" in out
    take_up(stack, job_id, state="succeeded", result={"model": "/final"})
    status, out, _ = weir(here, "watch", job_id)
    assert status == 0
    assert "accuracy +0.500 from step 0 to step 1000" in out
    assert weir(here, "evaluations", "ftjob-none")[0] == 2


def test_a_local_model_folder_is_sent_by_its_full_path(
    stack: Stack, http: httpx.Client, here: Path
) -> None:
    (here / "tiny").mkdir()
    status, _, err = weir(here, "run", "recipe.toml")
    assert status == 2
    assert f"there is no model folder '{here.resolve() / 'tiny'}' below WEIR_MODEL_ROOTS" in err


def test_wrong_input_is_named_and_exits_with_2(stack: Stack, here: Path) -> None:
    (here / "typo.toml").write_text(RECIPE.replace("steps = 2", "stepz = 2"))
    status, _, err = weir(here, "run", "typo.toml")
    assert (status, "training.stepz: unknown key" in err) == (2, True)
    (here / "train.jsonl").write_text('{"id": "a", "prompt": "b"}\n')
    status, _, err = weir(here, "run", "recipe.toml")
    assert (status, "train.jsonl: line 1: answer: required" in err) == (2, True)
    status, _, err = weir(here, "run", "absent.toml")
    assert (status, "absent.toml: no such file" in err) == (2, True)
    status, _, err = weir(here, "watch", "ftjob-none")
    assert (status, "there is no job 'ftjob-none'" in err) == (2, True)


def test_it_says_what_to_do_when_nothing_runs_or_the_key_is_wrong(
    stack: Stack, here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    status, _, err = weir(tmp_path_factory.mktemp("empty"), "jobs")
    assert (status, "start one with `weir up`" in err) == (2, True)
    know(here, stack.url, key="wrong")
    status, _, err = weir(here, "jobs")
    assert (status, "wrong API key" in err) == (2, True)
    know(here, "http://127.0.0.1:9")
    status, _, err = weir(here, "jobs")
    assert (status, "nothing answers at http://127.0.0.1:9" in err) == (2, True)


class BreaksOnce(httpx.BaseTransport):
    """A line that breaks after the first event of the first stream."""

    def __init__(self) -> None:
        self.inner = httpx.HTTPTransport()
        self.broken = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        reply = self.inner.handle_request(request)
        if not self.broken:
            self.broken = True
            reply.stream = Broken(reply.stream)
        return reply


class Broken(httpx.SyncByteStream):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Any:
        yield next(iter(self.inner))
        raise httpx.ReadError("the line broke")

    def close(self) -> None:
        self.inner.close()


def test_the_client_goes_on_where_the_line_broke(stack: Stack, http: httpx.Client) -> None:
    job_id = a_job(http)["id"]
    learn(stack, job_id, steps=1, state="running")

    def finish() -> None:
        time.sleep(1.5)
        learn(stack, job_id, steps=3, state="succeeded")

    learner = threading.Thread(target=finish)
    learner.start()
    with WeirClient(stack.url, KEY, transport=BreaksOnce()) as client:
        steps = [event["data"]["step"] for event in client.events(job_id)]
    learner.join()
    assert steps == [1, 2, 3]


def test_the_client_raises_what_the_gateway_says(stack: Stack, http: httpx.Client) -> None:
    body = a_body(http, model="absent")
    with WeirClient(stack.url, KEY) as client, pytest.raises(WeirError) as caught:
        client.submit(body)
    assert (caught.value.status, caught.value.param) == (400, "model")
    with WeirClient(stack.url, KEY) as client, pytest.raises(WeirError, match="no job"):
        list(client.events("ftjob-none"))
