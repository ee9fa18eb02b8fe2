"""Uploaded task files: received, checked, then put in place by one rename.

A file's id derives from its name and content, so that an upload may be repeated without effect.
The store is a folder with ``{id}.jsonl``, which the learner reads, and ``{id}.json``, what is known
about it; a file exists from the moment when the latter does.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import Request, UploadFile
from protocol.tasks import TaskFileError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData

from services.gateway.core.files.check import TaskCheck
from services.gateway.errors import Problem, explain_body, from_lines, not_found, too_large

log = logging.getLogger(__name__)
MAX_FILE_BYTES = 100 * 2**20
_FILE_ID = re.compile(r"file-[0-9a-f]{24}")
_MAX_NAME_BYTES = 255
_SCRATCH = ".upload-"
_EXPIRY = re.compile(r"expires_after\[(\w*)\]")
_HOUR_S, _MONTH_S = 3600, 30 * 24 * 3600
_MAX_FIELDS, _MAX_FIELD_BYTES = 8, 1024
LOST = "was lost or changed on the disk"


class StoredFile(BaseModel):
    """A task file of the store, in OpenAI's shape; ``tasks`` is how many it holds.

    ``columns`` says how many have each field that graders may name, and how many have
    ``(messages)`` for a prompt; None where that is not known.
    """

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Literal["fine-tune"] = "fine-tune"
    status: Literal["processed"] = "processed"
    status_details: None = None
    tasks: Annotated[int, Field(ge=1)]
    columns: dict[str, int] | None = None

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()


@dataclass
class FileStore:
    """The folder of uploaded files. Its methods block, so routes call them in a thread."""

    folder: Path
    max_bytes: int = MAX_FILE_BYTES
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder beside the files that goes when the block ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self.folder) as folder:
            yield Path(folder)

    def remove_leftovers(self) -> None:
        """Remove what a gateway left that was killed while it received files."""
        for folder in self.folder.glob(f"{_SCRATCH}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, part: Path, stored: StoredFile) -> StoredFile:
        """Take in a file that lies in a scratch folder.

        One that is there already stays as long as either upload wants it to. Its content is
        replaced all the same, as it may have been lost or changed on the disk.
        """
        with self._lock, self.scratch() as folder:
            known = self.find(stored.id)
            if known is not None:
                ends = (known.expires_at, stored.expires_at)
                later = None if None in ends else max(filter(None, ends))
                kept = {"created_at": known.created_at, "expires_at": later}
                stored = stored.model_copy(update=kept)
            description = folder / "description.json"
            description.write_text(stored.model_dump_json(), encoding="utf-8")
            for path in (part, description):  # so that both outlive a power cut
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            part.rename(self.path(stored.id))
            description.rename(self._description(stored.id))
        return stored

    def find(self, file_id: str) -> StoredFile | None:
        """The file, if it is there and its description is sound; uploading it again mends that."""
        path = self._description(file_id)
        if _FILE_ID.fullmatch(file_id) is None or not path.exists():
            return None
        try:
            stored = StoredFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:  # deleted meanwhile
            return None
        except (OSError, ValidationError) as error:
            log.warning("a description is damaged: %s", error, extra={"entry": path.name})
            return None
        return stored if stored.id == file_id else None

    def get(self, file_id: str) -> StoredFile:
        """The file, or 404."""
        stored = self.find(file_id)
        if stored is None:
            raise not_found("file", file_id)
        return stored

    def all(self) -> list[StoredFile]:
        files = filter(None, (self.find(path.stem) for path in self.folder.glob("file-*.json")))
        return sorted(files, key=lambda stored: (stored.created_at, stored.id), reverse=True)

    def expired(self) -> list[str]:
        return [each.id for each in self.all() if each.has_expired]

    def delete(self, file_id: str) -> None:
        with self._lock:
            self._description(file_id).unlink(missing_ok=True)
            self.path(file_id).unlink(missing_ok=True)

    def delete_expired(self, file_id: str) -> None:
        """Delete a file unless it has been uploaded again since it expired."""
        with self._lock:
            stored = self.find(file_id)
            if stored is not None and stored.has_expired:
                self.delete(file_id)

    def content(self, file_id: str) -> Path:
        """Where the tasks of a file lie; 404 unless it is there, as long as it was uploaded."""
        if not self.is_whole(self.get(file_id)):
            message = f"the content of {file_id} {LOST}; upload it again, or delete it"
            raise Problem(404, message, param="id", code="content_lost")
        return self.path(file_id)

    def is_whole(self, stored: StoredFile) -> bool:
        """Whether the content of a file is on the disk, as far as its size tells."""
        try:
            content = self.path(stored.id).lstat()
            return stat.S_ISREG(content.st_mode) and content.st_size == stored.bytes
        except OSError:  # whatever it is, nobody can read the file
            return False

    def path(self, file_id: str) -> Path:
        return self.folder / f"{file_id}.jsonl"

    def _description(self, file_id: str) -> Path:
        return self.folder / f"{file_id}.json"


def copy_with_id(file: BinaryIO, filename: str, to: Path) -> str:
    """Copy a file; returns its id, which derives from its name and content."""
    digest = hashlib.sha256(filename.encode() + b"\0")
    with to.open("wb") as copy:
        while chunk := file.read(2**20):
            digest.update(chunk)
            copy.write(chunk)
    return f"file-{digest.hexdigest()[:24]}"


def file_name(sent: str) -> str:
    """The last part of a path, as far as it can be printed, and at most 255 bytes of it."""
    name = sent.replace("\\", "/").split("/")[-1]
    name = "".join(character for character in name if character.isprintable())
    name = name.encode()[-_MAX_NAME_BYTES:].decode(errors="ignore")
    return name if name.strip(".") else "tasks.jsonl"  # "." and ".." are folders


# ---------------------------------------------------------------------- uploads


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
    """Receives and checks files."""

    def __init__(self, files: FileStore) -> None:
        self.files = files
        self._check = TaskCheck()

    async def receive(self, request: Request) -> StoredFile:
        """Keep the file of a form; 400 names the wrong field or the wrong lines."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            message = "an upload is a form: Content-Type multipart/form-data"
            raise Problem(400, message, param="file", code="invalid_request")
        limits = {"max_fields": _MAX_FIELDS, "max_part_size": _MAX_FIELD_BYTES}
        async with request.form(max_files=1, **limits) as fields:
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
