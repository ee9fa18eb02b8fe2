"""A running gateway, builders of its requests, and the ``weir`` command."""

import asyncio
import hashlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any, TypeVar

import httpx
from protocol.exchange import Exchange, connect
from protocol.messages import ActiveJob, JobEvent, JobRecord, JobState

from deploy.launches import python_path
from deploy.processes import free_ports
from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.gateway.core.files.store import FileStore
from services.gateway.core.jobs.service import JobService
from tests.contract.valkey_server import Server
from tests.sample_stores import a_sample, write_samples

T = TypeVar("T")
KEY = "test-key"
CONFIG = '{"model_type": "llama"}'
READ_KEY = "read-key"
ENVIRONMENT_KEY = "environments-key"
JOBS = "/v1/fine_tuning/jobs"
TASKS = "".join(
    json.dumps(
        {
            "id": f"t{n}",
            "prompt": f"{n}+{n}=?",
            "answer": str(2 * n),
        }
    )
    + "\n"
    for n in range(8)
)
GOOD_LINE = '{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'
EXACT: Any = {
    "type": "string_check",
    "name": "exact",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
RECIPE: dict[str, Any] = {
    "name": "tiny",
    "rollout": {"group_size": 4, "sampling": {"max_tokens": 16}},
    "reward": {"process": "equation_steps"},
    "model": {"dtype": "float32", "max_context": 64},
    "training": {"steps": 3, "groups_per_step": 4},
}

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

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # httpx would read all certificates each time


class Client(httpx.Client):
    """A client whose answers are all as the reference describes them."""

    def read(self, path: str, **params: Any) -> Any:
        """The JSON of a GET."""
        reply = self.get(path, params=params or None)
        assert reply.is_success, reply.text
        return reply.json()


@dataclass(frozen=True)
class Stack:
    """A running gateway with its server and folders."""

    server: Server
    url: str
    data_dir: Path
    models: Path

    def http(self, key: str | None = KEY) -> Client:
        return Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=60,
            event_hooks={"response": [assert_described]},
            verify=_NO_TLS,
        )

    def exchange(self, work: Callable[[Exchange], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with connect(self.server.url, me="test") as exchange:
                return await work(exchange)

        return asyncio.run(connected())

    def as_gateway(self, work: Callable[[JobService], Awaitable[T]]) -> T:
        """Work in this process as the gateway does."""
        deployment = Deployment.from_environment(
            {
                "WEIR_REDIS_URL": self.server.url,
                "WEIR_DATA_DIR": str(self.data_dir),
                "WEIR_PORT": "1",
            }
        )
        files = FileStore(deployment.files_dir)
        return self.exchange(
            lambda exchange: work(JobService(Service("gateway", deployment, exchange), files))
        )

    def record(self, job_id: str) -> JobRecord:
        record = self.exchange(lambda exchange: exchange.job(job_id))
        assert record is not None
        return record

    def job_folder(self, job_id: str) -> Path:
        return self.data_dir / "jobs" / job_id

    def contents(self) -> tuple[set[str], set[str]]:
        """Every job and every file there is."""
        files = {path.name for path in (self.data_dir / "files").glob("*")}
        return set(self.exchange(lambda exchange: exchange.job_ids())), files


@lru_cache
def _described(url: str) -> dict[str, Any]:
    return httpx.get(url).json()["paths"]


def assert_described(reply: httpx.Response) -> None:
    """The status and the type of an answer are among those that /openapi.json has for its route."""
    method = reply.request.method.lower()
    path = reply.url.path
    for template, operations in _described(str(reply.url.join("/openapi.json"))).items():
        part = ".+" if template.endswith("{model}") else "[^/]+"
        if method in operations and re.fullmatch(re.sub(r"\{\w+\}", part, template), path):
            answers = operations[method]["responses"]
            status = str(reply.status_code)
            answer = answers.get(status, answers.get(f"{status[0]}XX"))
            assert answer is not None, (method, template, reply.status_code)
            kind = reply.headers["content-type"].partition(";")[0]
            assert kind in answer.get("content", {kind: {}}), (method, template, kind)


GATEWAY = ("-m", "services.gateway")


@contextmanager
def a_gateway(
    server: Server, folder: Path, command: Sequence[str] = GATEWAY, **options: Any
) -> Iterator[Stack]:
    """A gateway process whose data and models lie in ``folder``; options as of `start_gateway`."""
    with _ended(*start_gateway(server, folder, command, **options)) as url:
        yield Stack(server, url, folder / "data", folder / "models")


@contextmanager
def a_grader(stack: Stack, **variables: str) -> Iterator[None]:
    """A grader process, without a judge and clients' code unless the variables allow them."""
    settings: Any = {"WEIR_GRADER_WORKERS": "1", **variables}
    folder = stack.data_dir.parent
    command = ("-m", "services.grader")
    with _ended(*start_gateway(stack.server, folder, command, **settings)):
        wait_until(lambda: _offers_something(stack), limit_s=180)
        yield


@contextmanager
def _ended(process: subprocess.Popen[bytes], url: str) -> Iterator[str]:
    """Wait until a service is ready, and in the end until it has stopped."""
    try:
        wait_until_ready(url)
        yield url
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def start_gateway(
    server: Server,
    folder: Path,
    command: Sequence[str] = GATEWAY,
    *,
    stderr: IO[bytes] | None = None,
    **variables: str,
) -> tuple[subprocess.Popen[bytes], str]:
    """The process, and where it will answer."""
    port = next(free_ports())
    digest = hashlib.sha256(READ_KEY.encode()).hexdigest()
    environment = os.environ | {
        "WEIR_REDIS_URL": server.url,
        "WEIR_DATA_DIR": str(folder / "data"),
        "WEIR_MODEL_ROOTS": str(folder / "models"),
        "WEIR_PORT": str(port),
        "WEIR_API_KEYS": f"other-key,{KEY},reader:read:sha256:{digest}",
        "WEIR_ENVIRONMENT_KEY": ENVIRONMENT_KEY,
        "PYTHONPATH": python_path({}),
        **variables,
    }
    process = subprocess.Popen([sys.executable, *command], env=environment, stderr=stderr)
    return process, f"http://127.0.0.1:{port}"


def _offers_something(stack: Stack) -> bool:
    statuses = stack.exchange(lambda exchange: exchange.statuses())
    return any(status.capabilities is not None for status in statuses.values())


def upload(http: Client, content: str | bytes = TASKS) -> httpx.Response:
    files = {"file": ("tasks.jsonl", content)}
    return http.post("/v1/files", files=files, data={"purpose": "fine-tune"})


def a_body(http: Client, **changes: Any) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "training_file": upload(http).json()["id"],
        "recipe": RECIPE,
    }
    return body | changes


def a_job(http: Client, **changes: Any) -> dict[str, Any]:
    reply = http.post(JOBS, json=a_body(http, **changes))
    assert reply.status_code == 200, reply.text
    return reply.json()


def submit_job(http: Client, **changes: Any) -> str:
    return a_job(http, **changes)["id"]


def a_model(folder: Path, weights: str = "weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(CONFIG)
    (folder / "model.safetensors").write_text(weights)
    return folder


def a_checkpoint(stack: Stack, job_id: str, step: int, **metrics: Any) -> Path:
    """Write a checkpoint as the learner does."""
    folder = stack.job_folder(job_id) / "checkpoints" / f"step-{step:06d}"
    a_model(folder / "model", weights=f"weights of step {step}")
    (folder / "state.json").write_text(json.dumps({"step": step, "metrics": metrics}))
    return folder


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
    values |= {"id": f"e{number}", "job_id": job_id, "message": f"m{number}"}
    return JobEvent.model_validate({"created_at": 1000.0 + number, **values})


def tell(stack: Stack, *events: JobEvent) -> None:
    async def tell_all(exchange: Exchange) -> None:
        for event in events:
            await exchange.record_event(event)

    stack.exchange(tell_all)


def record_events(stack: Stack, job_id: str, numbers: range) -> None:
    tell(stack, *(an_event(job_id, number) for number in numbers))


def take_up(stack: Stack, job_id: str, **values: Any) -> None:
    """Be the learner: begin an attempt of the job and write its state."""

    async def begin(exchange: Exchange) -> None:
        attempt = await exchange.begin_attempt(job_id)
        await exchange.update_job(job_id, attempt, **values)

    stack.exchange(begin)


def a_job_in(stack: Stack, state: str, **values: Any) -> str:
    """A job that a learner has brought into a state."""
    with stack.http() as http:
        job_id = submit_job(http)
    take_up(stack, job_id, state=state, **values)
    return job_id


def train(stack: Stack, job_id: str) -> None:
    """Be a learner that trains a job."""
    take_up(stack, job_id, state=JobState.RUNNING, step=1)
    record = stack.record(job_id)
    active = ActiveJob(job_id=job_id, attempt=record.attempt, recipe=record.recipe)
    stack.exchange(lambda exchange: exchange.activate(active))


@contextmanager
def beside(work: Callable[[Event], object]) -> Iterator[None]:
    """Work in a thread, until the event that it gets is set."""
    stopping = Event()
    thread = Thread(target=work, args=(stopping,))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@contextmanager
def a_learner(stack: Stack) -> Iterator[list[str]]:
    """Be the learner of every job that is submitted meanwhile: a sample, an event, a success."""
    before = stack.contents()[0]
    learned = list[str]()

    def learn(stopping: Event) -> None:
        while not stopping.wait(0.1):
            for job_id in stack.contents()[0] - before - {*learned}:
                samples = a_sample(97, step=12, texts=["It is 3.", "No."])
                write_samples(stack.job_folder(job_id) / "samples", samples)
                take_up(stack, job_id, state=JobState.RUNNING)
                record_events(stack, job_id, range(12, 13))
                take_up(stack, job_id, state=JobState.SUCCEEDED, result={"model": "/final"})
                learned.append(job_id)

    with beside(learn):
        yield learned


def assert_refused(reply: httpx.Response, status: int, param: str | None) -> None:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert problem["status"] == status
    assert problem["detail"] == problem["error"]["message"]
    assert problem["error"]["param"] == param, problem


def reinforcement(**settings: Any) -> dict[str, Any]:
    return {"type": "reinforcement", "reinforcement": settings}


def wait_until(condition: Callable[[], object], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_ready(url: str) -> None:
    def is_ready() -> bool:
        try:
            return httpx.get(f"{url}/readyz").is_success
        except httpx.TransportError:
            return False

    wait_until(is_ready, limit_s=180)


# ---------------------------------------------------------------------- the command


def know(folder: Path, url: str, key: str = KEY) -> None:
    (folder / ".weir").mkdir(exist_ok=True)
    (folder / ".weir" / "stack.json").write_text(json.dumps({"url": url, "api_key": key}))


def fill_folder(folder: Path, stack: Stack) -> Path:
    """Write a recipe, its tasks, and the stack's address and key."""
    (folder / "recipe.toml").write_text(BY_HAND)
    (folder / "train.jsonl").write_text(TASKS)
    know(folder, stack.url)
    return folder


def start_weir(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if "WEIR" not in name}
    environment["PYTHONPATH"] = python_path({})
    return subprocess.Popen(
        [sys.executable, "-m", "weir", *arguments],
        cwd=folder,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit status, its output and its errors."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def weir(folder: Path, *arguments: str) -> tuple[int, str, str]:
    return end_of(start_weir(folder, *arguments))
