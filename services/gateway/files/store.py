"""Uploaded task files: checked before they come here, then put in place by one rename.

A file's id derives from its name and content, so that an upload may be repeated without effect.
The shelf is a folder with ``{id}.jsonl``, which the learner reads, and ``{id}.json``, what is known
about it; a file exists from the moment when the latter does.
"""

from __future__ import annotations

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
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from services.gateway.errors import Problem, not_found

log = logging.getLogger(__name__)
MAX_FILE_BYTES = 100 * 2**20
_FILE_ID = re.compile(r"file-[0-9a-f]{24}")
_SETTLED_NS = 10**9  # two changes within the grain of the clock have one time
_ORPHANED_S = 3600  # no upload takes so long from the content to its description
_SCRATCH = ".upload-"
LOST = "was lost or changed on the disk"


class StoredFile(BaseModel):
    """A task file on the shelf, in OpenAI's shape; ``tasks`` is how many it holds.

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
        """Whether its time is over."""
        return self.expires_at is not None and self.expires_at <= time.time()


@dataclass
class FileStore:
    """The folder of uploaded files. Its methods block, so routes call them in a thread."""

    folder: Path
    max_bytes: int = MAX_FILE_BYTES
    orphaned_s: float = _ORPHANED_S
    # With the times of the last changes, of each file and of the folder: only what is new is read.
    _known: dict[str, tuple[int, StoredFile | None]] = field(default_factory=dict)
    _listed: tuple[int | None, list[StoredFile]] = field(default=(None, []))
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
        """Put a file on the shelf that lies in a scratch folder.

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
            write_through(description, stored.model_dump_json())
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.rename(self.path(stored.id))
            description.rename(self._description(stored.id))
        return stored

    def find(self, file_id: str) -> StoredFile | None:
        """What is known about a file, None if there is no such file.

        One whose description is damaged is not there either: uploading it again mends it.
        """
        if _FILE_ID.fullmatch(file_id) is None:
            return None
        try:
            stored = StoredFile.model_validate_json(read_record(self._description(file_id)))
        except (FileNotFoundError, PermissionError, ValidationError):
            return None
        return stored if stored.id == file_id else None

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
        changed = self.folder.stat().st_mtime_ns if self.folder.is_dir() else 0
        listed_at, files = self._listed
        if listed_at != changed:
            files = self._read_all()
            is_settled = time.time_ns() - changed > _SETTLED_NS
            self._listed = (changed if is_settled else None), files
        return list(files)

    def expired(self) -> list[str]:
        """The files whose time is over, and those that a crash left without a description."""
        return [each.id for each in self.all() if each.has_expired] + self._orphans()

    def delete(self, file_id: str) -> None:
        """Take a file off the shelf, or what is left of it."""
        with self._lock:
            self._description(file_id).unlink(missing_ok=True)
            self.path(file_id).unlink(missing_ok=True)

    def delete_expired(self, file_id: str) -> None:
        """Take a file off the shelf unless it has been uploaded again since it expired."""
        with self._lock:
            stored = self.find(file_id)
            if self._is_orphaned(file_id) if stored is None else stored.has_expired:
                self.delete(file_id)

    def content(self, file_id: str) -> Path:
        """Where the tasks of a file lie.

        Raises:
            Problem: 404 if there is no such file, or if its content is not what was uploaded.
        """
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
        """Where the tasks of a file lie, if there is such a file."""
        return self.folder / f"{file_id}.jsonl"

    def _orphans(self) -> list[str]:
        """Content that has had no description for an hour."""
        ids = [path.stem for path in self.folder.glob("file-*.jsonl")]
        return [each for each in ids if _FILE_ID.fullmatch(each) and self._is_orphaned(each)]

    def _is_orphaned(self, file_id: str) -> bool:
        content = self.path(file_id)
        if os.path.lexists(self._description(file_id)) or not content.is_file():
            return False
        # Renaming a file leaves its st_mtime.
        return content.lstat().st_ctime < time.time() - self.orphaned_s

    def _description(self, file_id: str) -> Path:
        return self.folder / f"{file_id}.json"

    def _read_all(self) -> list[StoredFile]:
        changes = self._changes()
        for file_id in set(self._known) - set(changes):
            self._known.pop(file_id, None)
        for file_id, changed in changes.items():
            if self._known.get(file_id, (None,))[0] != changed:
                stored = self.find(file_id)
                self._known[file_id] = changed, stored
                if stored is None:
                    name = self._description(file_id).name
                    log.warning("this describes no file; it is left alone", extra={"entry": name})
        files = [known for _, known in list(self._known.values()) if known is not None]
        return sorted(files, key=lambda stored: (stored.created_at, stored.id), reverse=True)

    def _changes(self) -> dict[str, int]:
        """When each file's description was written last, in nanoseconds."""
        if not self.folder.is_dir():
            return {}
        with os.scandir(self.folder) as entries:
            names = {entry.name.removesuffix(".json"): entry for entry in entries}
        found: dict[str, int] = {}
        for file_id in filter(_FILE_ID.fullmatch, names):
            try:
                found[file_id] = names[file_id].stat(follow_symlinks=False).st_mtime_ns
            except FileNotFoundError:  # deleted meanwhile
                continue
        return found


def read_record(path: Path) -> bytes:
    """What is in a file.

    Raises:
        FileNotFoundError: too if it is a folder, a pipe, or a link to nowhere or to itself.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    return path.read_bytes()


def write_through(path: Path, text: str) -> None:
    """Write a file that outlives a power cut once it has been renamed."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
