"""Uploaded task files: checked line by line, then put in place by one rename.

A file's id derives from its name and content, so that an upload may be repeated without effect.
The shelf is a folder with ``{id}.jsonl``, which the learner reads, and ``{id}.json``, what is known
about it; a file exists from the moment when the latter does.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from protocol.tasks import TaskFileError, parse_tasks
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile

from services.gateway.errors import Problem, from_lines, not_found

MAX_FILE_BYTES = 100 * 2**20
_CHUNK = 2**20
_FILE_ID = re.compile(r"file-[0-9a-f]{24}")


class StoredFile(BaseModel):
    """A task file on the shelf, in OpenAI's shape; ``tasks`` is how many it holds."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["fine-tune"] = "fine-tune"
    status: Literal["processed"] = "processed"
    tasks: int


@dataclass(frozen=True)
class FileShelf:
    """The folder of uploaded files. Its methods block, so routes call them in a thread."""

    folder: Path
    max_bytes: int = MAX_FILE_BYTES

    def put(self, source: BinaryIO, filename: str) -> StoredFile:
        """Check and keep a file.

        Raises:
            Problem: 400 naming the wrong lines and fields, 413 if the file is too large.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".upload-", dir=self.folder) as scratch:
            part = Path(scratch) / "tasks.jsonl"
            digest, size = self._copy(source, part, hashlib.sha256(filename.encode() + b"\0"))
            file_id = f"file-{digest[:24]}"
            tasks = _count_tasks(part)
            if (known := self.find(file_id)) is not None:
                return known
            stored = StoredFile(
                id=file_id,
                bytes=size,
                created_at=int(time.time()),
                filename=filename,
                tasks=tasks,
            )
            description = Path(scratch) / "description.json"
            _write_through(description, stored.model_dump_json())
            part.rename(self.path(file_id))
            description.rename(self._description(file_id))
        return stored

    def find(self, file_id: str) -> StoredFile | None:
        """What is known about a file, None if there is no such file.

        One whose description is damaged is not there either: uploading it again mends it.
        """
        if _FILE_ID.fullmatch(file_id) is None or not self._description(file_id).exists():
            return None
        try:
            return StoredFile.model_validate_json(self._description(file_id).read_bytes())
        except ValidationError:
            return None

    def get(self, file_id: str) -> StoredFile:
        """What is known about a file.

        Raises:
            Problem: 404 if there is no such file.
        """
        stored = self.find(file_id)
        if stored is None:
            raise not_found("file", file_id)
        return stored

    def all(self) -> list[StoredFile]:
        """Every file, newest first."""
        found = (self.find(path.stem) for path in self.folder.glob("file-*.json"))
        files = [stored for stored in found if stored is not None]
        return sorted(files, key=lambda stored: (stored.created_at, stored.id), reverse=True)

    def delete(self, file_id: str) -> None:
        """Take a file off the shelf.

        Raises:
            Problem: 404 if there is no such file.
        """
        self.get(file_id)
        self._description(file_id).unlink()
        self.path(file_id).unlink()

    def path(self, file_id: str) -> Path:
        """Where the tasks of a file lie."""
        return self.folder / f"{file_id}.jsonl"

    def _description(self, file_id: str) -> Path:
        return self.folder / f"{file_id}.json"

    def _copy(self, source: BinaryIO, target: Path, digest: hashlib._Hash) -> tuple[str, int]:
        size = 0
        with target.open("wb") as file:
            while chunk := source.read(_CHUNK):
                size += len(chunk)
                if size > self.max_bytes:
                    raise too_large("file", self.max_bytes)
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest(), size


def read_upload(form: FormData) -> tuple[BinaryIO, str]:
    """The content and the name of the file in a multipart form.

    Raises:
        Problem: 400 naming the field that is missing, wrong or unknown.
    """
    purpose, file = form.get("purpose"), form.get("file")
    for name in sorted(set(form) - {"purpose", "file"}):
        raise Problem(400, f"{name}: unknown field; remove it", param=name)
    if purpose != "fine-tune":
        raise Problem(400, "purpose: must be 'fine-tune'", param="purpose")
    if not isinstance(file, UploadFile):
        raise Problem(400, "file: send a JSONL file as multipart/form-data", param="file")
    name = (file.filename or "tasks.jsonl").replace("\\", "/").split("/")[-1]
    return file.file, name[-255:]


def too_large(param: str, max_bytes: int) -> Problem:
    """413 that names the limit."""
    message = f"{param}: larger than the limit of {max_bytes:,} bytes; split it or leave tasks out"
    return Problem(413, message, param=param, code="too_large")


def _write_through(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _count_tasks(path: Path) -> int:
    try:
        return len(parse_tasks(_lines(path)))
    except TaskFileError as error:
        raise from_lines(error.problems, code="invalid_tasks", param="file") from error


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield raw.decode("utf-8")
            except UnicodeDecodeError as error:
                problem = f"line {number}: byte {error.start + 1} is not valid UTF-8; re-encode it"
                raise TaskFileError([problem]) from error
