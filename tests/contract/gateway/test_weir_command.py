"""The ``weir`` command against the real gateway, whose learner the test plays, and odd servers."""

import io
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from protocol.calls import Call, CallSampling, Refusal
from protocol.messages import JobEvent

from tests.contract.gateway.fake_rollout import a_rollout
from tests.contract.gateway.stack import (
    BY_HAND,
    JOBS,
    KEY,
    RECIPE,
    Client,
    Stack,
    a_checkpoint,
    a_job,
    a_job_in,
    a_learner,
    a_model,
    an_event,
    beside,
    fill_folder,
    know,
    start_weir,
    submit_job,
    take_up,
    tell,
)
from weir.__main__ import main

pytestmark = pytest.mark.redis

SUITE = """
name = "small"
[rollout.sampling]
max_tokens = 16
[evaluation.others.sums]
held_out = "train.jsonl"
samples = 2
"""
Weir = Callable[..., tuple[int, str, str]]
Fails = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recipe, its tasks, and a known stack."""
    monkeypatch.chdir(fill_folder(tmp_path, stack))
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def weir(folder: Path, capsys: pytest.CaptureFixture[str]) -> Weir:
    """Runs a verb there; returns its exit status, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        output, errors = capsys.readouterr()
        return status, output, errors

    return run


@pytest.fixture
def fails(weir: Weir) -> Fails:
    """Runs a verb that exits with 2 and says nothing but its errors."""

    def run(*words: str) -> str:
        status, out, err = weir(*words)
        assert status == 2, (words, err)
        assert out == "", words
        return err

    return run


def a_job_with_steps(stack: Stack, count: int, state: str, **values: Any) -> str:
    job_id = a_job_in(stack, state, **values)
    for step in range(1, count + 1):
        data = {"kind": "step", "step": step, "reward": step / 4, "tokens_per_second": 1234.5}
        tell(stack, an_event(job_id, step, data=data))
    return job_id


def test_run_submits_the_recipe_and_follows_its_job(stack: Stack, http: Client, weir: Weir) -> None:
    with a_learner(stack) as learned:
        status, out, err = weir("run", "recipe.toml")
    assert status == 0, err
    (job_id,) = learned
    assert f"{job_id} is queued: by hand, 2 steps" in out
    assert "m12" in out
    assert f"{job_id} succeeded: /final" in out
    job = http.read(f"{JOBS}/{job_id}")
    assert job["weir"]["recipe"]["model"]["path"] == str(stack.models / "tiny")


def test_evaluate_measures_each_model_by_a_job_without_steps_and_an_adapter_on_its_base(
    stack: Stack, http: Client, folder: Path, weir: Weir, fails: Fails
) -> None:
    lora = RECIPE | {"model": RECIPE["model"] | {"lora": {"rank": 24}}}
    trained = submit_job(http, recipe=lora)
    adapter = a_checkpoint(stack, trained, 4) / "model"
    (adapter / "adapter_config.json").write_text("{}")
    result = {"step": 0, "name": "sums", "accuracy": 0.5, "tasks": 8, "samples": 16, "failed": 0}
    results: list[JobEvent] = []

    def learn(stopping: Event) -> None:
        before = stack.contents()[0]
        while not stopping.wait(0.1):
            for job_id in sorted(stack.contents()[0] - before):
                place = len(results)
                bounds = {"accuracy_low": 0.3, "accuracy_high": 0.7}
                shares = {f"t{n}": [1 + (place + n) % 2, 2] for n in range(8)}
                scores = {**result, **bounds, "per_task": shares}
                data = {"kind": "other_evaluation", "step": 0, "other_evaluation": scores}
                results.append(an_event(job_id, place, data=data))
                tell(stack, results[-1])
                take_up(stack, job_id, state="succeeded", result={"evaluated": 1})
                before.add(job_id)

    (folder / "suite.toml").write_text(SUITE)
    (folder / "report.json").write_text("")
    words = ("evaluate", "tiny", f"{trained}@4", "--suite", "suite.toml", "--json")
    with beside(learn):
        status, out, err = weir(*words, "--output", "report.json")
    assert status == 0, err
    report = json.loads(out)
    assert report == json.loads((folder / "report.json").read_text())
    assert [row["model"] for row in report["results"]] == ["tiny", f"{trained}@4"]
    (difference,) = report["differences"]
    assert (difference["against"], difference["tasks"], difference["paired"]) == ("tiny", 8, True)
    base, other = (http.read(f"{JOBS}/{row['job']}") for row in report["results"])
    assert (base["weir"]["steps"], base["validation_file"]) == (0, None)
    assert base["weir"]["recipe"]["model"]["lora"] is None
    assert base["result_files"]
    model = other["weir"]["recipe"]["model"]
    assert (model["path"], model["lora"]["rank"]) == (str(stack.models / "tiny"), 24)
    copy = Path(model["lora"]["adapter"])
    assert copy.is_relative_to(stack.job_folder(other["id"]))
    assert (copy / "model.safetensors").read_text() == "weights of step 4"
    (folder / "recipe.toml").write_text("name = 'empty'")
    assert "evaluation: missing" in fails("evaluate", "tiny", "--suite", "recipe.toml")
    assert "math" in fails("evaluate", "tiny", "--suite", "no-such-suite")


