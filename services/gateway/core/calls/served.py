"""Which weights answer to the name of a model."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import get_args

from protocol.calls import Served
from protocol.messages import JobRecord
from protocol.operations import State
from protocol.recipe import Model

from services.chassis.deployment import Deployment
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.checkpoints import Checkpoint, checkpoint_of
from services.gateway.core.models.folders import (
    JOB_ID,
    facts_of,
    find_folder,
    model_id,
    resolve_model,
)
from services.gateway.errors import Problem, in_time, not_found, wrong

MOST_CONTEXT = 8192  # of a model that no recipe describes
_DTYPES = get_args(Model.model_fields["dtype"].annotation)
_SAMPLER = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_AT_STEP = re.compile(rf"({JOB_ID.pattern})@(\d{{1,9}})")


async def weights_of(name: str, jobs: JobService) -> Served:
    """The newest weights of the job that trains, or those of a folder.

    Raises:
        Problem: 404 if there is no such model, 503 while a job trains other weights.
    """
    deployment = jobs.service.deployment
    name = _AT_STEP.sub(lambda named: f"ftckpt-{named[1]}-{int(named[2])}", name)
    name = await asyncio.to_thread(model_id, name, deployment)
    active = await in_time(jobs.exchange.active())
    if active is not None and active.recipe.client is not None:
        active = None  # rollouts answer beside a client's session as at rest
    if active is not None and name == active.job_id:
        return Served(name=name, job_id=name, model=active.recipe.model)
    checkpoint = checkpoint_of(name, deployment.jobs_dir)
    record = await _made_by(checkpoint.job_id if checkpoint else name, jobs)
    served = await asyncio.to_thread(_in_folder, name, record, checkpoint, deployment)
    if active is not None:
        raise _busy(active.job_id)
    return served


async def newest_of(job_id: str, jobs: JobService) -> Served:
    """The newest weights of a job, for its own episodes; 503 unless it trains."""
    active = await in_time(jobs.exchange.active())
    if active is None or active.job_id != job_id:
        message, headers = f"job {job_id} does not train now", {"Retry-After": "2"}
        raise Problem(503, message, code="job_not_active", headers=headers)
    return Served(name=job_id, job_id=job_id, model=active.recipe.model)


async def sampler_of(job_id: str, name: str, jobs: JobService) -> Served:
    """The weights that a client's session has saved for sampling; using them keeps them.

    Raises:
        Problem: 404 if there are none of this name.
    """
    record, job_dir = await jobs.get(job_id), jobs.service.deployment.job_dir(job_id)
    folder = job_dir / "samplers" / name
    try:
        if not _SAMPLER.fullmatch(name):
            raise FileNotFoundError
        version = (await asyncio.to_thread(State.of, folder)).version
    except FileNotFoundError as error:
        raise not_found("sampler", f"{job_id}@{name}") from error
    with suppress(OSError):  # of a disk that takes nothing
        await asyncio.to_thread(os.utime, folder)  # those that are used least are removed first
    return _served(f"{job_id}@{name}", record, folder, version, record.attempt)


async def _made_by(job_id: str, jobs: JobService) -> JobRecord | None:
    """The record of a job, None of one that is forgotten, or if it is no job's id."""
    if not JOB_ID.fullmatch(job_id) or await jobs.is_forgotten(job_id):
        return None
    return await jobs.get(job_id)


def _in_folder(
    name: str, record: JobRecord | None, checkpoint: Checkpoint | None, deployment: Deployment
) -> Served:
    folder = find_folder(name, deployment)
    is_adapter = folder is not None and (folder / "adapter_config.json").is_file()
    if record is None or folder is None or not is_adapter:
        folder = _loadable(name, deployment)
    if record is None:
        return Served(name=name, folder=str(folder), model=as_it_says(folder))
    step, attempt = (checkpoint.step, 0) if checkpoint else (record.step, record.attempt)
    return _served(name, record, folder, step, attempt)


def _served(name: str, record: JobRecord, folder: Path, step: int, attempt: int) -> Served:
    model, is_adapter = record.recipe.model, (folder / "adapter_config.json").is_file()
    return Served(
        name=name,
        job_id=record.id,
        folder=str(folder),
        base=model.path if is_adapter else "",
        version=step,
        attempt=attempt,
        model=model if is_adapter else model.model_copy(update={"lora": None}),
    )


def _loadable(name: str, deployment: Deployment) -> Path:
    try:
        folder = Path(resolve_model(name, deployment))
    except Problem as problem:
        raise Problem(404, problem.detail, param="model", code="model_not_found") from problem
    if not folder.is_absolute():
        why = "a model on a hub trains, but does not answer; put its folder below WEIR_MODEL_ROOTS"
        raise wrong("model", why, code="invalid_model")
    return folder


def as_it_says(folder: Path, most_context: int = MOST_CONTEXT) -> Model:
    """How to start an engine on a model that no job has made."""
    facts = facts_of(str(folder))
    return Model(
        path=str(folder),
        dtype=facts.dtype if facts.dtype in _DTYPES else "bfloat16",
        max_context=min(facts.context or most_context, most_context),
        prompt_template="{prompt}" if facts.has_chat_template is False else None,
    )


def _busy(job_id: str) -> Problem:
    why = f"job {job_id} trains: its newest weights answer as {job_id}, others once it has ended"
    headers = {"Retry-After": "10"}
    return Problem(503, why, param="model", code="engine_busy", headers=headers)
