"""The routes of a job's samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from services.gateway.jobs.service import JobService
from services.gateway.samples.reading import SampleQuery, Samples

samples = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}/samples", tags=["samples"])


async def _job_dir(job_id: str, request: Request) -> Path:
    jobs: JobService = request.app.state.jobs
    return jobs.service.deployment.job_dir((await jobs.find(job_id)).id)


def _samples(request: Request) -> Samples:
    return request.app.state.samples


JobDir = Annotated[Path, Depends(_job_dir)]
Stores = Annotated[Samples, Depends(_samples)]


@samples.get("")
async def list_samples(
    query: Annotated[SampleQuery, Query()], job_dir: JobDir, stores: Stores
) -> Response:
    """A job's responses and what became of them; ``after=last_id`` goes on."""
    return Response(await stores.page(job_dir, query), media_type="application/json")


@samples.get("/{key}")
async def get_sample_group(key: str, job_dir: JobDir, stores: Stores) -> Response:
    """One group, with the text and the numbers of every token."""
    return Response(await stores.group(job_dir, key), media_type="application/json")
