"""The ``weir`` command against the real gateway, whose learner the test plays, and odd servers."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from protocol.calls import Call, Refusal

from tests.contract.gateway.fake_rollout import a_seen_rollout
from tests.contract.gateway.stack import (
    JOBS,
    KEY,
    RECIPE,
    TASKS,
    Stack,
    a_checkpoint,
    a_job,
    a_learner,
    a_model,
    an_event,
    know,
    start_weir,
    submit_job,
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
def folder(tmp_path: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recipe, its tasks, and a known stack."""
    (tmp_path / "recipe.toml").write_text(BY_HAND)
    (tmp_path / "train.jsonl").write_text(TASKS)
    know(tmp_path, stack.url)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def weir(folder: Path, capsys: pytest.CaptureFixture[str]) -> Weir:
    """Runs a verb there; returns its exit status, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        out, err = capsys.readouterr()
        return status, out, err

    return run


def learn(stack: Stack, job_id: str, steps: int, **end: Any) -> None:
    """Be the learner: report some steps, then end the job."""
    take_up(stack, job_id, state="running")
    for step in range(1, steps + 1):
        data = {"kind": "step", "step": step, "reward": step / 4, "tokens_per_second": 1234.5}
        tell(stack, an_event(job_id, step, data=data))
    take_up(stack, job_id, **end)


def newest_id(http: httpx.Client) -> str:
    return http.get(JOBS, params={"limit": 1}).json()["data"][0]["id"]


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
    for saved_step in (2, 4):
        a_checkpoint(stack, job["id"], saved_step)
    take_up(stack, job["id"], state="failed", error="the disk is gone")
    with a_learner(stack) as learned:
        assert weir("fork", job["id"], *words)[0] == 0
    forked = http.get(f"{JOBS}/{learned[0]}").json()
    assert forked["model"] == f"ftckpt-{job['id']}-{step}"
    assert forked["weir"]["forked_from"] == {"job": job["id"], "step": step}
    assert forked["weir"]["recipe"]["name"] == name
    if not words:
        assert forked["training_file"] == job["training_file"]
        recipes = [other["weir"]["recipe"] | {"model": None} for other in (forked, job)]
        assert recipes[0] == recipes[1]


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(
    stack: Stack, http: httpx.Client, weir: Weir
) -> None:
    job_id = submit_job(http)
    assert weir("fork", job_id)[::2] == (
        2,
        f"weir: {job_id} has no such checkpoint; the steps of its checkpoints: none\n",
    )
    a_checkpoint(stack, job_id, 4)
    status, _, err = weir("fork", job_id, "--step", "3")
    assert status == 2
    assert err.endswith(": 4\n")
    assert newest_id(http) == job_id


def test_watch_prints_a_line_per_step_and_the_end(
    stack: Stack, http: httpx.Client, weir: Weir
) -> None:
    job_id = submit_job(http)
    learn(stack, job_id, steps=2, state="failed", error="the judge is away")
    status, out, err = weir("watch", job_id)
    assert "step 1/3  reward 0.250  tokens/s 1,234\n" in out
    assert "step 2/3  reward 0.500" in out
    assert status == 1
    assert err == f"weir: {job_id} failed: the judge is away\n"


APART = {"rollout": "rollout-0", "version": 1, "mean": 0.25, "max": 0.5, "most": 1e-4}
APART |= {"agrees": False}
CLOSE = APART | {"rollout": "rollout-1", "version": 2, "mean": 1e-6, "agrees": True}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], 1),
        ([CLOSE | {"version": 1}, APART | {"version": 2}], 1),
        ([CLOSE | {"version": 1}, CLOSE], 0),
        # The first rollout has gone.
        ([APART, CLOSE | {"rollout": None, "version": 1}, CLOSE], 0),
    ],
)
def test_doctor_judges_rollouts_at_the_newest_version(
    stack: Stack, http: httpx.Client, weir: Weir, rows: list[dict[str, Any]], expected: int
) -> None:
    job_id = submit_job(http)
    if rows:
        tell(stack, an_event(job_id, 1, data={"kind": "notice", "details": {"parity": rows}}))
    status, out, _ = weir("doctor", job_id)
    assert status == expected
    assert rows or out.startswith("nothing was compared yet\n")
    assert all(f"{row['mean']:.1e}" in out for row in rows)
    lines = weir("doctor", job_id, "--json")[1].splitlines()
    assert [json.loads(line) for line in lines] == rows


def test_ctrl_c_detaches_and_says_how_to_come_back(
    stack: Stack, http: httpx.Client, folder: Path
) -> None:
    job_id = submit_job(http)
    learn(stack, job_id, steps=1, state="running")
    process = start_weir(folder, "watch", job_id)
    assert process.stdout is not None
    assert any(line.startswith("step 1/3") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert f"weir watch {job_id}" in out
    assert f"weir cancel {job_id}" in out
    assert http.get(f"{JOBS}/{job_id}").json()["status"] == "running"


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
    assert status == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == [job_id]
    assert weir("cancel", job_id) == (0, f"{job_id} is cancelled\n", "")
    assert weir("pause", job_id)[0] == 2
    assert weir("watch", job_id)[0] == 1
    assert weir("delete", job_id) == (0, f"{job_id} is deleted\n", "")
    assert http.get(f"{JOBS}/{job_id}").status_code == 404


def test_jobs_are_listed_cancelled_and_deleted_by_what_they_have_in_common(
    stack: Stack, http: httpx.Client, weir: Weir
) -> None:
    ids = [submit_job(http, recipe=RECIPE | {"name": "in common"}) for _ in range(2)]
    ids.reverse()
    other_id = submit_job(http)
    listed = weir("jobs", "--name", "in common", "--status", "queued", "--json")[1]
    assert [json.loads(line)["id"] for line in listed.splitlines()] == ids
    for verb, word in (("cancel", "cancelled"), ("delete", "deleted")):
        expected = "".join(f"{job_id} is {word}\n" for job_id in ids)
        assert weir(verb, "--name", "in common") == (0, expected, "")
    assert http.get(f"{JOBS}/{other_id}").json()["status"] == "queued"
    for words in (("cancel",), ("delete", other_id, "--name", "in common")):
        assert weir(*words)[0] == 2


def test_wrong_input_is_named_and_exits_with_2(stack: Stack, folder: Path, weir: Weir) -> None:
    (folder / "typo.toml").write_text(BY_HAND.replace("steps = 2", "stepz = 2"))
    (folder / "bad.toml").write_text(BY_HAND.replace("train.jsonl", "bad.jsonl"))
    (folder / "no-tasks.toml").write_text(BY_HAND.replace("train.jsonl", "none.jsonl"))
    (folder / "bad.jsonl").write_text('{"id": "a", "prompt": "b"}\n')
    for words, named in {
        ("run", "typo.toml"): "training.stepz",
        ("run", "bad.toml"): "bad.jsonl: line 1: answer",
        ("run", "absent.toml"): "absent.toml",
        ("run", "no-tasks.toml"): f"weir: {folder / 'none.jsonl'}: No such file or directory\n",
        ("watch", "ftjob-none"): "ftjob-none",
        ("evaluations", "ftjob-none"): "ftjob-none",
    }.items():
        status, out, err = weir(*words)
        assert status == 2, err
        assert out == "", err
        assert named in err, err
    (folder / "tiny").mkdir()  # a folder of this machine is sent by its full path
    status, _, err = weir("run", "recipe.toml")
    assert status == 2
    assert str(folder.resolve() / "tiny") in err


def test_it_says_what_to_do_when_nothing_runs_or_the_key_is_wrong(
    stack: Stack, folder: Path, weir: Weir
) -> None:
    for url, key, named in (
        (stack.url, "wrong", "wrong API key"),
        ("http://127.0.0.1:9", KEY, "127.0.0.1:9"),
    ):
        know(folder, url, key)
        status, _, err = weir("jobs")
        assert status == 2, err
        assert named in err, err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("jobs --limit 0", "--limit"),
        ("track --to tensorboard:runs", "--all"),
        ("track j --all --to tensorboard:runs", "--all"),
        ("track j --to comet:maths", "tensorboard:…"),
        ("track j --to tensorboard:runs --to mlflow:maths", "mlflow-skinny"),
        ("cancel ../../files", "is no id"),
        ("cancel ..", "is no id"),
    ],
)
def test_words_that_make_no_command_are_named(weir: Weir, words: str, complaint: str) -> None:
    status, _, err = weir(*words.split())
    assert status == 2, err
    assert complaint in err, err


# ---------------------------------------------------------------------- models that answer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def conversation_of_call(call: Call) -> list[str]:
    return [str(turn["content"]) for turn in call.messages or ()]


def test_a_question_through_a_pipe_is_answered_and_nothing_else_is_said(
    stack: Stack, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--system", "Count.", "--max-tokens", "5", "--temperature", "0", "--seed", "3")
    with a_seen_rollout(stack) as rollout:
        monkeypatch.setattr(sys, "stdin", io.StringIO("To four?\n"))
        status, out, err = weir("chat", "tiny", *options)
    assert status == 0
    assert out == "0 1 2 3 4 \n"
    assert "cut off" in err
    (call,) = rollout.calls
    assert conversation_of_call(call) == ["Count.", "To four?"]
    assert call.sampling.max_tokens == 5
    assert call.sampling.temperature == 0
    assert call.sampling.seed == 3


@pytest.mark.parametrize(
    ("model", "second"), [("chat", ["One", "0 1 2 3 4 ", "Two"]), ("tiny", ["Two"])]
)
def test_a_conversation_goes_on_after_a_refusal_and_is_begun_again(
    stack: Stack, weir: Weir, monkeypatch: pytest.MonkeyPatch, model: str, second: list[str]
) -> None:
    long = Refusal(status=400, code="context_length_exceeded", message="too long")

    def refuse(call: Call) -> Refusal | None:
        return long if conversation_of_call(call)[-1] == "long" else None

    lines = "One\nlong\nTwo\n/reset\nThree\n/quit\nFour\n"
    monkeypatch.setattr(sys, "stdin", Terminal(lines))
    with a_seen_rollout(stack, refuse=refuse) as rollout:
        status, out, err = weir("chat", model)
    assert status == 0
    assert out.count("0 1 2 3 4 \n") == 3
    assert "weir: too long\n" in err
    assert err.count("stands alone") == (len(second) == 1)
    answered = [
        conversation_of_call(call)
        for call in rollout.calls
        if conversation_of_call(call)[-1] != "long"
    ]
    assert answered == [["One"], second, ["Three"]]


def test_a_model_that_is_not_there_is_told_where_a_chat_or_a_server_asks_for_it(
    stack: Stack, http: httpx.Client, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello"))
    job_id = submit_job(http)
    a_checkpoint(stack, job_id, 4)
    for verb, named in (("chat", f"ftckpt-{job_id}-4"), ("serve", job_id)):
        status, out, err = weir(verb, job_id)
        assert status == 2, err
        assert out == "", err
        assert named in err, err


def test_serve_prints_what_fetches_a_model_and_serves_it(
    stack: Stack, http: httpx.Client, folder: Path, weir: Weir
) -> None:
    recipe = RECIPE | {"model": RECIPE["model"] | {"lora": {"rank": 24}}}
    job_id = submit_job(http, recipe=recipe)
    a_checkpoint(stack, job_id, 4)
    model = a_model(stack.job_folder(job_id) / "model")
    take_up(stack, job_id, state="succeeded", result={"model": str(model)})
    fetch, serve = weir("serve", f"{job_id}@4")[1].strip().split(" && ")
    assert weir(*shlex.split(fetch)[1:])[0] == 0
    assert (folder / f"{job_id}-4/model.safetensors").read_text() == "weights of step 4"
    limits = "--max-model-len 64 --dtype float32"
    named = f"--served-model-name {job_id}@4"
    assert serve == f"vllm serve ./{job_id}-4 {named} {limits}"
    (model / "adapter_config.json").write_text("{}")
    command = weir("serve", job_id)[1].strip()
    modules = f"--enable-lora --lora-modules {job_id}=./{job_id} --max-lora-rank 32"
    assert command.endswith(f" && vllm serve {stack.models / 'tiny'} {modules} {limits}")


# ---------------------------------------------------------------------- odd servers


@contextmanager
def answering(answer: Any) -> Iterator[str]:
    """Where a server listens that answers as a gateway of another make would."""
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client may leave in the middle; its own words are looked at."""

    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def a_page(*objects: dict[str, Any]) -> dict[str, Any]:
    return {"data": objects, "has_more": False, "last_id": "1"}


