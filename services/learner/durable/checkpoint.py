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
_KEPT = 2
Published = Mapping[str, Path]
_LEFTOVER = re.compile(r"\.(unfinished|replaced)-(\d+)-(.+)")


class Checkpoints:
    def __init__(self, folder: Path, attempt: int) -> None:
        self.folder = folder
        self.attempt = attempt
        self.operations = OperationLog(folder.parent)  # of a client, if the job has one
        self.damaged: dict[Path, str] = {}  # those that were found damaged, and how
        folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> tuple[Path, Progress] | None:
        """The newest whole checkpoint, if there is any; ``damaged`` has the newer ones.

        If a client's operation before it has no result, an older one from which the operation can
        be done again, or None for the beginning.

        Raises:
            MachineFault: if all are damaged.
        """
        candidates = self._whole()
        newest = next(candidates, None)
        if newest is None and self.damaged:
            raise MachineFault(
                f"no checkpoint is whole: {'; '.join(self.damaged.values())}; restore one in "
                f"{self.folder} from a backup, or cancel the job"
            )
        if newest is None:
            return None
        lost = self.operations.unanswered(newest[1].operation + 1)
        bases = [newest, *candidates, None] if lost else []
        for number in lost:
            base = next(each for each in bases if _operation(each) < number)
            if self.operations.knows_all(range(_operation(base) + 1, number + 1)):
                return base
        return newest

    def can_repeat(self, number: int) -> bool:
        """Whether a client's operation can be done again, from a checkpoint or the beginning."""
        operations = [-1]
        for folder in self._all():
            with suppress(OSError, ValueError):  # an attempt that needs it says that it is damaged
                operations.append(_state(folder).operation)
        base = max(each for each in operations if each < number)
        return self.operations.knows_all(range(base + 1, number + 1))

    async def save(
        self,
        team: Team,
        progress: Progress,
        commit: Callable[[], Awaitable[None]],
        published: Published | None = None,
        copied: Callable[[], None] = lambda: None,
    ) -> Path:
        """Save a checkpoint; it exists from one moment to the next, or not at all.

        The newest whole ones stay, the others go. The policy lies in it as a Hugging Face folder
        too, which another job can start from.

        Args:
            commit: called when all is written and before it counts; raising prevents it.
            published: folders to copy into it, by their names there: the policy, if it is among
                them, and that which an evaluation measures.
            copied: called when the state is copied, so that training may continue.
        """
        target = self.folder / progress.checkpoint_name
        state = progress.model_copy(update={"ranks": team.num_ranks}).model_dump_json(indent=1)
        published = published or {}

        async def fill(folder: Path) -> None:
            await team.save(folder)
            if MODEL not in published:
                await team.export(folder / MODEL)
            copied()
            await team.written(folder)
            for name, source in published.items():
                await asyncio.to_thread(copy_published, source, folder / name)
            (folder / _STATE).write_text(state, encoding="utf-8")
            await asyncio.to_thread(weights.seal, folder)

        await write_whole(target, fill, commit, attempt=self.attempt)
        self.damaged.pop(target, None)
        folders = self._all()
        kept = [folder for folder in folders if folder not in self.damaged][-_KEPT:]
        for folder in folders:
            if folder not in kept:
                await asyncio.to_thread(shutil.rmtree, folder)
        return target

    def first_segment_needed(self) -> str:
        """The oldest segment of the log that a checkpoint needs; the first if that is unknown."""
        try:
            return min((_state(path).first_segment for path in self._all()), default="")
        except (OSError, ValueError):
            return ""

    def first_operation_needed(self) -> int:
        """The number of the first operation that is to be done after any checkpoint."""
        try:
            return min((_state(path).operation + 1 for path in self._all()), default=0)
        except (OSError, ValueError):
            return 0

    def _whole(self) -> Iterator[tuple[Path, Progress]]:
        """The whole checkpoints, newest first; ``damaged`` has the others."""
        for folder in reversed(self._all()):
            try:
                weights.verify(folder)
                checkpoint = folder, _state(folder)
            except (weights.WeightsError, ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in DAMAGE:
                    raise
                self.damaged[folder] = str(error)
            else:
                yield checkpoint

    def _all(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if path.is_dir())


def _operation(checkpoint: tuple[Path, Progress] | None) -> int:
    """The client's operation that has made its weights, -1 at the beginning."""
    return -1 if checkpoint is None else checkpoint[1].operation


def copy_published(published: Path, target: Path) -> None:
    """Copy a version; not by links, since others will be written into its files."""
    shutil.copytree(published, target, ignore=shutil.ignore_patterns(weights.MANIFEST))


def _state(folder: Path) -> Progress:
    return Progress.model_validate_json((folder / _STATE).read_bytes())


async def write_whole(
    target: Path,
    fill: Callable[[Path], Awaitable[None]],
    commit: Callable[[], Awaitable[None]] | None = None,
    *,
    attempt: int,
) -> None:
    """Write a folder that is there from one moment to the next, or not at all.

    Args:
        target: the folder; one that is there already steps aside whole, a moment before.
        fill: writes into the folder that it is given.
        commit: called when all is written and before it counts; raising prevents it.
        attempt: whose work it is; no other attempt touches what is unfinished.
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
    finally:  # a disk that is full needs the room
        await asyncio.to_thread(shutil.rmtree, temporary, ignore_errors=True)
    weights.sync_folder(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_leftovers(folder: Path, attempt: int) -> None:
    """Remove what attempts up to this one, ended by force, left of `write_whole` in a folder.

    What had stepped aside for something that never came steps back.
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
