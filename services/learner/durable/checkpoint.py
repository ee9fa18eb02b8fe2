"""Checkpoints: engine, ledger and log position become durable together, by one rename."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from protocol import weights

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
        self.damaged: dict[Path, str] = {}  # those that were found damaged, and how
        folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> tuple[Path, Progress] | None:
        """The newest whole checkpoint, if there is any; ``damaged`` has the newer ones.

        Raises:
            MachineFault: if all are damaged.
        """
        folders = self._all()
        for folder in reversed(folders):
            try:
                weights.verify(folder)
                return folder, _state(folder)
            except (weights.WeightsError, ValueError, FileNotFoundError) as error:
                self.damaged[folder] = str(error)
        if folders:
            raise MachineFault(
                f"no checkpoint is whole: {'; '.join(self.damaged.values())}; restore one in "
                f"{self.folder} from a backup, or cancel the job"
            )
        return None

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

    def _all(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if path.is_dir())


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
