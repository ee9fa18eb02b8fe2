"""From the name of a model to the weights that serve it."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path

from protocol.calls import Served
from protocol.messages import JobRecord
from protocol.model_folder import is_adapter
from protocol.operations import State
from protocol.recipe import Model

from services.chassis.deployment import Deployment
from services.gateway.core.jobs.service import JobService
from services.gateway.core.jobs.submission import DTYPES
from services.gateway.core.models import folders
from services.gateway.core.models.checkpoints import Checkpoint, parse_checkpoint_id
from services.gateway.core.models.folders import JOB_ID
from services.gateway.errors import NO_RETRY, Problem, await_exchange, not_found, wrong

DEFAULT_MAX_CONTEXT = 8192  # tokens, for a model without a recipe
_SAMPLER_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_JOB_AT_STEP = re.compile(rf"({JOB_ID.pattern})@(\d{{1,9}})")


async def resolve_model(name: str, jobs: JobService) -> Served:
    """Find the weights of a model: the training job's newest, or a folder's.

    Raises:
        Problem: 404 if there is no such model, 503 while a job trains other weights.
    """
    deployment = jobs.service.deployment
    if match := _JOB_AT_STEP.fullmatch(name):
        name = f"ftckpt-{match[1]}-{int(match[2])}"
    name = await asyncio.to_thread(folders.find_listed_name, name, deployment)
    active = await await_exchange(jobs.exchange.active())
    if active is not None and active.recipe.client is not None:
        active = None  # a client's session does not reserve the engine, so any model may be served
    if active is not None and name == active.job_id:
        return Served(name=name, job_id=name, model=active.recipe.model)
    checkpoint = parse_checkpoint_id(name, deployment.jobs_dir)
    record = await _find_record(checkpoint.job_id if checkpoint else name, jobs)
    served = await asyncio.to_thread(_resolve_folder, name, record, checkpoint, deployment)
    if active is not None:
        job_id = active.job_id
        raise Problem(
            503,
            f"job {job_id} trains, and the engines have its weights: ask {job_id}, ask {name} "
            f"after it, or serve {name} elsewhere; `weir serve` shows how",
            param="model",
            code="engine_busy",
            # It may take hours.
            headers=NO_RETRY,
        )
    return served


async def resolve_active_job(job_id: str, jobs: JobService) -> Served:
    """Find the newest weights of a job, for its own episodes; 503 unless it trains."""
    active = await await_exchange(jobs.exchange.active())
    if active is None or active.job_id != job_id:
        message = f"job {job_id} does not train now"
        raise Problem(503, message, code="job_not_active", headers={"Retry-After": "2"})
    return Served(name=job_id, job_id=job_id, model=active.recipe.model)


async def resolve_sampler(job_id: str, name: str, jobs: JobService) -> Served:
    """Find the weights that a client's session has saved for sampling, and mark them as used.

    Raises:
        Problem: 404 if the session has no such sampler.
    """
    record = await jobs.get(job_id)
    folder = jobs.service.deployment.job_dir(job_id) / "samplers" / name
    try:
        if not _SAMPLER_NAME.fullmatch(name):
            raise FileNotFoundError
        state = await asyncio.to_thread(State.read, folder)
    except FileNotFoundError as error:
        raise not_found("sampler", f"{job_id}@{name}") from error
    # The samplers that are used least are removed first. The disk may be full.
    with suppress(OSError):
        await asyncio.to_thread(os.utime, folder)
    return _serve(f"{job_id}@{name}", record, folder, state.version, record.attempt)


async def _find_record(job_id: str, jobs: JobService) -> JobRecord | None:
    """Find the record of a job; None if it is forgotten, or the name is no job's."""
    if not JOB_ID.fullmatch(job_id) or await jobs.is_forgotten(job_id):
        return None
    return await jobs.get(job_id)


def _resolve_folder(
    name: str, record: JobRecord | None, checkpoint: Checkpoint | None, deployment: Deployment
) -> Served:
    folder = folders.find_folder(name, deployment)
    if record is None or folder is None or not is_adapter(folder):
        folder = _find_whole_model(name, deployment)
    if record is None:
        return Served(name=name, folder=str(folder), model=default_model(folder))
    if checkpoint is not None:
        return _serve(name, record, folder, checkpoint.step, 0)
    return _serve(name, record, folder, record.step, record.attempt)


def _serve(name: str, record: JobRecord, folder: Path, step: int, attempt: int) -> Served:
    model = record.recipe.model
    base = model.path
    if not is_adapter(folder):
        model = model.model_copy(update={"lora": None})
        base = ""
    return Served(
        name=name,
        job_id=record.id,
        folder=str(folder),
        base=base,
        version=step,
        attempt=attempt,
        model=model,
    )


def _find_whole_model(name: str, deployment: Deployment) -> Path:
    try:
        folder = Path(folders.resolve_model(name, deployment))
    except Problem as problem:
        raise Problem(404, problem.detail, param="model", code="model_not_found") from problem
    if not folder.is_absolute():
        reason = "a model on a hub can only be trained; put its folder below WEIR_MODEL_ROOTS"
        raise wrong("model", reason, code="invalid_model")
    return folder


def default_model(folder: Path, max_context: int = DEFAULT_MAX_CONTEXT) -> Model:
    """Describe a model that no job has made, as an engine starts on it."""
    facts = folders.read_facts(str(folder))
    return Model(
        path=str(folder),
        dtype=facts.dtype if facts.dtype in DTYPES else "bfloat16",
        max_context=min(facts.context or max_context, max_context),
        prompt_template="{prompt}" if facts.has_chat_template is False else None,
    )