def test_a_job_goes_on_from_a_checkpoint_of_another_by_its_recipe_or_a_new_one(
    stack: Stack, http: Client, weir: Weir
) -> None:
    job = a_job(http)
    for saved_step in (2, 4):
        a_checkpoint(stack, job["id"], saved_step)

    def fork(*words: str) -> tuple[dict[str, Any], dict[str, Any]]:
        with a_learner(stack) as learned:
            assert weir("fork", job["id"], *words)[0] == 0
        forked = http.read(f"{JOBS}/{learned[0]}")
        step = forked["weir"]["forked_from"]["step"]
        assert forked["weir"]["forked_from"]["job"] == job["id"]
        assert forked["model"] == f"ftckpt-{job['id']}-{step}"
        return forked, forked["weir"]["recipe"]

    forked, recipe = fork()
    assert forked["weir"]["forked_from"]["step"] == 4
    assert forked["training_file"] == job["training_file"]
    assert recipe == job["weir"]["recipe"] | {"model": recipe["model"]}
    forked, recipe = fork("recipe.toml", "--step", "2")
    assert forked["weir"]["forked_from"]["step"] == 2
    assert recipe["name"] == "by hand"


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(
    stack: Stack, http: Client, fails: Fails
) -> None:
    job_id = submit_job(http)
    with a_learner(stack) as learned:
        assert fails("fork", job_id).endswith(": none\n")
        a_checkpoint(stack, job_id, 4)
        assert fails("fork", job_id, "--step", "3").endswith(": 4\n")
    assert learned == []


def test_watch_prints_a_line_per_step_and_the_end(stack: Stack, weir: Weir) -> None:
    job_id = a_job_with_steps(stack, 2, "failed", error="the judge is away")
    end = an_event(job_id, 3, level="error")
    tell(stack, end.model_copy(update={"message": "failed: the judge is away"}))
    status, out, err = weir("watch", job_id)
    assert "step 1/3  reward 0.250  tokens/s 1,234\n" in out
    assert "step 2/3  reward 0.500" in out
    assert status == 1
    assert "failed" not in out
    assert err == f"weir: {job_id} failed: the judge is away\n"


APART: dict[str, Any] = {
    "rollout": "rollout-0",
    "version": 1,
    "mean": 0.25,
    "max": 0.5,
    "most": 1e-4,
    "agrees": False,
}
VLLM = "python3 -m vllm.entrypoints.openai.api_server --model"
CLOSE = APART | {"rollout": "rollout-1", "version": 2, "mean": 1e-6, "agrees": True}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], 1),
        ([CLOSE | {"version": 1}, APART | {"version": 2}], 1),
        # The first rollout has gone.
        ([APART, CLOSE | {"rollout": None, "version": 1}, CLOSE], 0),
    ],
)
def test_doctor_judges_rollouts_at_the_newest_version(
    stack: Stack, http: Client, weir: Weir, rows: list[dict[str, Any]], expected: int
) -> None:
    job_id = submit_job(http)
    if rows:
        tell(
            stack,
            an_event(job_id, 1, data={"kind": "notice", "details": {"parity": rows}}),
        )
    status, out, _ = weir("doctor", job_id)
    assert status == expected
    assert rows or out.startswith("nothing was compared yet\n")
    assert all(f"{row['mean']:.1e}" in out for row in rows)
    assert [
        *map(
            json.loads,
            weir("doctor", job_id, "--json")[1].splitlines(),
        )
    ] == rows


