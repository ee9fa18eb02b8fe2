"""The jobs of clients: each model of a session is a job, whose id follows from its place there.

So nothing is kept here: a retry finds the job of the first try, a heartbeat those of its session.
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

from protocol.messages import JobRecord, JobState, Requested
from protocol.operations import SILENT, Operation, OperationLog
from protocol.recipe import MOST_STEPS, Lora, Model, Recipe, RecipeError, parse_recipe

from services.gateway.api.openai.job_object import status_of
from services.gateway.api.tinker import bodies
from services.gateway.api.tinker.wire import Bounds
from services.gateway.core.calls.model_resolution import DEFAULT_MAX_CONTEXT, default_model
from services.gateway.core.jobs.service import JobService, Repeat
from services.gateway.core.models.folders import (
    JOB_ID,
    facts_of,
    model_id,
    resolve_model,
)
from services.gateway.errors import Problem, from_lines, in_time, wrong

NAME = "tinker"  # of every recipe
SAMPLERS, STATES = "sampler_weights", "weights"
FOLDERS = {SAMPLERS: "samplers", STATES: "states"}
_PATH = re.compile(
    rf"tinker://({JOB_ID.pattern})/({'|'.join(FOLDERS)})/([A-Za-z0-9][A-Za-z0-9_.-]{{0,99}})"
)
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_GAP = 16  # places in a session without a job, since their requests were refused
Json = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """What a client has saved, by the path that it is told."""

    job_id: str
    kind: str
    name: str

    @property
    def path(self) -> str:
        return f"tinker://{self.job_id}/{self.kind}/{self.name}"

    def folder(self, jobs: JobService) -> Path:
        return jobs.service.deployment.job_dir(self.job_id) / FOLDERS[self.kind] / self.name


def kept_at(path: str, param: str = "path") -> Kept:
    """What a path names; 400 if it cannot be one."""
    if (named := _PATH.fullmatch(path)) is None:
        raise wrong(param, f"must be 'tinker://JOB/{'|'.join(FOLDERS)}/NAME'")
    return Kept(*named.groups())


def log_of(jobs: JobService, job_id: str) -> OperationLog:
    return OperationLog(jobs.service.deployment.job_dir(job_id))


# ---------------------------------------------------------------------- models


def job_of(session_id: str, place: int | str) -> str:
    return Repeat(f"{session_id}:{place}", NAME).job_id


def job_named(model_id: str) -> str:
    """The job of a model; the SDK itself names one that it makes by loading, by its place."""
    session_id, made, place = model_id.rpartition(":train:")
    return job_of(session_id, place) if made else model_id


def jobs_of(jobs: JobService, session_id: str) -> list[str]:
    """The jobs of a session, in order."""
    found, place, missed = list[str](), 0, 0
    while missed < _GAP:
        job_id = job_of(session_id, place)
        is_there = log_of(jobs, job_id).folder.is_dir()
        found += [job_id] if is_there else []
        place, missed = place + 1, 0 if is_there else missed + 1
    return found


async def create(jobs: JobService, body: bodies.NewModel, owner: str) -> Json:
    """Queue the job of a new model; returns the future that its client asks for."""
    if body.path:
        recipe, told, first = await _by_loading(jobs, body)
    else:
        recipe, told = await asyncio.to_thread(_of_base, jobs, body)
        first = Operation(number=0, do="create")
    labels: Json = {name: str(value)[:512] for name, value in body.user_metadata.items()}
    place = {"session_id": body.session_id, "model_seq_id": body.model_seq_id}
    labels["session"] = body.session_id
    record = JobRecord(
        id=job_of(body.session_id, body.model_seq_id),
        created_at=time.time(),
        recipe=recipe,
        request={**told, **place, "path": body.path, "owner": owner, "metadata": labels},
    )
    record = await jobs.open(record)
    await asyncio.to_thread(log_of(jobs, record.id).add, first)
    return future(record.id, first)


def _of_base(jobs: JobService, body: bodies.NewModel) -> tuple[Recipe, Json]:
    deployment, lora = jobs.service.deployment, body.lora_config
    path = resolve_model(body.base_model, deployment, "base_model")
    adapter = _lora(lora) if lora.rank else None
    recipe = _recipe(path, adapter, lora.seed, jobs.defaults)
    model = model_id(body.base_model, deployment)
    told = {"model": model, "base_model": body.base_model, "lora_config": lora.model_dump()}
    return recipe, told


async def _by_loading(jobs: JobService, body: bodies.NewModel) -> tuple[Recipe, Json, Operation]:
    source = await asyncio.to_thread(state_at, jobs, body.path)
    record = await client_job(jobs, kept_at(body.path).job_id, "path")
    told = {name: record.request[name] for name in ("model", "base_model", "lora_config")}
    if body.base_model not in ("", told["model"], told["base_model"]):
        raise wrong("base_model", f"the state is of {told['base_model']!r}; leave it out")
    optimizer = body.optimizer
    first = Operation(number=0, do="load_state", source=source, with_optimizer=optimizer)
    return record.recipe, told, first


def state_at(jobs: JobService, path: str, *, of_job: str = "") -> str:
    """The folder of a state; 400 unless it is there, or may be once its own job has saved it."""
    source = kept_at(path)
    if source.kind != STATES:
        raise wrong("path", f"{path!r} is a sampler's; load what save_state has saved")
    folder = source.folder(jobs)
    if source.job_id != job_named(of_job) and not folder.is_dir():
        raise wrong("path", f"there is no state {path!r}")
    return str(folder)


def _lora(given: bodies.Lora) -> Lora:
    parts = (_ATTENTION if given.train_attn else ()) + (_MLP if given.train_mlp else ())
    is_whole = given.train_attn and given.train_mlp
    return Lora(rank=given.rank, targets=() if is_whole else parts)


def model_at(path: str, defaults: Mapping[str, Any]) -> Model:
    """What a model's folder says of it, with no longer a context than the deployment's tables."""
    return default_model(
        Path(path), defaults.get("model", {}).get("max_context", DEFAULT_MAX_CONTEXT)
    )


def _recipe(path: str, lora: Lora | None, seed: int, defaults: Mapping[str, Any]) -> Recipe:
    """The model's own context and type, where the deployment's tables say no others."""
    said = model_at(path, defaults)
    model = {
        "dtype": "bfloat16"
        if said.dtype == "float16"
        else said.dtype,  # trained without loss scaling
        "prompt_template": said.prompt_template,
        **defaults.get("model", {}),
    }
    own = {"path": path, "lora": lora, "max_context": said.max_context}
    tables = {
        "name": NAME,
        "client": {},
        "model": model | own,
        "training": {**defaults.get("training", {}), "steps": MOST_STEPS, "seed": seed},
        "optimizer": defaults.get("optimizer", {}),
    }
    try:
        return parse_recipe(tables)
    except RecipeError as error:
        raise from_lines([*str(error).splitlines()], code="invalid_recipe") from error


# ---------------------------------------------------------------------- operations


async def client_job(jobs: JobService, job_id: str, param: str = "model_id") -> JobRecord:
    """The job of a client's model; 400 if there is none."""
    try:
        record = await jobs.get(job_named(job_id))
    except Problem as problem:
        if problem.status_code != 404:
            raise
        raise wrong(param, f"there is no model {job_id!r}") from problem
    if record.recipe.client is None:
        raise wrong(param, f"{job_id} is no client's; create_model makes one that is")
    return record


