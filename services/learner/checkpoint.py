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

from services.learner.ranks import Team

_STATE = "state.json"
_KEPT = 2


class LearnerState(Message):
    """Where the learner was: everything of a checkpoint that is not a tensor."""

    step: int
    first_segment: str
    ledgers: dict[Purpose, dict[str, Any]]
    evaluations: list[dict[str, Any]]
    totals: dict[str, float]


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
        target = self.folder / f"step-{state.step:06d}"
        temporary = self.folder / f".unfinished-{target.name}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        await team.save(temporary)
        (temporary / _STATE).write_text(state.model_dump_json(indent=1), encoding="utf-8")
        await asyncio.to_thread(_sync_tree, temporary)
        await commit()
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        sync_folder(self.folder)
        for old in self._complete()[:-_KEPT]:
            shutil.rmtree(old)
        return target

    def _complete(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if (path / _STATE).is_file())


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)
