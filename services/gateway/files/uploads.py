"""Uploads in parts: an upload is a folder with its record and its parts until it is completed.

Each has an hour. What has been completed or cancelled keeps its record for the rest of it, so that
a request may be repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Depends, Request
from pydantic import BaseModel, Field, ValidationError

from services.gateway.errors import Problem, conflict, not_found
from services.gateway.files.form import Received, file_name, receive_form
from services.gateway.files.intake import ExpiresAfter, Intake, unless_gone
from services.gateway.files.shelf import StoredFile, read_record, too_large, write_through
from services.gateway.openai.body import Body

_LIFETIME_S = 3600
_MAX_PENDING = 16
_IDLE_S = 600  # without a part; then a pending one makes room for another
_MAX_RECORDS = 1000
_MAX_PARTS = 1000
_UPLOAD_ID = re.compile(r"upload_[0-9a-f]{24}")
_PART_ID = re.compile(r"part_[0-9a-f]{24}")
_RECORD = "upload.json"
_PIECE_BYTES = 2**20


class NewUpload(Body):
    """What an upload will be."""

    bytes: int = Field(ge=1)
    filename: str = Field(min_length=1)
    mime_type: str
    purpose: Literal["fine-tune"]
    expires_after: ExpiresAfter | None = None


class Completion(Body):
    """The parts of an upload in their order, and perhaps the digest of the whole."""

    part_ids: list[str] = Field(min_length=1, max_length=_MAX_PARTS)
    md5: str | None = None


class Upload(BaseModel):
    """An upload, in OpenAI's shape."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["fine-tune"] = "fine-tune"
    status: Literal["pending", "completed", "cancelled", "expired"] = "pending"
    file: StoredFile | None = None


