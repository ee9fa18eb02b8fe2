"""Checkpoints: engine, ledger and log position become durable together, by one rename."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from protocol import weights
from protocol.operations import DAMAGE, OperationLog

from services.learner.attempt import MachineFault
from services.learner.durable.progress import Progress
from services.learner.training.ranks import Team

_STATE = "state.json"
MODEL = "model"
EVALUATED = "evaluated"
_MAX_CHECKPOINTS = 2  # the second is for the case that the newest is damaged
_LEFTOVER = re.compile(r"\.(unfinished|replaced)-(\d+)-(.+)")


class Checkpoints:
    def __init__(self, folder: Path, attempt: int) -> None:
        self.folder = folder
        self.attempt = attempt
        self.operations = OperationLog(folder.parent)
        self.damaged: dict[Path, str] = {}  # the damage of each damaged checkpoint
        folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> tuple[Path, Progress] | None:
        """Return the newest whole checkpoint, if there is one; ``damaged`` has the newer ones.

        If a client's operation before it has no result, return an older checkpoint from which the
        operation can be repeated, or None for the beginning.

        Raises:
            MachineFault: if all are damaged.
        """
        whole = self._whole()
        newest = next(whole, None)
        if newest is None and self.damaged:
            raise MachineFault(
                f"all checkpoints are damaged: {'; '.join(self.damaged.values())}; restore one in "
                f"{self.folder} from a backup, or cancel the job"
            )
        if newest is None:
            return None
        lost = self.operations.unanswered(newest[1].operation + 1)
        bases = [newest, *whole, None] if lost else []
        for number in lost:
            base = next(base for base in bases if _last_operation(base) < number)
            if self.operations.knows_all(range(_last_operation(base) + 1, number + 1)):
                return base
        return newest

    def can_repeat(self, number: int) -> bool:
        """Whether a client's operation can be repeated, from a checkpoint or the beginning."""
        operations = [-1]
        for folder in self._all():
            with suppress(OSError, ValueError):  # the attempt that loads it reports the damage
                operations.append(_read_progress(folder).operation)
        base = max(operation for operation in operations if operation < number)
        return self.operations.knows_all(range(base + 1, number + 1))

    async def save(
        self,
        team: Team,
        progress: Progress,
        commit: Callable[[], Awaitable[None]],
        published: Mapping[str, Path] | None = None,
        on_copied: Callable[[], None] = lambda: None,
    ) -> Path:
        """Save a checkpoint, which appears by one rename.

        The newest whole checkpoints stay, the others are deleted. A checkpoint also holds the
        policy as a Hugging Face folder, from which another job can start.

        Args:
            commit: called when all is written, before the rename; an error prevents the rename.
            published: folders to copy into it, by their names in it: the policy, if it is
                published, and the version that an evaluation measures.
            on_copied: called when the state is copied, so that training may continue.
        """
        target = self.folder / progress.checkpoint_name
        state = progress.model_copy(update={"ranks": team.num_ranks}).model_dump_json(indent=1)
        published = published or {}

        async def fill(folder: Path) -> None:
            await team.save(folder)
            if MODEL not in published:
                await team.export(folder / MODEL)
            on_copied()
            await team.written(folder)
            for name, source in published.items():
                await asyncio.to_thread(copy_published, source, folder / name)
            (folder / _STATE).write_text(state, encoding="utf-8")
            await asyncio.to_thread(weights.seal, folder)

        await write_whole(target, fill, commit, attempt=self.attempt)
        self.damaged.pop(target, None)
        folders = self._all()
        newest = [folder for folder in folders if folder not in self.damaged][-_MAX_CHECKPOINTS:]
        for folder in folders:
            if folder not in newest:
                await asyncio.to_thread(shutil.rmtree, folder)
        return target

    def first_segment_needed(self) -> str:
        """Return the oldest segment of the log that a checkpoint needs, "" if that is unknown."""
        return min((progress.first_segment for progress in self._saved_progress()), default="")

    def first_operation_needed(self) -> int:
        """Return the number of the first operation after the oldest checkpoint."""
        return min((progress.operation + 1 for progress in self._saved_progress()), default=0)

    def _saved_progress(self) -> list[Progress]:
        """Return the progress of each checkpoint; nothing if one cannot be read."""
        try:
            return [_read_progress(path) for path in self._all()]
        except (OSError, ValueError):
            return []

    def _whole(self) -> Iterator[tuple[Path, Progress]]:
        """Return the whole checkpoints, newest first; add the others to ``damaged``."""
        for folder in reversed(self._all()):
            try:
                weights.verify(folder)
                progress = _read_progress(folder)
            except (weights.WeightsError, ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in DAMAGE:
                    raise
                self.damaged[folder] = str(error)
            else:
                yield folder, progress

    def _all(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if path.is_dir())


def _last_operation(checkpoint: tuple[Path, Progress] | None) -> int:
    """Return the client's last operation before a checkpoint, -1 for the beginning."""
    return -1 if checkpoint is None else checkpoint[1].operation


def copy_published(published: Path, target: Path) -> None:
    """Copy a version; links would not do, since its files are overwritten by a later version."""
    shutil.copytree(published, target, ignore=shutil.ignore_patterns(weights.MANIFEST))


def _read_progress(folder: Path) -> Progress:
    return Progress.model_validate_json((folder / _STATE).read_bytes())


async def write_whole(
    target: Path,
    fill: Callable[[Path], Awaitable[None]],
    commit: Callable[[], Awaitable[None]] | None = None,
    *,
    attempt: int,
) -> None:
    """Write a folder that appears whole by one rename.

    Args:
        target: the folder; an existing one is renamed just before.
        fill: writes into the folder that it gets.
        commit: called when all is written, before the rename; an error prevents the rename.
        attempt: the attempt's number; other attempts do not touch its unfinished folder.
    """
    temporary = target.with_name(f".unfinished-{attempt}-{target.name}")
    replaced = target.with_name(f".replaced-{attempt}-{target.name}")
    for leftover in (temporary, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        await fill(temporary)
        await asyncio.to_thread(weights.sync_tree, temporary)
        if commit is not None:
            await commit()
        if target.exists():
            target.rename(replaced)
        temporary.rename(target)
    finally:  # the disk may be full
        await asyncio.to_thread(shutil.rmtree, temporary, ignore_errors=True)
    weights.sync_folder(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_leftovers(folder: Path, attempt: int) -> None:
    """Remove unfinished folders of `write_whole` that killed attempts up to this one left.

    A folder that was renamed for a replacement that never came gets its name back.
    """
    for path in folder.glob(".*"):
        leftover = _LEFTOVER.fullmatch(path.name)
        if leftover is None or int(leftover[2]) > attempt:
            continue
        target = folder / leftover[3]
        if leftover[1] == "replaced" and not target.exists():
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)
