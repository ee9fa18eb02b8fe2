"""Training runs, checkpoints and sessions, as the SDK's REST client and command list them.

A run is a job of a client, a checkpoint a folder that it has saved. Nothing else is stored.
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
from services.gateway.api.tinker.training_runs import (
    FOLDERS,
    RECIPE_NAME,
    SAMPLERS,
    STATES,
    Checkpoint,
    get_client_job,
)
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.checkpoints import list_folders
from services.gateway.core.models.folders import move_aside, remove
from services.gateway.errors import await_exchange, not_found

MAX_RUNS = 1000  # the newest are listed
_TYPES = {SAMPLERS: "sampler", STATES: "training"}
Json = dict[str, Any]


async def list_runs(jobs: JobService, session_id: str = "") -> list[JobRecord]:
    """Return the jobs of clients, or of one session, newest first."""
    labels = {"session": session_id} if session_id else {}
    job_filter = JobFilter.from_statuses((), name=RECIPE_NAME, metadata=labels)
    records = await await_exchange(jobs.exchange.find_jobs(None, MAX_RUNS, job_filter))
    return [job for job in records or () if isinstance(job, JobRecord) and job.recipe.client]


async def run_object(jobs: JobService, record: JobRecord) -> Json:
    checkpoints = await asyncio.to_thread(list_checkpoints, jobs, [record])
    newest = {checkpoint["checkpoint_type"]: checkpoint for checkpoint in reversed(checkpoints)}
    return {
        "training_run_id": record.id,
        **_model_fields(record),
        "model_owner": record.request["owner"],
        "corrupted": record.state is JobState.FAILED,
        "last_request_time": await asyncio.to_thread(_last_request, jobs, record),
        "last_checkpoint": newest.get("training"),
        "last_sampler_checkpoint": newest.get("sampler"),
        "user_metadata": record.request["metadata"],
    }


def weights_object(record: JobRecord) -> Json:
    """Describe the model of saved weights; its head is never adapted."""
    config: Any = record.request["lora_config"] or {}
    return {
        **_model_fields(record),
        "train_unembed": record.recipe.model.lora is None,
        "train_mlp": config.get("train_mlp", True),
        "train_attn": config.get("train_attn", True),
    }


def _model_fields(record: JobRecord) -> Json:
    lora = record.recipe.model.lora
    return {
        "base_model": record.request["base_model"],
        "is_lora": lora is not None,
        "lora_rank": lora and lora.rank,
    }


def list_checkpoints(jobs: JobService, records: Sequence[JobRecord]) -> list[Json]:
    """Return the checkpoints of runs that have a name of the client, newest first."""
    checkpoints: list[Json] = []
    for record in records:
        for kind, name in FOLDERS.items():
            parent = jobs.service.deployment.job_dir(record.id) / name
            for folder, saved_at in list_folders(parent):
                if not folder.name.startswith(EPHEMERAL):
                    checkpoint = Checkpoint(record.id, kind, folder.name)
                    checkpoints.append(_checkpoint_object(checkpoint, folder, saved_at))
    return sorted(checkpoints, key=lambda checkpoint: checkpoint["time"], reverse=True)


def _checkpoint_object(checkpoint: Checkpoint, folder: Path, saved_at: float) -> Json:
    sizes = (path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "checkpoint_id": f"{checkpoint.kind}/{checkpoint.name}",
        "checkpoint_type": _TYPES[checkpoint.kind],
        "time": _format_time(saved_at),
        "tinker_path": checkpoint.path,
        "size_bytes": sum(sizes),
    }


async def delete_checkpoint(jobs: JobService, job_id: str, checkpoint_id: str) -> None:
    """Delete a checkpoint of a run; 404 if there is none."""
    record = await get_client_job(jobs, job_id, "id")
    checkpoint = Checkpoint.parse(f"tinker://{record.id}/{checkpoint_id}", "id")
    try:
        hidden = await asyncio.to_thread(move_aside, checkpoint.folder(jobs))
    except FileNotFoundError as error:
        raise not_found("checkpoint", checkpoint_id) from error
    await asyncio.to_thread(remove, hidden)


def paginate(rows: Sequence[Any], limit: int, offset: int) -> tuple[Sequence[Any], Json]:
    """Return a page of rows, and the cursor that describes it."""
    cursor = {"limit": limit, "offset": offset, "total_count": len(rows)}
    return rows[offset : offset + limit], cursor


def _last_request(jobs: JobService, record: JobRecord) -> str:
    alive = jobs.service.deployment.job_dir(record.id) / "operations" / "alive"
    return _format_time(alive.stat().st_mtime if alive.is_file() else record.created_at)


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
