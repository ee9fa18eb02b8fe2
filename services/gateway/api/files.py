"""The routes of files: task files that clients upload, and result files of jobs."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response, UploadFile
from fastapi.responses import FileResponse
from protocol.messages import JobRecord
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from services.gateway.api.dependencies import Jobs
from services.gateway.api.openai.job_object import result_file_id
from services.gateway.api.openai.lists import Json, list_after
from services.gateway.api.places import UPLOADS, WAITING
from services.gateway.core.files.store import StoredFile, clean_filename
from services.gateway.core.jobs.results import has_results, read_results
from services.gateway.core.jobs.service import JobService
from services.gateway.core.models.folders import JOB_ID
from services.gateway.errors import (
    Problem,
    conflict,
    explain_body,
    from_lines,
    not_found,
    too_large,
)

MIN_LIFETIME_S = 3600
MAX_LIFETIME_S = 30 * 24 * 3600
MAX_FORM_FIELDS = 8
MAX_FIELD_BYTES = 1024
RESULT_FILENAME = "step_metrics.csv"
_EXPIRY_FIELD = re.compile(r"expires_after\[(\w*)\]")
_RESULT_ID = re.compile(rf"file-({JOB_ID.pattern})")
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
DOWNLOAD: dict[str, Any] = {  # arguments of a route
    "response_class": FileResponse,
    "responses": {
        200: {"description": "The file", "content": _BYTES},
        206: {"description": "The requested Range", "content": _BYTES},
        416: {"description": "The file is shorter", "content": {"text/plain": {}}},
    },
    "dependencies": [Depends(WAITING)],
}
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


class FileObject(StoredFile):
    """A task file in OpenAI's shape; ``tasks`` is the number of its tasks."""

    object: Literal["file"] = "file"
    purpose: Literal["fine-tune"] = "fine-tune"
    status: Literal["processed"] = "processed"
    status_details: None = None

    @classmethod
    def from_stored(cls, stored: StoredFile) -> FileObject:
        return cls(**stored.model_dump())


class ExpiresAfter(BaseModel):
    """When a file is deleted."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_LIFETIME_S, le=MAX_LIFETIME_S)


class UploadForm(BaseModel):
    """The form of an upload."""

    model_config = ConfigDict(extra="forbid")

    file: UploadFile
    purpose: Literal["fine-tune"]
    expires_after: ExpiresAfter | None = None

    @classmethod
    def from_form(cls, form: FormData) -> UploadForm:
        """Check the fields of a form, such as ``expires_after[seconds]``."""
        fields: dict[str, Any] = {}
        expiry = {}
        for name, part in form.multi_items():
            match = _EXPIRY_FIELD.fullmatch(name)
            if match is None:
                fields[name] = part
            else:
                expiry[match[1]] = part
        if expiry:
            fields["expires_after"] = expiry
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise from_lines(explain_body(error), code="invalid_request") from error


async def receive_file(request: Request, jobs: JobService) -> StoredFile:
    """Keep the file of a form; 400 names the wrong field or the wrong lines."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        message = "an upload needs a form with Content-Type multipart/form-data"
        raise Problem(400, message, param="file", code="invalid_request")
    store = jobs.files
    limits = {"max_fields": MAX_FORM_FIELDS, "max_part_size": MAX_FIELD_BYTES}
    async with request.form(max_files=1, **limits) as fields:
        form = UploadForm.from_form(fields)
        if (form.file.size or 0) > store.max_bytes:
            raise too_large("file", store.max_bytes)
        name = clean_filename(form.file.filename or "")
        lifetime_s = form.expires_after.seconds if form.expires_after else None
        return await store.add(form.file.file, name, lifetime_s)


@router.post("", openapi_extra=_UPLOAD, dependencies=[UPLOADS])
async def upload_file(request: Request, jobs: Jobs) -> FileObject:
    """Keep a file of tasks; jobs name it by its id."""
    return FileObject.from_stored(await receive_file(request, jobs))


@router.get("")
def list_files(
    jobs: Jobs,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Json:
    """Every file, newest first unless ``order`` is ``asc``."""
    files = jobs.files.all() if purpose in {None, "fine-tune"} else []
    if order == "asc":
        files.reverse()
    return list_after([FileObject.from_stored(file).model_dump() for file in files], after, limit)


@router.get("/{file_id}")
async def get_file(file_id: str, jobs: Jobs) -> Json:
    """The description of a file."""
    job_id = _result_job(file_id)
    if job_id is None:
        stored = await asyncio.to_thread(jobs.files.get, file_id)
        return FileObject.from_stored(stored).model_dump()
    job = await _job_with_results(jobs, job_id)
    content = await read_results(jobs, job_id)
    return {
        "id": file_id,
        "object": "file",
        "bytes": len(content),
        "created_at": int(job.finished_at or job.created_at),
        "expires_at": None,
        "filename": RESULT_FILENAME,
        "purpose": "fine-tune-results",
        "status": "processed",
        "status_details": None,
    }


@router.get("/{file_id}/content", **DOWNLOAD)
async def get_file_content(file_id: str, jobs: Jobs) -> Response:
    """The file as it was uploaded, or the metrics of a job's steps."""
    if job_id := _result_job(file_id):
        await _job_with_results(jobs, job_id)
        content = await read_results(jobs, job_id)
        headers = {"Content-Disposition": f'attachment; filename="{RESULT_FILENAME}"'}
        return Response(content, headers=headers, media_type="application/octet-stream")
    stored = await asyncio.to_thread(jobs.files.get, file_id)
    path = await asyncio.to_thread(jobs.files.content, file_id)
    return FileResponse(path, media_type="application/octet-stream", filename=stored.filename)


@router.delete("/{file_id}")
async def delete_file(file_id: str, jobs: Jobs) -> Json:
    """Delete a file that no unfinished job uses."""
    if job_id := _result_job(file_id):
        await _job_with_results(jobs, job_id)
        message = f"{file_id} is deleted with its job: DELETE {job_id}"
        raise conflict(message, param="file_id")
    await jobs.delete_file(file_id)
    return {"id": file_id, "object": "file", "deleted": True}


def _result_job(file_id: str) -> str | None:
    match = _RESULT_ID.fullmatch(file_id)
    return match and match[1]


async def _job_with_results(jobs: JobService, job_id: str) -> JobRecord:
    """Return a job that has a result file, or raise 404."""
    job = await jobs.find(job_id)
    if not isinstance(job, JobRecord) or not has_results(job):
        raise not_found("file", result_file_id(job_id))
    return job
