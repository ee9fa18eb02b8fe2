"""Which weights answer to the name of a model."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import get_args

from protocol.calls import Served
from protocol.messages import JobRecord
from protocol.recipe import Model

from services.chassis.deployment import Deployment
from services.gateway.errors import Problem, in_time, wrong
from services.gateway.jobs.service import JobService
from services.gateway.models.checkpoints import Checkpoint, checkpoint_of
from services.gateway.models.folders import JOB_ID, facts_of, find_folder, model_id, resolve_model

_MOST_CONTEXT = 8192  # of a model that no recipe describes
_DTYPES = get_args(Model.model_fields["dtype"].annotation)
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
        return Served(name=name, folder=str(folder), model=_as_it_says(folder))
    model = record.recipe.model
    return Served(
        name=name,
        job_id=record.id,
        folder=str(folder),
        base=model.path if is_adapter else "",
        version=checkpoint.step if checkpoint else record.step,
        attempt=0 if checkpoint else record.attempt,
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


def _as_it_says(folder: Path) -> Model:
    """How to start an engine on a model that no job has made."""
    facts = facts_of(str(folder))
    return Model(
        path=str(folder),
        dtype=facts.dtype if facts.dtype in _DTYPES else "bfloat16",
        max_context=min(facts.context or _MOST_CONTEXT, _MOST_CONTEXT),
        prompt_template="{prompt}" if facts.has_chat_template is False else None,
    )


def _busy(job_id: str) -> Problem:
    why = f"job {job_id} trains: its newest weights answer as {job_id}, others once it has ended"
    headers = {"Retry-After": "10"}
    return Problem(503, why, param="model", code="engine_busy", headers=headers)


async def sampler_of(name: str, jobs: JobService) -> Served:
    """The weights that a client has saved, ``JOB@NAME``, or a base model, ``base:MODEL``."""
    deployment = jobs.service.deployment
    job_id, at, saved = name.partition("@")
    if not at:
        model = await asyncio.to_thread(model_id, name.removeprefix("base:"), deployment)
        return await asyncio.to_thread(_in_folder, model, None, None, deployment)
    record = await jobs.get(job_id)
    folder = deployment.job_dir(job_id) / "samplers" / saved
    if "/" in saved or not await asyncio.to_thread(folder.is_dir):
        raise Problem(404, f"there is no sampler {name!r}", param="model", code="model_not_found")
    model = record.recipe.model
    base = model.path if model.lora else ""
    return Served(name=name, job_id=job_id, folder=str(folder), base=base, model=model)
