"""The routes of uploads in parts."""

from __future__ import annotations

from fastapi import APIRouter, Request

from services.gateway.files.uploads import (
    Completion,
    NewUpload,
    Upload,
    UploadPart,
    UploadsInParts,
)

uploads = APIRouter(prefix="/v1/uploads", tags=["uploads"])


@uploads.post("")
async def create_upload(body: NewUpload, uploads: UploadsInParts) -> Upload:
    """Begin an upload in parts; it has an hour."""
    return await uploads.create(body)


@uploads.post("/{upload_id}/parts")
async def add_part(upload_id: str, uploads: UploadsInParts, request: Request) -> UploadPart:
    """Keep a part, the field `data` of a form; its id names it in the completion."""
    return await uploads.add_part(upload_id, request)


@uploads.post("/{upload_id}/complete")
async def complete_upload(
    upload_id: str, body: Completion, uploads: UploadsInParts, request: Request
) -> Upload:
    """Make a file of the parts, in the order of their ids."""
    return await uploads.complete(upload_id, body, request)


@uploads.post("/{upload_id}/cancel")
async def cancel_upload(upload_id: str, uploads: UploadsInParts) -> Upload:
    """Give up an upload and its parts."""
    return await uploads.cancel(upload_id)
