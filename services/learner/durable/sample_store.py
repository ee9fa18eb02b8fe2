"""The sample store of a job, written by one attempt: the groups and their fates, for people.

Each step is a file, which a thread writes during the next step. A checkpoint waits for the files
of its steps. Later steps are replayed from the log, and their files are written again.
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
_MAX_FILES = 10_000  # every step lists them all
# Returns the rows of each group; takes attempt, step and created_at.
Rows = Callable[..., Iterator[list[Row]]]
log = logging.getLogger(__name__)


class SampleStore:
    """The steps of one attempt; of the steps of all attempts the newest stay.

    They have at most ``keep_samples_bytes`` together, except that the last step always stays. They
    are at most 10,000, and none is older than ``keep_samples_days``. With 0 bytes nothing is
    written.
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
        # Killed attempts leave these files.
        for number in range(attempt + 1):
            self._unfinished(number).unlink(missing_ok=True)

    def write_origin(self, model: Path, recipe: Recipe) -> None:
        """Write the recipe, and copy the model's ``tokenizer.json`` if it has one."""
        if self.keep_bytes == 0:
            return
        contents = {RECIPE: recipe.model_dump_json().encode()}
        if (model / TOKENIZER).is_file():
            contents[TOKENIZER] = (model / TOKENIZER).read_bytes()
        for name, content in contents.items():
            copy = self.folder / f"{name}.{self.attempt}"
            copy.write_bytes(content)
            copy.replace(self.folder / name)

    async def append(self, purpose: Purpose, step: int, rows: Rows) -> None:
        """Begin to write a step, after the step of the last call is written.

        Args:
            purpose: of the groups.
            step: the number of steps done when the groups were used or dropped.
            rows: called in a thread.

        Raises:
            OSError: if the last step could not be written; the store is then unusable.
        """
        await self._wait_written()
        if self.keep_bytes > 0 and not self._is_broken:
            file = StepFile(step, purpose, self.attempt)
            self._writing = asyncio.create_task(asyncio.to_thread(self._write, file, rows))
            # The attempt may end by another error before this one is read.
            self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def sync(self) -> None:
        """Wait until all appended steps are on disk, and delete steps that are too old.

        Raises:
            OSError: if a step could not be written; the store is then unusable.
        """
        # `append` may replace the task meanwhile.
        writing = self._writing
        if writing is not None:
            await asyncio.wait({writing})
            error = writing.exception()
            if isinstance(error, OSError):
                raise error
        await asyncio.to_thread(self._retain)

    async def _wait_written(self) -> None:
        try:
            if self._writing is not None:
                await self._writing
        except OSError:
            raise
        except Exception:  # the job does not need its sample store
            log.exception("no more samples are kept in this attempt")
            self._is_broken = True
        self._writing = None

    def _write(self, file: StepFile, rows: Rows) -> None:
        # An operator may have deleted the folder to free space.
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._unfinished(self.attempt)
        path = self.folder / file.name
        groups = rows(attempt=self.attempt, step=file.step, created_at=time.time())
        try:
            with unfinished.open("wb") as target:
                write_groups(target, groups)
                target.flush()
                os.fsync(target.fileno())
            # `sync` may run `_retain` right after the rename.
            self._newest = path
            unfinished.replace(path)
        finally:  # the disk may be full
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
        sync_folder(self.folder)
        self._drop_superseded(file)
        self._retain()

    def _drop_superseded(self, file: StepFile) -> None:
        """Delete the files of earlier attempts for this step and later ones."""
        for other in all_files(self.folder):
            is_later = other.purpose is file.purpose and other.step >= file.step
            if is_later and other.attempt <= file.attempt and other != file:
                (self.folder / other.name).unlink(missing_ok=True)

    def _retain(self) -> None:
        """Delete the oldest files, except the step that was written last."""
        total_bytes = 0
        newest_first = sorted(_list_files(self.folder), reverse=True)
        for place, (written_at, path, num_bytes) in enumerate(newest_first):
            total_bytes += num_bytes
            is_surplus = total_bytes > self.keep_bytes or place >= _MAX_FILES
            is_old = _is_old(written_at, self.keep_days)
            if (is_surplus or is_old) and path != self._newest:
                path.unlink(missing_ok=True)

    def _unfinished(self, attempt: int) -> Path:
        return self.folder / f".unfinished-{attempt}"


def remove_old(deployment: Deployment) -> None:
    for folder in deployment.job_dir("").glob("*/samples"):
        with suppress(OSError):  # another job's file must not end this job
            for written_at, path, _ in _list_files(folder):
                if _is_old(written_at, deployment.keep_samples_days):
                    path.unlink(missing_ok=True)


def _list_files(folder: Path) -> Iterator[tuple[float, Path, int]]:
    """Return the time, the path and the bytes of each step's file."""
    for path in folder.glob("[0-9]*"):
        with suppress(FileNotFoundError):  # another process may delete it
            stat = path.stat()
            yield stat.st_mtime, path, stat.st_size


def _is_old(written_at: float, days: float) -> bool:
    return time.time() - written_at > days * _DAY_S
