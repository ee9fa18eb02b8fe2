"""The routes of files."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

from services.gateway.errors import Problem
from services.gateway.files.shelf import StoredFile, read_upload
from services.gateway.jobs.desk import Desk
from services.gateway.openapi import DOWNLOAD, TASK_FILE, problems
from services.gateway.paging import Json, LongLimit, after_id, page_of

files = APIRouter(prefix="/v1/files", tags=["files"])


@files.post("", openapi_extra=TASK_FILE)
async def upload_file(request: Request, desk: Desk) -> StoredFile:
    """Keep a file of tasks; its id names it in a job."""
    try:
        async with request.form(max_files=1, max_fields=8) as form:
            source, name = read_upload(form)
            return await asyncio.to_thread(desk.files.put, source, name)
    except UnicodeError as error:  # in an encoding that the request names
        raise Problem(400, "file: its name must be in UTF-8", param="file") from error


@files.get("")
def list_files(desk: Desk, after: str | None = None, limit: LongLimit = 1000) -> Json:
    """Every file, newest first."""
    return page_of(*after_id([stored.model_dump() for stored in desk.files.all()], after, limit))


@files.get("/{file_id}")
def get_file(file_id: str, desk: Desk) -> StoredFile:
    """What is known about a file."""
    return desk.files.get(file_id)


@files.get("/{file_id}/content", response_class=FileResponse, responses=DOWNLOAD)
def get_file_content(file_id: str, desk: Desk) -> FileResponse:
    """The file as it was uploaded."""
    stored = desk.files.get(file_id)
    path, media_type = desk.files.path(file_id), "application/octet-stream"
    return FileResponse(path, media_type=media_type, filename=stored.filename)


@files.delete("/{file_id}", responses=problems(409))
async def delete_file(file_id: str, desk: Desk) -> Json:
    """Delete a file that no unfinished job uses."""
    await desk.delete_file(file_id)
    return {"id": file_id, "object": "file", "deleted": True}
