"""Training runs: each model of a session is a job, with an id from its number in the session.

So the gateway keeps no state: a retry finds the job of the first try, a heartbeat its session's.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from protocol.messages import ErrorKind, JobRecord, JobState, Requested
from protocol.operations import Operation, OperationLog
from protocol.recipe import SESSION_STEPS, Lora, Model, Recipe, parse_recipe
from protocol.recipe_files import RecipeError

from services.gateway.api.openai.job_object import job_status
from services.gateway.api.tinker import bodies
from services.gateway.api.tinker.wire import Bounds
from services.gateway.core.calls.model_resolution import DEFAULT_MAX_CONTEXT, default_model
from services.gateway.core.jobs.service import JobService, Repeat
from services.gateway.core.models.folders import JOB_ID, find_listed_name, read_facts, resolve_model
from services.gateway.errors import Problem, await_exchange, from_lines, wrong

RECIPE_NAME = "tinker"
SAMPLERS = "sampler_weights"
STATES = "weights"
FOLDERS = {SAMPLERS: "samplers", STATES: "states"}
MAX_GAP = 16  # requests for models in a row that may have been refused, in one session
_PATH = re.compile(
    rf"tinker://({JOB_ID.pattern})/({'|'.join(FOLDERS)})/([A-Za-z0-9][A-Za-z0-9_.-]{{0,99}})"
)
_ATTENTION_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP_LAYERS = ("gate_proj", "up_proj", "down_proj")
Json = dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """Weights that a client has saved."""

    job_id: str
    kind: str
    name: str

    @classmethod
    def parse(cls, path: str, param: str = "path") -> Checkpoint:
        if match := _PATH.fullmatch(path):
            return cls(*match.groups())
        raise wrong(param, f"must be 'tinker://JOB/{'|'.join(FOLDERS)}/NAME'")

    @property
    def path(self) -> str:
        return f"tinker://{self.job_id}/{self.kind}/{self.name}"

    def folder(self, jobs: JobService) -> Path:
        return jobs.service.deployment.job_dir(self.job_id) / FOLDERS[self.kind] / self.name


def operation_log(jobs: JobService, job_id: str) -> OperationLog:
    return OperationLog(jobs.service.deployment.job_dir(job_id))


# ---------------------------------------------------------------------- models


def build_job_id(session_id: str, number: int | str) -> str:
    return Repeat(f"{session_id}:{number}", RECIPE_NAME).job_id


def parse_job_id(model_id: str) -> str:
    """Return the job of a model; the SDK itself makes the id of a model that it loads."""
    session_id, separator, number = model_id.rpartition(":train:")
    return build_job_id(session_id, number) if separator else model_id


def list_job_ids(jobs: JobService, session_id: str) -> list[str]:
    """Return the jobs of a session, in order."""
    job_ids: list[str] = []
    number = 0
    gap = 0
    while gap < MAX_GAP:
        job_id = build_job_id(session_id, number)
        number += 1
        gap += 1
        if operation_log(jobs, job_id).folder.is_dir():
            job_ids.append(job_id)
            gap = 0
    return job_ids


async def create_model(jobs: JobService, body: bodies.CreateModel, owner: str) -> Json:
    """Queue the job of a new model, and return the future of its first operation."""
    if body.path:
        recipe, request, first = await _load_state(jobs, body)
    else:
        recipe, request = await asyncio.to_thread(_load_base, jobs, body)
        first = Operation(number=0, do="create")
    labels: Json = {name: str(value)[:512] for name, value in body.user_metadata.items()}
    request |= {
        "session_id": body.session_id,
        "model_seq_id": body.model_seq_id,
        "path": body.path,
        "owner": owner,
        "metadata": {**labels, "session": body.session_id},
    }
    job_id = build_job_id(body.session_id, body.model_seq_id)
    record = JobRecord(id=job_id, created_at=time.time(), recipe=recipe, request=request)
    record = await jobs.open(record)
    await asyncio.to_thread(operation_log(jobs, record.id).add, first)
    return build_future(record.id, first)


def _load_base(jobs: JobService, body: bodies.CreateModel) -> tuple[Recipe, Json]:
    deployment = jobs.service.deployment
    path = resolve_model(body.base_model, deployment, "base_model")
    recipe = _build_recipe(path, body.lora_config, jobs.defaults)
    request = {
        "model": find_listed_name(body.base_model, deployment),
        "base_model": body.base_model,
        "lora_config": body.lora_config.model_dump(),
    }
    return recipe, request


async def _load_state(jobs: JobService, body: bodies.CreateModel) -> tuple[Recipe, Json, Operation]:
    source = await asyncio.to_thread(find_state, jobs, body.path)
    record = await get_client_job(jobs, Checkpoint.parse(body.path).job_id, "path")
    request = {name: record.request[name] for name in ("model", "base_model", "lora_config")}
    if body.base_model not in ("", request["model"], request["base_model"]):
        raise wrong("base_model", f"the state is of {request['base_model']!r}; leave it out")
    optimizer = body.optimizer
    first = Operation(number=0, do="load_state", source=source, with_optimizer=optimizer)
    return record.recipe, request, first


def find_state(jobs: JobService, path: str, *, own_model: str = "") -> str:
    """Return the folder of a state; 400 unless it exists, or its own job may still save it."""
    checkpoint = Checkpoint.parse(path)
    if checkpoint.kind != STATES:
        raise wrong("path", f"{path!r} is a sampler's; load what save_state has saved")
    folder = checkpoint.folder(jobs)
    if checkpoint.job_id != parse_job_id(own_model) and not folder.is_dir():
        raise wrong("path", f"there is no state {path!r}")
    return str(folder)


def describe_model(path: str, defaults: Mapping[str, Any]) -> Model:
    """Describe the model of a folder, with at most the deployment's context."""
    max_context = defaults.get("model", {}).get("max_context", DEFAULT_MAX_CONTEXT)
    return default_model(Path(path), max_context)