def test_ctrl_c_detaches_and_says_how_to_come_back(
    stack: Stack, http: Client, folder: Path
) -> None:
    job_id = a_job_with_steps(stack, 1, "running")
    process = start_weir(folder, "watch", job_id)
    assert process.stdout is not None
    assert any(line.startswith("step 1/3") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert f"weir watch {job_id}" in out
    assert f"weir cancel {job_id}" in out
    assert http.read(f"{JOBS}/{job_id}")["status"] == "running"


def test_a_job_is_paused_resumed_cancelled_and_deleted(
    stack: Stack, http: Client, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a name as long as a name may be, or at least nearly as long"
    job = a_job(http, recipe=RECIPE | {"name": name})
    job_id = job["id"]
    take_up(stack, job_id, state="running")
    assert weir("delete", job_id)[0] == 2
    assert weir("pause", job_id) == (0, f"{job_id} is pausing\n", "")
    take_up(stack, job_id, state="paused")
    assert weir("resume", job_id) == (0, f"{job_id} is queued\n", "")
    monkeypatch.setenv("COLUMNS", "20")  # where a narrow terminal cuts nothing
    (line,) = [line for line in weir("jobs")[1].splitlines() if line.startswith(f"{job_id} ")]
    assert name in line
    assert line.rstrip().endswith(job["model"])
    assert weir("cancel", job_id) == (0, f"{job_id} is cancelled\n", "")
    assert weir("pause", job_id)[0] == 2
    assert weir("watch", job_id)[0] == 1
    assert weir("delete", job_id) == (0, f"{job_id} is deleted\n", "")
    assert http.get(f"{JOBS}/{job_id}").status_code == 404


def test_jobs_are_listed_cancelled_and_deleted_by_what_they_have_in_common(
    http: Client, weir: Weir
) -> None:
    old, new = [
        submit_job(
            http,
            recipe=RECIPE | {"name": "in common"},
        )
        for _ in range(2)
    ]
    other_id = submit_job(http)
    options = ("--name", "in common", "--status", "queued", "--json")
    for limit, ids in ((1, [new]), (9, [new, old])):
        lines = weir(
            "jobs",
            *options,
            "--limit",
            str(limit),
        )[1].splitlines()
        assert [json.loads(line)["id"] for line in lines] == ids
    for verb, word in (("cancel", "cancelled"), ("delete", "deleted")):
        expected = f"{new} is {word}\n{old} is {word}\n"
        assert weir(verb, "--name", "in common") == (0, expected, "")
    assert http.read(f"{JOBS}/{other_id}")["status"] == "queued"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("run typo.toml", "training.stepz"),
        ("run bad.toml", "bad.jsonl: line 1: answer"),
        ("run absent.toml", "absent.toml"),
        ("run no-tasks.toml", "none.jsonl: No such file or directory\n"),
        ("watch ftjob-none", "ftjob-none"),
        ("evaluations ftjob-none", "ftjob-none"),
        ("jobs --limit 0", "--limit"),
        ("cancel", "options that select jobs"),
        ("delete ftjob-none --name x", "options that select jobs"),
        ("track j --all --to tensorboard:runs", "--all"),
        ("track j --to comet:maths", "tensorboard:…"),
        ("track j --to tensorboard:runs --to mlflow:maths", "mlflow-skinny"),
        ("cancel ../../files", "is no id"),
        ("cancel ..", "is no id"),
    ],
)
def test_wrong_input_is_named_and_exits_with_2(
    folder: Path, fails: Fails, words: str, complaint: str
) -> None:
    for name, old, new in (
        ("typo.toml", "steps = 2", "stepz = 2"),
        ("bad.toml", "train.jsonl", "bad.jsonl"),
        ("no-tasks.toml", "train.jsonl", "none.jsonl"),
    ):
        (folder / name).write_text(BY_HAND.replace(old, new))
    (folder / "bad.jsonl").write_text('{"id": "a", "prompt": "b"}\n')
    assert complaint in fails(*words.split())


def test_a_folder_of_this_machine_is_sent_by_its_full_path(folder: Path, fails: Fails) -> None:
    (folder / "tiny").mkdir()
    assert str(folder.resolve() / "tiny") in fails("run", "recipe.toml")