@pytest.mark.parametrize("end", ["", "/v1/"])
def test_an_address_may_end_as_openais_does(
    weir: Weir, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    with answering(a_page()) as url:
        monkeypatch.setenv("WEIR_URL", url + end)
        monkeypatch.setenv("WEIR_API_KEYS", "one,\ntwo")
        assert weir("jobs")[0] == 0


def test_ctrl_c_while_it_starts_leaves_no_traceback(folder: Path) -> None:
    process = start_weir(folder, "jobs", PYTHONVERBOSE="1")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("import 'protocol.recipe'"):
            break
    process.send_signal(signal.SIGINT)  # it still starts, and its output is not read
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_it_ends_quietly_when_nobody_reads_its_output(folder: Path) -> None:
    details = {"step": 1, "steps": 3, "recipe": {"name": "r"}}
    job = {"id": "j", "status": "running", "model": "m", "weir": details}
    with answering(a_page(*[job] * 100)) as url:
        know(folder, url)
        process = start_weir(folder, "jobs")
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


ODD = [
    b"<h1>It works!</h1>",
    b"[" * 100_000,
    {},
    {"data": [3], "has_more": False, "last_id": None},
    {"id": "j", "weir": {"step": 0, "steps": 10**400}},
]


@pytest.mark.parametrize("answer", ODD, ids=[str(answer)[:40] for answer in ODD])
def test_what_is_no_gateway_gets_a_message(folder: Path, weir: Weir, answer: Any) -> None:
    with answering(answer) as url:
        know(folder, url)
        for verb in ("jobs", "watch j", "why j", "evaluations j", "samples j k"):
            status, _, err = weir(*verb.split())
            assert status == 2, (verb, err)
            assert err.startswith("weir: "), (verb, err)
            assert "is it a Weir gateway" in err, (verb, err)
