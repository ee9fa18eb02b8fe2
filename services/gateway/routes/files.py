"""The routes of files."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response

from services.gateway.errors import conflict
from services.gateway.files.form import receive_form
from services.gateway.files.intake import Incoming, unless_gone, wish_of
from services.gateway.files.store import StoredFile
from services.gateway.jobs.results import (
    RESULT_NAME,
    ResultFile,
    job_with_results,
    result_content,
    result_file,
    result_job,
)
from services.gateway.jobs.service import Jobs
from services.gateway.openapi import DOWNLOAD, form, problems
from services.gateway.paging import Json, after_id, page_of

_FORM = form(
    "file",
    "purpose",
    purpose={"const": "fine-tune"},
    **{
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer"},
    },
)
_BYTES = "application/octet-stream"
router = APIRouter(prefix="/v1/files", tags=["files"])


@router.post("", openapi_extra=_FORM)
async def upload_file(request: Request, intake: Incoming) -> StoredFile:
    """Keep a file of tasks; its id names it in a job."""
    with intake.scratch() as folder:
        path, limit = folder / "tasks.jsonl", intake.shelf.max_bytes
        received = await receive_form(request, path, file_field="file", max_bytes=limit)
        wish = wish_of(received.fields)
        return await unless_gone(request, intake.keep(received, wish.expires_after))


@router.get("")
def list_files(
    jobs: Jobs,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Json:
    """Every file, newest first unless ``order`` is ``asc``."""
    found = jobs.files.all() if purpose in {None, "fine-tune"} else []
    if order == "asc":
        found.reverse()
    page, has_more = after_id(found, after, limit, lambda stored: stored.id)
    return page_of([stored.model_dump() for stored in page], has_more)


@router.get("/{file_id}")
async def get_file(file_id: str, jobs: Jobs) -> StoredFile | ResultFile:
    """What is known about a file."""
    if job_id := result_job(file_id):
        return await result_file(jobs, job_id)
    return await asyncio.to_thread(jobs.files.get, file_id)


@router.get("/{file_id}/content", response_class=FileResponse, responses=DOWNLOAD)
async def get_file_content(file_id: str, jobs: Jobs) -> Response:
    """The file as it was uploaded, or what a job's steps measured."""
    if job_id := result_job(file_id):
        headers = {"Content-Disposition": f'attachment; filename="{RESULT_NAME}"'}
        return Response(await result_content(jobs, job_id), headers=headers, media_type=_BYTES)
    stored = await asyncio.to_thread(jobs.files.get, file_id)
    path = await asyncio.to_thread(jobs.files.content, file_id)
    return FileResponse(path, media_type=_BYTES, filename=stored.filename)


@router.delete("/{file_id}", responses=problems(409))
async def delete_file(file_id: str, jobs: Jobs) -> Json:
    """Delete a file that no unfinished job uses."""
    if job_id := result_job(file_id):
        await job_with_results(jobs, job_id)
        raise conflict(f"{file_id} goes with its job: DELETE {job_id}", param="file_id")
    await jobs.delete_file(file_id)
    return {"id": file_id, "object": "file", "deleted": True}
