"""The routes of files."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, UploadFile
from fastapi.responses import FileResponse, Response
from protocol.tasks import TaskFileError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from services.gateway.errors import Problem, conflict, explain_body, from_lines, too_large
from services.gateway.files.check import TaskCheck
from services.gateway.files.store import FileStore, StoredFile, copy_with_id, file_name
from services.gateway.jobs.events import RESULT_NAME, job_with_results, result_file, result_job
from services.gateway.jobs.service import Jobs
from services.gateway.routes.answers import DOWNLOAD, Json, after_id, page_of

_BYTES = "application/octet-stream"
_EXPIRY = re.compile(r"expires_after\[(\w*)\]")
_HOUR_S, _MONTH_S = 3600, 30 * 24 * 3600
_MAX_FIELDS, _MAX_FIELD_BYTES = 8, 1024
_RECEIVED_AT_ONCE = 8  # their files wait in the folder for temporary ones, perhaps in memory
_FORM = {
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"const": "fine-tune"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer"},
    },
}
_UPLOAD = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}
router = APIRouter(prefix="/v1/files", tags=["files"])


class ExpiresAfter(BaseModel):
    """When a file is deleted."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=_HOUR_S, le=_MONTH_S)


class UploadForm(BaseModel):
    """The form of an upload."""

    model_config = ConfigDict(extra="forbid")

    file: UploadFile
    purpose: Literal["fine-tune"]
    expires_after: ExpiresAfter | None = None

    @classmethod
    def read(cls, form: FormData) -> UploadForm:
        """The fields of a form, such as ``expires_after[seconds]``, checked."""
        items = form.multi_items()
        fields: dict[str, Any] = {name: part for name, part in items if not _EXPIRY.match(name)}
        expiry = {found[1]: part for name, part in items if (found := _EXPIRY.fullmatch(name))}
        fields |= {"expires_after": expiry} if expiry else {}
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise from_lines(explain_body(error), code="invalid_request") from error


class Uploads:
    """Receives and checks files, eight at once; more wait."""

    def __init__(self, files: FileStore) -> None:
        self.files = files
        self._receiving = asyncio.Semaphore(_RECEIVED_AT_ONCE)
        self._check = TaskCheck()

    async def receive(self, request: Request) -> StoredFile:
        """Keep the file of a form; 400 names the wrong field or the wrong lines."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            message = "an upload is a form: Content-Type multipart/form-data"
            raise Problem(400, message, param="file", code="invalid_request")
        limits = {"max_fields": _MAX_FIELDS, "max_part_size": _MAX_FIELD_BYTES}
        async with self._receiving, request.form(max_files=1, **limits) as fields:
            form = UploadForm.read(fields)
            if (form.file.size or 0) > self.files.max_bytes:
                raise too_large("file", self.files.max_bytes)
            return await self._keep(form)

    async def _keep(self, form: UploadForm) -> StoredFile:
        name = file_name(form.file.filename or "")
        with self.files.scratch() as folder:
            path, now = folder / "tasks.jsonl", int(time.time())
            file_id = await asyncio.to_thread(copy_with_id, form.file.file, name, path)
            known = await asyncio.to_thread(self.files.find, file_id)  # checked before
            try:
                contents = known or await self._check.contents(path)
            except TaskFileError as error:
                raise from_lines(error.problems, code="invalid_tasks", param="file") from error
            stored = StoredFile(
                id=file_id,
                bytes=path.stat().st_size,
                created_at=now,
                expires_at=now + form.expires_after.seconds if form.expires_after else None,
                filename=name,
                tasks=contents.tasks,
                columns=contents.columns,
            )
            return await asyncio.to_thread(self.files.keep, path, stored)


@router.post("", openapi_extra=_UPLOAD)
async def upload_file(request: Request) -> StoredFile:
    """Keep a file of tasks; its id names it in a job."""
    return await request.app.state.uploads.receive(request)


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
async def get_file(file_id: str, jobs: Jobs) -> Json:
    """What is known about a file."""
    if job_id := result_job(file_id):
        return (await result_file(jobs, job_id))[0]
    return (await asyncio.to_thread(jobs.files.get, file_id)).model_dump()


@router.get("/{file_id}/content", response_class=FileResponse, responses=DOWNLOAD)
async def get_file_content(file_id: str, jobs: Jobs) -> Response:
    """The file as it was uploaded, or what a job's steps measured."""
    if job_id := result_job(file_id):
        headers = {"Content-Disposition": f'attachment; filename="{RESULT_NAME}"'}
        _, content = await result_file(jobs, job_id)
        return Response(content, headers=headers, media_type=_BYTES)
    stored = await asyncio.to_thread(jobs.files.get, file_id)
    path = await asyncio.to_thread(jobs.files.content, file_id)
    return FileResponse(path, media_type=_BYTES, filename=stored.filename)


@router.delete("/{file_id}")
async def delete_file(file_id: str, jobs: Jobs) -> Json:
    """Delete a file that no unfinished job uses."""
    if job_id := result_job(file_id):
        await job_with_results(jobs, job_id)
        raise conflict(f"{file_id} goes with its job: DELETE {job_id}", param="file_id")
    await jobs.delete_file(file_id)
    return {"id": file_id, "object": "file", "deleted": True}
