"""Checkpoints: engine, ledger and log position become durable together, by one rename."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from protocol.messages import Message
from protocol.recipe import Purpose
from protocol.weights import sync_folder
from pydantic import Field

from services.learner.ranks import Team

_STATE = "state.json"
_KEPT = 2


class LearnerState(Message):
    """Where the learner was: everything of a checkpoint that is not a tensor.

    The next number of a purpose to look at is the position of its ledger.
    """

    step: int
    pretrained: int = 0  # steps that the critic made alone, before the policy's first
    keep_rate: float = 1.0  # the recent share of groups that dynamic sampling kept
    accepted: dict[Purpose, int] = Field(default_factory=dict)  # see `Progress`
    first_segment: str
    ledgers: dict[Purpose, dict[str, Any]]
    evaluations: list[dict[str, Any]]  # the first and the newest, see `Progress`
    evaluated: int = 0  # how many there were, where some are left out
    totals: dict[str, float]


def checkpoint_name(step: int, pretrained: int = 0) -> str:
    """The name of a checkpoint's folder; names sort in the order of training."""
    name = f"step-{step:06d}"
    return f"{name}-pretrain-{pretrained:06d}" if step == 0 and pretrained else name


class Checkpoints:
    """The checkpoints of one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> tuple[Path, LearnerState] | None:
        """The newest complete checkpoint, if there is one."""
        folders = self._complete()
        if not folders:
            return None
        content = (folders[-1] / _STATE).read_text(encoding="utf-8")
        return folders[-1], LearnerState.model_validate_json(content)

    async def save(
        self, team: Team, state: LearnerState, commit: Callable[[], Awaitable[None]]
    ) -> Path:
        """Save a checkpoint; it exists from one moment to the next, or not at all.

        Args:
            commit: called when all is written and before it counts; raising prevents it.
        """
        target = self.folder / checkpoint_name(state.step, state.pretrained)

        async def fill(folder: Path) -> None:
            await team.save(folder)
            (folder / _STATE).write_text(state.model_dump_json(indent=1), encoding="utf-8")

        await write_whole(target, fill, commit)
        for old in self._complete()[:-_KEPT]:
            shutil.rmtree(old)
        return target

    def _complete(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if (path / _STATE).is_file())


async def write_whole(
    target: Path,
    fill: Callable[[Path], Awaitable[None]],
    commit: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Write a folder that is there from one moment to the next, or not at all.

    Args:
        target: the folder; one that is there already steps aside whole, a moment before.
        fill: writes into the folder that it is given.
        commit: called when all is written and before it counts; raising prevents it.
    """
    temporary = target.with_name(f".unfinished-{target.name}")
    replaced = target.with_name(f".replaced-{target.name}")
    for leftover in (temporary, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    await fill(temporary)
    await asyncio.to_thread(_sync_tree, temporary)
    if commit is not None:
        await commit()
    if target.exists():
        target.rename(replaced)
    temporary.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)