async def take(
    jobs: JobService, job_id: str, number: int, make: Callable[[JobRecord], Operation]
) -> Json:
    """Put an operation into the log; returns the future that its client asks for.

    What is refused has its number, too, so that later operations do not wait for it.
    """
    record = await client_job(jobs, job_id)
    job_id, log = record.id, log_of(jobs, record.id)
    if record.state.is_final:
        why = f": {record.error}" if record.error else ""
        raise wrong("model_id", f"job {job_id} is {status_of(record)}{why}")
    await wake(jobs, record)
    try:
        operation = await asyncio.to_thread(make, record)
    except Problem as problem:
        refused = Operation(number=number, do="refuse", why=problem.detail)
        await asyncio.to_thread(_add, log, refused)
        raise
    if kept := await asyncio.to_thread(_add, log, operation):
        why = kept.why or f"request {number} of the session was {kept.do}; give each its own"
        raise wrong("seq_id", why)
    return future(job_id, operation)


def _add(log: OperationLog, operation: Operation) -> Operation | None:
    """Keep an operation; returns that which has its number, if it is another one."""
    log.touch()
    kept = None if log.add(operation) else log.operation(operation.number)
    return kept if kept is not None and kept.do != operation.do else None


def future(job_id: str, operation: Operation) -> Json:
    """Its id says what the answer is to, of which the log may know no more."""
    return {"request_id": f"{job_id}:{operation.number}:{operation.do}", "model_id": job_id}


async def wake(jobs: JobService, record: JobRecord) -> None:
    """Have a job go on that waits for its client; one that a person has paused stays so."""
    is_silent = record.state is JobState.PAUSED and (record.error or "").startswith(SILENT)
    if is_silent and record.requested is Requested.PAUSE:
        await in_time(jobs.exchange.request_state(record.id, Requested.RUN))


async def end(jobs: JobService, record: JobRecord) -> Operation:
    """Have a job end when it has done all that it was asked."""
    log = log_of(jobs, record.id)

    def add_last() -> Operation:
        last = log.operation(log.last)
        while last is None or last.do != "end":
            added = Operation(number=log.last + 1, do="end")
            last = added if log.add(added) else None
        return last

    last = await asyncio.to_thread(add_last)
    await wake(jobs, record)
    return last


def bounds_of(record: JobRecord) -> Bounds:
    model = record.recipe.model
    return Bounds(model.max_context, _vocabulary(model.path) or 2**31)


@lru_cache(maxsize=256)
def _vocabulary(path: str) -> int | None:
    return facts_of(path).vocabulary