def _build_lora(config: bodies.LoraConfig) -> Lora | None:
    if not config.rank:
        return None
    layers: tuple[str, ...] = ()
    if not config.train_mlp:
        layers = _ATTENTION_LAYERS
    elif not config.train_attn:
        layers = _MLP_LAYERS
    return Lora(rank=config.rank, targets=layers)


def _build_recipe(path: str, lora: bodies.LoraConfig, defaults: Mapping[str, Any]) -> Recipe:
    """Build a recipe with the model's own context and type, unless the deployment sets them."""
    described = describe_model(path, defaults)
    # Training has no loss scaling, which float16 would need.
    dtype = "bfloat16" if described.dtype == "float16" else described.dtype
    tables = {
        "name": RECIPE_NAME,
        "client": {},
        "model": {
            "dtype": dtype,
            "prompt_template": described.prompt_template,
            **defaults.get("model", {}),
            "path": path,
            "lora": _build_lora(lora),
            "max_context": described.max_context,
        },
        "training": {**defaults.get("training", {}), "steps": SESSION_STEPS, "seed": lora.seed},
        "optimizer": defaults.get("optimizer", {}),
    }
    try:
        return parse_recipe(tables)
    except RecipeError as error:
        raise from_lines([*str(error).splitlines()], code="invalid_recipe") from error


# ---------------------------------------------------------------------- operations


async def get_client_job(jobs: JobService, model_id: str, param: str = "model_id") -> JobRecord:
    """Return the job of a client's model; 400 if there is none."""
    try:
        record = await jobs.get(parse_job_id(model_id))
    except Problem as problem:
        if problem.status_code != 404:
            raise
        raise wrong(param, f"there is no model {model_id!r}") from problem
    if record.recipe.client is None:
        raise wrong(param, f"{model_id} is no client's; create_model makes one that is")
    return record


async def enqueue_operation(
    jobs: JobService, model_id: str, number: int, build: Callable[[JobRecord], Operation]
) -> Json:
    """Add an operation to the log, and return its future.

    A refused operation also has its number, so that later operations do not wait for it.
    """
    record = await get_client_job(jobs, model_id)
    log = operation_log(jobs, record.id)
    if record.state.is_final:
        raise wrong("model_id", describe_end(record))
    await resume(jobs, record)
    try:
        operation = await asyncio.to_thread(build, record)
    except Problem as problem:
        refused = Operation(number=number, do="refuse", why=problem.detail)
        await asyncio.to_thread(_add, log, refused)
        raise
    if earlier := await asyncio.to_thread(_add, log, operation):
        reason = f"request {number} of the session was {earlier.do}; give each its own"
        raise wrong("seq_id", earlier.why or reason)
    return build_future(record.id, operation)


def _add(log: OperationLog, operation: Operation) -> Operation | None:
    """Add an operation; returns another one that has its number already."""
    log.touch()
    earlier = None if log.add(operation) else log.operation(operation.number)
    return earlier if earlier is not None and earlier.do != operation.do else None


def build_future(job_id: str, operation: Operation) -> Json:
    """Return the future of an operation, with all that its result needs when the log forgets it."""
    return {"request_id": f"{job_id}:{operation.number}:{operation.do}", "model_id": job_id}


def describe_end(record: JobRecord) -> str:
    reason = f": {record.error}" if record.error else ""
    return f"job {record.id} is {job_status(record)}{reason}"


async def resume(jobs: JobService, record: JobRecord) -> None:
    """Resume a job that is paused because its client was silent."""
    is_paused = record.state is JobState.PAUSED and record.requested is Requested.PAUSE
    if is_paused and record.error and record.error.kind is ErrorKind.SILENT_CLIENT:
        await await_exchange(jobs.exchange.request_state(record.id, Requested.RUN))


async def enqueue_end(jobs: JobService, record: JobRecord) -> Operation:
    """Let a job end behind the operations in its log."""
    log = operation_log(jobs, record.id)

    def add_end() -> Operation:
        operation = log.operation(log.last)
        while operation is None or operation.do != "end":
            end = Operation(number=log.last + 1, do="end")
            operation = end if log.add(end) else None
        return operation

    operation = await asyncio.to_thread(add_end)
    await resume(jobs, record)
    return operation


def model_bounds(record: JobRecord) -> Bounds:
    model = record.recipe.model
    return Bounds(model.max_context, _vocabulary_size(model.path) or 2**31)


@lru_cache(maxsize=256)
def _vocabulary_size(path: str) -> int | None:
    return read_facts(path).vocabulary