def test_it_says_what_to_do_when_nothing_runs_or_the_key_is_wrong(
    stack: Stack, folder: Path, fails: Fails
) -> None:
    for url, key, remedy in (
        (stack.url, "wrong", "wrong API key"),
        ("http://127.0.0.1:9", KEY, "127.0.0.1:9"),
    ):
        know(folder, url, key)
        assert remedy in fails("jobs")


# ---------------------------------------------------------------------- models that answer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def conversation_of_call(call: Call) -> list[str]:
    return [str(turn["content"]) for turn in call.messages or ()]


def test_a_question_through_a_pipe_is_answered_and_nothing_else_is_said(
    stack: Stack, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "--system Count. --max-tokens 5 --temperature 0 --seed 3"
    with a_rollout(stack) as rollout:
        monkeypatch.setattr(sys, "stdin", io.StringIO("To four?\n"))
        status, out, err = weir("chat", "tiny", *options.split())
    assert status == 0
    assert out == "0 1 2 3 4 \n"
    assert "cut off" in err
    (call,) = rollout.calls
    assert conversation_of_call(call) == ["Count.", "To four?"]
    assert call.sampling == CallSampling(max_tokens=5, temperature=0, seed=3)


@pytest.mark.parametrize(
    ("model", "second"),
    [
        ("chat", ["One", "0 1 2 3 4 ", "Two"]),
        ("tiny", ["Two"]),
    ],
)
def test_a_conversation_goes_on_after_a_refusal_and_is_begun_again(
    stack: Stack, weir: Weir, monkeypatch: pytest.MonkeyPatch, model: str, second: list[str]
) -> None:
    long = Refusal(status=400, code="context_length_exceeded", message="too long")

    def refuse(call: Call) -> Refusal | None:
        return long if conversation_of_call(call)[-1] == "long" else None

    monkeypatch.setattr(sys, "stdin", Terminal("One\nlong\nTwo\n/reset\nThree\n/quit\nFour\n"))
    with a_rollout(stack, refuse=refuse) as rollout:
        status, out, err = weir("chat", model)
    assert status == 0
    assert out.count("0 1 2 3 4 \n") == 3
    assert "weir: too long\n" in err
    assert err.count("stands alone") == (len(second) == 1)
    questions = [conversation_of_call(call) for call in rollout.calls]
    assert [turns for turns in questions if turns[-1] != "long"] == [["One"], second, ["Three"]]


def test_a_model_that_is_not_there_is_told_where_a_chat_or_a_server_asks_for_it(
    stack: Stack, http: Client, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello"))
    job_id = submit_job(http)
    a_checkpoint(stack, job_id, 4)
    assert f"ftckpt-{job_id}-4" in fails("chat", job_id)
    assert job_id in fails("serve", job_id)


def test_serve_prints_what_fetches_a_model_and_serves_it(
    stack: Stack, http: Client, folder: Path, weir: Weir
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
    assert serve == f"{VLLM} ./{job_id}-4 {named} {limits}"
    (model / "adapter_config.json").write_text("{}")
    command = weir("serve", job_id)[1].strip()
    modules = f"--enable-lora --lora-modules {job_id}=./{job_id} --max-lora-rank 32"
    assert command.endswith(f" && {VLLM} {stack.models / 'tiny'} {modules} {limits}")


# ---------------------------------------------------------------------- odd servers


def test_an_address_may_end_as_openais_does(
    stack: Stack, weir: Weir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_URL", f"{stack.url}/v1/")
    monkeypatch.setenv("WEIR_API_KEYS", f"{KEY},\nother")
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


def test_it_ends_quietly_when_nobody_reads_its_output(http: Client, folder: Path) -> None:
    submit_job(http)
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


@pytest.mark.parametrize(
    "answer",
    ODD,
    ids=[str(answer)[:40] for answer in ODD],
)
def test_what_is_no_gateway_gets_a_message(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    reply = lambda *_: httpx.Response(200, content=body)  # noqa: E731
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", reply)
    for verb in ("jobs", "watch j", "why j", "evaluations j", "samples j k"):
        err = fails(*verb.split())
        assert err.startswith("weir: "), verb
        assert "is it a Weir gateway" in err, verb
