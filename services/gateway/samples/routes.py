"""The routes of a job's samples."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from services.gateway.jobs import JobDesk
from services.gateway.samples.reading import SampleQuery, Samples

samples = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}/samples", tags=["samples"])


def _desk(request: Request) -> JobDesk:
    return request.app.state.desk


def _samples(request: Request) -> Samples:
    return request.app.state.samples


Desk = Annotated[JobDesk, Depends(_desk)]
Stores = Annotated[Samples, Depends(_samples)]


@samples.get("")
async def list_samples(
    job_id: str, query: Annotated[SampleQuery, Query()], desk: Desk, stores: Stores
) -> Response:
    """A job's responses and what became of them; ``after=last_id`` goes on."""
    record = await desk.find(job_id)
    folder = desk.service.deployment.job_dir(record.id)
    return Response(await stores.page(folder, query), media_type="application/json")


@samples.get("/{key}")
async def get_sample_group(job_id: str, key: str, desk: Desk, stores: Stores) -> Response:
    """One group, with the text and the numbers of every token."""
    record = await desk.find(job_id)
    folder = desk.service.deployment.job_dir(record.id)
    return Response(await stores.group(folder, key), media_type="application/json")
