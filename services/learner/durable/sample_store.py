"""The sample store of a job, as one attempt writes it: what became of every group, for people.

Each step is a file, which a thread writes during the next step. A checkpoint waits for it:
steps after a checkpoint are made again from the log, and their files written again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from protocol.recipe import Purpose, Recipe
from protocol.samples import RECIPE, TOKENIZER, StepFile, all_files
from protocol.weights import sync_folder

from services.chassis.deployment import Deployment
from services.learner.durable.sample_rows import Row, write_groups

_DAY_S = 86_400
_MOST_FILES = 10_000  # each of which is looked at after each step
Rows = Callable[..., Iterator[list[Row]]]  # of each group; takes attempt, step and created_at
log = logging.getLogger(__name__)


class SampleStore:
    """The steps of one attempt; of those of all attempts the newest stay.

    Together they have at most ``keep_samples_bytes``, or are the last step alone, and are no more
    than 10,000; none is older than ``keep_samples_days``. With 0 bytes nothing is written.
    """

    def __init__(self, folder: Path, attempt: int, deployment: Deployment) -> None:
        self.folder = folder
        self.attempt = attempt
        self.keep_bytes = deployment.keep_samples_bytes
        self.keep_days = deployment.keep_samples_days
        self._newest: Path | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_broken = False
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(attempt + 1):  # of attempts that were ended by force
            self._unfinished(number).unlink(missing_ok=True)

    def keep_origin(self, model: Path, recipe: Recipe) -> None:
        """Copy a model's ``tokenizer.json``, if it has one, and write the recipe down."""
        contents = {RECIPE: recipe.model_dump_json().encode()}
        if (model / TOKENIZER).is_file():
            contents[TOKENIZER] = (model / TOKENIZER).read_bytes()
        for name, content in contents.items() if self.keep_bytes > 0 else ():
            copy = self.folder / f"{name}.{self.attempt}"
            copy.write_bytes(content)
            copy.replace(self.folder / name)

    async def append(self, purpose: Purpose, step: int, rows: Rows) -> None:
        """Begin to write a step; that of the last call is written once this returns.

        Args:
            purpose: of the groups.
            step: that were done when they were used or dropped.
            rows: called in a thread.

        Raises:
            OSError: if the last one could not be written; nothing more can be.
        """
        await self._written()
        if self.keep_bytes > 0 and not self._is_broken:
            file = StepFile(step, purpose, self.attempt)
            self._writing = asyncio.create_task(asyncio.to_thread(self._write, file, rows))
            # The attempt may end by another error before anybody asks for this one.
            self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def sync(self) -> None:
        """Everything that was appended survives a crash once this returns; what is too old goes.

        Raises:
            OSError: if it could not be written; nothing more can be.
        """
        if (writing := self._writing) is not None:
            await asyncio.wait({writing})
            if isinstance(error := writing.exception(), OSError):
                raise error
        await asyncio.to_thread(self._retain)

    async def _written(self) -> None:
        try:
            if self._writing is not None:
                await self._writing
        except OSError:
            raise
        except Exception:  # what is kept for people must not end the job
            log.exception("no more samples are kept in this attempt")
            self._is_broken = True
        self._writing = None

    def _write(self, file: StepFile, rows: Rows) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)  # somebody may have made room
        unfinished, path = self._unfinished(self.attempt), self.folder / file.name
        groups = rows(attempt=self.attempt, step=file.step, created_at=time.time())
        try:
            with unfinished.open("wb") as target:
                write_groups(target, groups)
                target.flush()
                os.fsync(target.fileno())
            self._newest = path  # before it can be the oldest
            unfinished.replace(path)
        finally:  # a disk that is full needs the room
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
        sync_folder(self.folder)
        self._drop_superseded(file)
        self._retain()

    def _drop_superseded(self, file: StepFile) -> None:
        """Delete what attempts up to this one left of a step and those after it."""
        for other in all_files(self.folder):
            is_later = other.purpose is file.purpose and other.step >= file.step
            if is_later and other.attempt <= file.attempt and other != file:
                (self.folder / other.name).unlink(missing_ok=True)

    def _retain(self) -> None:
        """Delete the oldest files, but never the step that was written last."""
        size = 0
        newest_first = sorted(_files(self.folder), reverse=True)
        for place, (written, path, bytes_) in enumerate(newest_first):
            size += bytes_
            is_too_much = size > self.keep_bytes or _is_old(written, self.keep_days)
            if (is_too_much or place >= _MOST_FILES) and path != self._newest:
                path.unlink(missing_ok=True)

    def _unfinished(self, attempt: int) -> Path:
        return self.folder / f".unfinished-{attempt}"


def remove_old(deployment: Deployment) -> None:
    for folder in deployment.job_dir("").glob("*/samples"):
        with suppress(OSError):  # another job's file is no fault of this one
            for written, path, _ in _files(folder):
                if _is_old(written, deployment.keep_samples_days):
                    path.unlink(missing_ok=True)


def _files(folder: Path) -> Iterator[tuple[float, Path, int]]:
    """When each step's file was written, and its bytes."""
    for path in folder.glob("[0-9]*"):
        with suppress(FileNotFoundError):  # somebody else may delete it, too
            found = path.stat()
            yield found.st_mtime, path, found.st_size


def _is_old(written: float, days: float) -> bool:
    return time.time() - written > days * _DAY_S
