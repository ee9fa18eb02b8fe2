"""The routes of files."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse

from services.gateway.files.form import receive_form
from services.gateway.files.intake import Incoming, unless_gone, wish_of
from services.gateway.files.shelf import StoredFile
from services.gateway.jobs.desk import Desk
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
files = APIRouter(prefix="/v1/files", tags=["files"])


@files.post("", openapi_extra=_FORM)
async def upload_file(request: Request, intake: Incoming) -> StoredFile:
    """Keep a file of tasks; its id names it in a job."""
    with intake.scratch() as folder:
        path, limit = folder / "tasks.jsonl", intake.shelf.max_bytes
        received = await receive_form(request, path, file_field="file", max_bytes=limit)
        wish = wish_of(received.fields)
        return await unless_gone(request, intake.keep(received, wish.expires_after))


@files.get("")
def list_files(
    desk: Desk,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Json:
    """Every file, newest first unless ``order`` is ``asc``."""
    found = desk.files.all() if purpose in {None, "fine-tune"} else []
    if order == "asc":
        found.reverse()
    page, has_more = after_id(found, after, limit, lambda stored: stored.id)
    return page_of([stored.model_dump() for stored in page], has_more)


@files.get("/{file_id}")
def get_file(file_id: str, desk: Desk) -> StoredFile:
    """What is known about a file."""
    return desk.files.get(file_id)


@files.get("/{file_id}/content", response_class=FileResponse, responses=DOWNLOAD)
def get_file_content(file_id: str, desk: Desk) -> FileResponse:
    """The file as it was uploaded."""
    stored = desk.files.get(file_id)
    path, media_type = desk.files.content(file_id), "application/octet-stream"
    return FileResponse(path, media_type=media_type, filename=stored.filename)


@files.delete("/{file_id}", responses=problems(409))
async def delete_file(file_id: str, desk: Desk) -> Json:
    """Delete a file that no unfinished job uses."""
    await desk.delete_file(file_id)
    return {"id": file_id, "object": "file", "deleted": True}
