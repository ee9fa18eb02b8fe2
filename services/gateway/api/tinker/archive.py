"""Runs, checkpoints and sessions, as the SDK's REST client and its command list them.

A run is a job of a client, a checkpoint a folder that it has saved: nothing else is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol.messages import JobRecord, JobState

from services.gateway.api.openai.job_object import JobFilter
from services.gateway.api.tinker.bodies import EPHEMERAL
from services.gateway.api.tinker.clients import (
    FOLDERS,
    NAME,
    SAMPLERS,
    STATES,
    Kept,
    client_job,
    kept_at,
)
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.folders import remove_folder
from services.gateway.errors import in_time, not_found

_MOST = 1000  # runs that are looked at, the newest
_TYPES = {SAMPLERS: "sampler", STATES: "training"}
Json = dict[str, Any]


async def runs(jobs: JobService, session_id: str = "") -> list[JobRecord]:
    """The jobs of clients, or of one session, newest first."""
    labels = {"session": session_id} if session_id else {}
    sought = JobFilter.of((), name=NAME, metadata=labels)
    found = await in_time(jobs.exchange.find_jobs(None, _MOST, sought))
    return [job for job in found or () if isinstance(job, JobRecord) and job.recipe.client]


async def run_object(jobs: JobService, record: JobRecord) -> Json:
    kept = await asyncio.to_thread(checkpoints, jobs, record)
    lora = record.recipe.model.lora
    of_type = {each["checkpoint_type"]: each for each in reversed(kept)}
    return {
        "training_run_id": record.id,
        "base_model": record.request["base_model"],
        "model_owner": record.request["owner"],
        "is_lora": lora is not None,
        "lora_rank": lora and lora.rank,
        "corrupted": record.state is JobState.FAILED,
        "last_request_time": await asyncio.to_thread(_last_request, jobs, record),
        "last_checkpoint": of_type.get("training"),
        "last_sampler_checkpoint": of_type.get("sampler"),
        "user_metadata": record.request["metadata"],
    }


def checkpoints(jobs: JobService, record: JobRecord) -> list[Json]:
    """What a run has saved under a name, newest first."""
    found = []
    for kind, name in FOLDERS.items():
        folder = jobs.service.deployment.job_dir(record.id) / name
        for path in folder.iterdir() if folder.is_dir() else ():
            if not path.name.startswith((".", EPHEMERAL)):
                found.append(_checkpoint_object(Kept(record.id, kind, path.name), path))
    return sorted(found, key=lambda each: each["time"], reverse=True)


def all_checkpoints(jobs: JobService, records: Sequence[JobRecord]) -> list[Json]:
    found = [each for record in records for each in checkpoints(jobs, record)]
    return sorted(found, key=lambda each: each["time"], reverse=True)


def _checkpoint_object(kept: Kept, folder: Path) -> Json:
    sizes = (path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "checkpoint_id": f"{kept.kind}/{kept.name}",
        "checkpoint_type": _TYPES[kept.kind],
        "time": _time(folder.stat().st_mtime),
        "tinker_path": kept.path,
        "size_bytes": sum(sizes),
    }


async def delete_checkpoint(jobs: JobService, job_id: str, checkpoint_id: str) -> None:
    """Delete what a run has saved; 404 if it has not."""
    record = await client_job(jobs, job_id, "id")
    kept = kept_at(f"tinker://{record.id}/{checkpoint_id}", "id")
    try:
        await asyncio.to_thread(remove_folder, kept.folder(jobs))
    except FileNotFoundError as error:
        raise not_found("checkpoint", checkpoint_id) from error


def page(found: Sequence[Any], limit: int, offset: int) -> tuple[Sequence[Any], Json]:
    """A part of a list, and where it lies in it."""
    return found[offset : offset + limit], {
        "limit": limit,
        "offset": offset,
        "total_count": len(found),
    }


def weights_object(record: JobRecord) -> Json:
    """What is adapted of a model; the head never is."""
    given: Any = record.request["lora_config"] or {}
    lora = record.recipe.model.lora
    return {
        "base_model": record.request["base_model"],
        "is_lora": lora is not None,
        "lora_rank": lora and lora.rank,
        "train_unembed": lora is None,
        "train_mlp": given.get("train_mlp", True),
        "train_attn": given.get("train_attn", True),
    }


def _last_request(jobs: JobService, record: JobRecord) -> str:
    alive = jobs.service.deployment.job_dir(record.id) / "operations" / "alive"
    return _time(alive.stat().st_mtime if alive.is_file() else record.created_at)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