class UploadPart(BaseModel):
    """A part of an upload, in OpenAI's shape."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


class _Record(BaseModel):
    upload: Upload
    expires_after: ExpiresAfter | None = None


@dataclass
class Uploads:
    """All uploads, in a folder beside the files. What changes one takes its turn."""

    intake: Intake
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def create(self, new: NewUpload) -> Upload:
        """Begin an upload.

        Raises:
            Problem: 413 if it would be too large, 429 if too many are pending.
        """
        if new.bytes > self.intake.shelf.max_bytes:
            raise too_large("bytes", self.intake.shelf.max_bytes)
        now = int(time.time())
        upload = Upload(
            id=f"upload_{secrets.token_hex(12)}",
            bytes=new.bytes,
            created_at=now,
            expires_at=now + _LIFETIME_S,
            filename=file_name(new.filename),
        )
        async with self._turn:
            await asyncio.to_thread(self._make_room)
            record = _Record(upload=upload, expires_after=new.expires_after)
            await asyncio.to_thread(self._write, record)
        return upload

    async def add_part(self, upload_id: str, request: Request) -> UploadPart:
        """Keep a part of an upload.

        Raises:
            Problem: 404; 409 if the upload has ended; 413 if it grows beyond what it said.
        """
        record = await asyncio.to_thread(self._pending, upload_id)
        with self.intake.scratch() as folder:
            await asyncio.to_thread(self._touch, upload_id)
            limit = record.upload.bytes
            part = await receive_form(request, folder / "part", file_field="data", max_bytes=limit)
            for name in part.fields:
                raise Problem(400, f"{name}: unknown field; remove it", param=name)
            async with self._turn:
                return await asyncio.to_thread(self._keep_part, upload_id, part)

    async def complete(self, upload_id: str, completion: Completion, request: Request) -> Upload:
        """Make a file of the parts; a completed upload is answered as it was.

        Raises:
            Problem: 400 naming what is wrong with the parts or the file; 404; 409 if it has ended.
        """
        record = await asyncio.to_thread(self._get, upload_id)
        if record.upload.status == "completed":
            return record.upload
        try:
            return await self._complete(record, completion, request)
        except (Problem, FileNotFoundError):
            # Another request may be ending it: the parts may go before its record says so.
            async with self._turn:
                record = await asyncio.to_thread(self._get, upload_id)
            if record.upload.status == "completed":
                return record.upload
            _refuse_ended(record)
            raise

    async def cancel(self, upload_id: str) -> Upload:
        """Give up an upload.

        Raises:
            Problem: 404; 409 if it has ended otherwise.
        """
        record = await asyncio.to_thread(self._get, upload_id)
        if record.upload.status == "cancelled":
            return record.upload
        return await self._end(upload_id, "cancelled")

    async def expire(self) -> None:
        """Remove the uploads whose hour is over."""
        async with self._turn:
            for folder, record in await asyncio.to_thread(self._records):
                if record is None or record.upload.expires_at <= time.time():
                    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _complete(self, record: _Record, completion: Completion, request: Request) -> Upload:
        with self.intake.scratch() as folder:
            path = folder / "tasks.jsonl"
            whole = await asyncio.to_thread(self._join, record.upload.id, completion, path)
            checking = self.intake.checked(whole, record.expires_after)
            checked = await unless_gone(request, checking)
            return await self._end(record.upload.id, "completed", (path, checked))

    async def _end(
        self,
        upload_id: str,
        status: Literal["completed", "cancelled"],
        kept: tuple[Path, StoredFile] | None = None,
    ) -> Upload:
        async with self._turn:
            record = await asyncio.to_thread(self._get, upload_id)
            if record.upload.status == status:
                return record.upload
            _refuse_ended(record)
            if status == "cancelled":  # their room may be all there is for the record
                await asyncio.to_thread(self._remove_parts, upload_id)
            file = kept and await asyncio.to_thread(self.intake.shelf.keep, *kept)
            upload = record.upload.model_copy(update={"status": status, "file": file})
            try:
                await asyncio.to_thread(self._write, record.model_copy(update={"upload": upload}))
            except OSError:
                if status != "cancelled":
                    raise
                await asyncio.to_thread(shutil.rmtree, self._folder(upload_id))
            await asyncio.to_thread(self._remove_parts, upload_id)
        return upload

    def _remove_parts(self, upload_id: str) -> None:
        for part in self._folder(upload_id).glob("part_*"):
            part.unlink()

    @property
    def _root(self) -> Path:
        return self.intake.shelf.folder / "uploads"

    def _folder(self, upload_id: str) -> Path:
        return self._root / upload_id

    def _get(self, upload_id: str) -> _Record:
        record = None
        if _UPLOAD_ID.fullmatch(upload_id):
            record = _read(self._folder(upload_id))
        if record is None:
            raise not_found("upload", upload_id)
        return record

    def _pending(self, upload_id: str) -> _Record:
        record = self._get(upload_id)
        _refuse_ended(record)
        return record

    def _write(self, record: _Record) -> None:
        folder = self._folder(record.upload.id)
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / f"{_RECORD}.new"
        write_through(written, record.model_dump_json())
        written.rename(folder / _RECORD)

    def _keep_part(self, upload_id: str, part: Received) -> UploadPart:
        upload = self._pending(upload_id).upload
        kept = list(self._folder(upload_id).glob("part_*"))
        if sum(each.stat().st_size for each in kept) + part.bytes > upload.bytes:
            raise too_large("data", upload.bytes)
        if len(kept) >= _MAX_PARTS:
            raise Problem(400, f"data: over {_MAX_PARTS} parts; make them larger", param="data")
        name = f"part_{secrets.token_hex(12)}"
        part.path.rename(self._folder(upload_id) / name)
        return UploadPart(id=name, created_at=int(time.time()), upload_id=upload_id)

    def _join(self, upload_id: str, completion: Completion, path: Path) -> Received:
        upload = self._pending(upload_id).upload
        folder = self._folder(upload_id)
        for part_id in completion.part_ids:
            if not _PART_ID.fullmatch(part_id) or not (folder / part_id).exists():
                raise Problem(400, f"part_ids: no part {part_id!r}", param="part_ids")
        size = sum((folder / part_id).stat().st_size for part_id in completion.part_ids)
        if size != upload.bytes:
            message = f"part_ids: together {size:,} bytes, but the upload said {upload.bytes:,}"
            raise Problem(400, message, param="part_ids")
        digest = hashlib.md5(usedforsecurity=False)
        with path.open("wb") as whole:
            for part_id in completion.part_ids:
                with (folder / part_id).open("rb") as part:
                    while piece := part.read(_PIECE_BYTES):
                        digest.update(piece)
                        whole.write(piece)
        if completion.md5 is not None and completion.md5.lower() != digest.hexdigest():
            message = f"md5: the parts have {digest.hexdigest()}; send them again"
            raise Problem(400, message, param="md5")
        return Received(path, upload.filename, size)

    def _touch(self, upload_id: str) -> None:
        with suppress(FileNotFoundError):
            os.utime(self._folder(upload_id))

    def _records(self) -> list[tuple[Path, _Record | None]]:
        """All uploads, the one that was touched the longest ago first."""
        folders = [entry for entry in self._root.glob("upload_*") if entry.is_dir()]
        folders.sort(key=lambda folder: folder.stat().st_mtime)
        return [(folder, _read(folder)) for folder in folders]

    def _make_room(self) -> None:
        ended: list[Path] = []
        pending: list[Path] = []
        for folder, record in self._records():
            is_pending = record is not None and record.upload.status == "pending"
            (pending if is_pending else ended).append(folder)
        if len(pending) >= _MAX_PENDING:
            if time.time() - pending[0].stat().st_mtime < _IDLE_S:
                message = f"{len(pending)} uploads are pending; complete or cancel one"
                raise Problem(429, message, code="too_many_uploads", headers={"Retry-After": "60"})
            shutil.rmtree(pending[0], ignore_errors=True)
        for folder in ended[:-_MAX_RECORDS]:
            shutil.rmtree(folder, ignore_errors=True)


def _refuse_ended(record: _Record) -> None:
    upload = record.upload
    if upload.status != "pending":
        message = f"upload {upload.id} is {upload.status}; begin another one"
        raise conflict(message, param="upload_id")


def _read(folder: Path) -> _Record | None:
    """The record of an upload; one whose hour is over is expired."""
    try:
        record = _Record.model_validate_json(read_record(folder / _RECORD))
    except (FileNotFoundError, PermissionError, ValidationError):
        return None
    if record.upload.status == "pending" and record.upload.expires_at <= time.time():
        expired = record.upload.model_copy(update={"status": "expired"})
        return record.model_copy(update={"upload": expired})
    return record


def _uploads(request: Request) -> Uploads:
    return request.app.state.uploads


UploadsInParts = Annotated[Uploads, Depends(_uploads)]
