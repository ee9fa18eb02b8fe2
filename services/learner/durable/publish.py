"""Publishing: the learner's weights become a folder, and every rollout hears of it."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from functools import partial
from pathlib import Path

from protocol import weights
from protocol.exchange import Exchange, UnreadableRecord
from protocol.messages import JobState, PolicyVersion

from services.learner.attempt import Attempt
from services.learner.training.ranks import Team

_KEPT_VERSIONS = 2


class Publisher:
    """Publishes the versions of one attempt of one job."""

    def __init__(self, attempt: Attempt, root: Path) -> None:
        self.attempt = attempt
        self.root = root
        self.newest: PolicyVersion | None = None
        self._kept: deque[str] = deque(maxlen=_KEPT_VERSIONS)
        self._base: dict[str, str] = {}  # of adapters, once it is there

    async def publish(self, team: Team, number: int) -> None:
        """Write the current weights as version ``number``, announce them, drop the oldest.

        Where they are an adapter, the model that it is for goes ahead of the first.
        """
        if team.adapts is not None and not self._base:
            await asyncio.to_thread(self._write_base, team.adapts)
        job_id, attempt = self.attempt.job_id, self.attempt.number
        folder = weights.version_folder(job_id, attempt, number)
        staging = self.root / job_id / f".export-{attempt}"
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        await team.export(staging)
        digest = await asyncio.to_thread(
            weights.write, self.root, folder, lambda target: _move_files(staging, target)
        )
        policy = PolicyVersion(
            job_id=job_id,
            attempt=attempt,
            number=number,
            folder=folder,
            digest=digest,
            **self._base,
        )
        await self.attempt.exchange.announce(policy)
        self.newest = policy
        self._kept.append(folder)
        kept = [*self._kept, self._base.get("base", "")]
        await asyncio.to_thread(weights.retain, self.root, job_id, attempt, kept)

    def _write_base(self, model: Path) -> None:
        folder = weights.base_folder(self.attempt.job_id, self.attempt.number)
        fill = partial(weights.copy, model, follow_links=True)
        self._base = {"base": folder, "base_digest": weights.write(self.root, folder, fill)}

    async def export(self, team: Team, number: int, folder: Path) -> None:
        """Write the current weights, which are version ``number``, as a Hugging Face folder.

        If they are published, the files are shared with that version where the disk can do that.
        """
        if self.newest is None or self.newest.number != number:
            await team.export(folder)
        else:
            await asyncio.to_thread(weights.copy, self.root / self.newest.folder, folder)


async def withdraw(root: Path, job_id: str) -> None:
    """Remove all versions of a job that has ended: nobody needs them any more."""
    await asyncio.to_thread(shutil.rmtree, root / job_id, ignore_errors=True)


async def sweep(exchange: Exchange, root: Path) -> None:
    """Withdraw the versions of all jobs that have ended or rest, and of those that nobody knows.

    A job that rests publishes its own again when it goes on. Call it while no job is worked on.
    """
    for folder in await asyncio.to_thread(lambda: list(root.glob("*"))):
        try:
            record = await exchange.job(folder.name)
        except UnreadableRecord:
            continue
        if record is None or record.state.is_final or record.state is JobState.PAUSED:
            await withdraw(root, folder.name)


def _move_files(source: Path, target: Path) -> None:
    for path in source.iterdir():
        path.rename(target / path.name)
    source.rmdir()
