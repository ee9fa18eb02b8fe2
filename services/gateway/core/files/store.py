"""Uploaded task files: checked, then put in place by one rename.

A file's id derives from its name and content, so that an upload may be repeated without effect.
The store is a folder with ``{id}.jsonl``, which the learner reads, and ``{id}.json``, its
description; a file exists from the moment when the latter does.
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
from typing import Annotated, BinaryIO

from protocol.tasks import TaskFileError
from pydantic import BaseModel, Field, ValidationError

from services.chassis.pool import Pool
from services.gateway.core.files.check import MAX_CHECKS, check_file
from services.gateway.errors import Problem, from_lines, not_found

log = logging.getLogger(__name__)
MAX_FILE_BYTES = 100 * 2**20
MAX_NAME_BYTES = 255
READ_BYTES = 2**20
LOST = "was lost or changed on the disk"
_FILE_ID = re.compile(r"file-[0-9a-f]{24}")
_SCRATCH_PREFIX = ".upload-"


class StoredFile(BaseModel):
    """The description of a task file.

    ``columns`` counts the tasks with each field that graders may name, and those with
    ``(messages)`` as a prompt; None if that is unknown.
    """

    id: str
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    tasks: Annotated[int, Field(ge=1)]
    columns: dict[str, int] | None = None

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()


@dataclass
class FileStore:
    """The folder of uploaded files. All methods but `add` block: call them in a thread."""

    folder: Path
    max_bytes: int = MAX_FILE_BYTES
    check_pool: Pool = field(default_factory=lambda: Pool(MAX_CHECKS))
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Make a folder next to the files that is removed when the block ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=self.folder) as folder:
            yield Path(folder)

    def remove_leftovers(self) -> None:
        """Remove the scratch folders of a gateway that was killed during uploads."""
        for folder in self.folder.glob(f"{_SCRATCH_PREFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)

    async def add(self, file: BinaryIO, filename: str, lifetime_s: int | None) -> StoredFile:
        """Check a file, and keep it; 400 names the wrong lines."""
        with self.scratch() as folder:
            path = folder / "tasks.jsonl"
            created_at = int(time.time())
            file_id = await asyncio.to_thread(copy_with_id, file, filename, path)
            earlier = await asyncio.to_thread(self.find, file_id)
            try:
                # The same content was checked at the earlier upload.
                contents = earlier or await check_file(self.check_pool, path)
            except TaskFileError as error:
                raise from_lines(error.problems, code="invalid_tasks", param="file") from error
            stored = StoredFile(
                id=file_id,
                bytes=path.stat().st_size,
                created_at=created_at,
                expires_at=None if lifetime_s is None else created_at + lifetime_s,
                filename=filename,
                tasks=contents.tasks,
                columns=contents.columns,
            )
            return await asyncio.to_thread(self.keep, path, stored)

    def keep(self, path: Path, stored: StoredFile) -> StoredFile:
        """Move a checked file from a scratch folder into the store.

        A repeated upload extends the lifetime. It replaces the content, since that may have been
        lost or changed on the disk.
        """
        with self._lock, self.scratch() as folder:
            earlier = self.find(stored.id)
            if earlier is not None:
                expiries = [earlier.expires_at, stored.expires_at]
                expires_at = None if None in expiries else max(filter(None, expiries))
                changes = {"created_at": earlier.created_at, "expires_at": expires_at}
                stored = stored.model_copy(update=changes)
            description = folder / "description.json"
            description.write_text(stored.model_dump_json(), encoding="utf-8")
            for written in (path, description):  # both must survive a power cut
                with written.open("rb") as file:
                    os.fsync(file.fileno())
            path.rename(self.path(stored.id))
            description.rename(self._description(stored.id))
        return stored

    def find(self, file_id: str) -> StoredFile | None:
        """Return a file; None if there is none, or its description is damaged."""
        path = self._description(file_id)
        if _FILE_ID.fullmatch(file_id) is None or not path.exists():
            return None
        try:
            stored = StoredFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:  # just deleted
            return None
        except (OSError, ValidationError) as error:
            log.warning("a description is damaged: %s", error, extra={"entry": path.name})
            return None
        return stored if stored.id == file_id else None

    def get(self, file_id: str) -> StoredFile:
        """Return a file, or raise 404."""
        stored = self.find(file_id)
        if stored is None:
            raise not_found("file", file_id)
        return stored

    def all(self) -> list[StoredFile]:
        """Return all files, newest first."""
        files = filter(None, (self.find(path.stem) for path in self.folder.glob("file-*.json")))
        return sorted(files, key=lambda stored: (stored.created_at, stored.id), reverse=True)

    def expired(self) -> list[str]:
        return [stored.id for stored in self.all() if stored.has_expired]

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
        """Return the path of a file's tasks; 404 if they are lost or have another size."""
        if not self.is_whole(self.get(file_id)):
            message = f"the content of {file_id} {LOST}; upload it again, or delete it"
            raise Problem(404, message, param="id", code="content_lost")
        return self.path(file_id)

    def is_whole(self, stored: StoredFile) -> bool:
        """Whether the content of a file is on the disk, as far as its size shows."""
        try:
            content = self.path(stored.id).lstat()
        except OSError:
            return False
        return stat.S_ISREG(content.st_mode) and content.st_size == stored.bytes

    def path(self, file_id: str) -> Path:
        return self.folder / f"{file_id}.jsonl"

    def _description(self, file_id: str) -> Path:
        return self.folder / f"{file_id}.json"


def copy_with_id(file: BinaryIO, filename: str, target: Path) -> str:
    """Copy a file, and return its id, which derives from its name and content."""
    digest = hashlib.sha256(filename.encode() + b"\0")
    with target.open("wb") as copy:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    return f"file-{digest.hexdigest()[:24]}"


def content_id(path: Path) -> str:
    """Return the id that a file has once it is uploaded under its own name."""
    with path.open("rb") as file:
        return copy_with_id(file, clean_filename(path.name), Path(os.devnull))


def clean_filename(path: str) -> str:
    """Return the printable characters of a path's last part, at most 255 bytes."""
    name = path.replace("\\", "/").split("/")[-1]
    name = "".join(character for character in name if character.isprintable())
    name = name.encode()[-MAX_NAME_BYTES:].decode(errors="ignore")
    return name if name.strip(".") else "tasks.jsonl"  # "." and ".." are folders
