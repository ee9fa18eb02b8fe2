"""A job's events and checkpoints, as pages."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from protocol.messages import JobEvent

from services.gateway.errors import Problem, in_time
from services.gateway.jobs.desk import JobDesk

_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")  # of two 64-bit numbers
_CHECKPOINT = re.compile(r"step-(\d+)")


def event_object(entry_id: str, event: JobEvent) -> dict[str, Any]:
    """An event in OpenAI's shape; its id is its place in the stream, to go on from."""
    return {
        "id": entry_id,
        "object": "fine_tuning.job.event",
        "created_at": int(event.created_at),
        "level": event.level,
        "message": event.message,
        "type": event.type,
        "data": dict(event.data),
    }


def checked_place(after: str | None, param: str) -> str:
    """The place in the stream to go on after; the beginning if ``after`` is None.

    Raises:
        Problem: 400 if it is not the id of an event.
    """
    if after is not None and not _ENTRY_ID.fullmatch(after):
        message = f"{param}: {after!r} is not the id of an event, such as '1763686000000-0'"
        raise Problem(400, message, param=param)
    return after or "0"


async def events_page(
    desk: JobDesk, job_id: str, after: str, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Up to ``limit`` events, oldest first, and whether there are more."""
    rows = await in_time(desk.exchange.events(job_id, after=after, count=limit + 1))
    return [event_object(*row) for row in rows[:limit]], len(rows) > limit


async def checkpoints(job_dir: Path, job_id: str) -> list[dict[str, Any]]:
    """The checkpoints that a job has kept, newest first."""
    return await asyncio.to_thread(_checkpoints, job_dir / "checkpoints", job_id)


def _checkpoints(folder: Path, job_id: str) -> list[dict[str, Any]]:
    if not folder.is_dir():
        return []
    names = [match for path in folder.iterdir() if (match := _CHECKPOINT.fullmatch(path.name))]
    numbered = [(int(match[1]), folder / match[0]) for match in names]
    return [_checkpoint_object(job_id, step, path) for step, path in sorted(numbered, reverse=True)]


def _checkpoint_object(job_id: str, step: int, path: Path) -> dict[str, Any]:
    return {
        "id": f"ftckpt-{job_id}-{step}",
        "object": "fine_tuning.job.checkpoint",
        "created_at": int(path.stat().st_mtime),
        "fine_tuned_model_checkpoint": str(path),
        "fine_tuning_job_id": job_id,
        "step_number": step,
        "metrics": {"step": step},
    }
