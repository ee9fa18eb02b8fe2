"""Publishing: the learner's weights become a version in memory, and every rollout hears of it.

Only the copying holds up the next step. Checksums and the announcement come behind it.

A version lies in a slot: a folder in memory that has the version's name while it is whole. Then it
is filled with the next version but one, under another name, unless somebody reads it, who holds a
lease (`weights.leased`) that ends with the process. For rollouts on other machines there is a chain
of changes on the shared disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protocol import deltas, weights
from protocol.exchange import Exchange, UnreadableRecord
from protocol.messages import JobState, PolicyVersion, Probes

from services.chassis.deployment import Deployment
from services.learner.attempt import Attempt
from services.learner.training.ranks import Team

log = logging.getLogger(__name__)


@dataclass
class Slot:
    number: int
    path: Path
    descriptor: int
    digest: str = ""  # of the version in it, while it is whole

    def __del__(self) -> None:
        os.close(self.descriptor)  # with its lock, which would outlive the attempt

    def try_to_take(self) -> bool:
        """Take it for writing; False if somebody reads it."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def rename(self, path: Path) -> None:
        """Take another path, which no other slot has."""
        if path != self.path:
            shutil.rmtree(path, ignore_errors=True)
            self.path.rename(path)
            self.path = path


class Slots:
    """The slots of one attempt. Two are enough while no reader is slower than the learner."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.newest: Slot | None = None  # which a late joiner reads
        self._all: list[Slot] = []

    def take(self, folder: str) -> Slot:
        """A slot for the version that will lie in a folder below the root; nothing else sees it."""
        target = self.root / folder
        for slot in self._all:
            if slot is not self.newest and slot.try_to_take():
                slot.rename(_unfinished(target, slot.number))
                return slot
        unfinished = _unfinished(target, len(self._all))
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        slot = Slot(len(self._all), unfinished, os.open(unfinished, os.O_RDONLY))
        slot.try_to_take()
        self._all.append(slot)
        return slot

    def finish(self, slot: Slot, folder: str) -> str:
        """Seal what was written, and show it under its name; returns the digest of what is there.

        A version that has the name already stays: somebody may read it.
        """
        for other in self._all:
            if other.path == self.root / folder:
                fcntl.flock(slot.descriptor, fcntl.LOCK_UN)
                return other.digest
        (slot.path / weights.MANIFEST).unlink(missing_ok=True)
        slot.digest = weights.seal(slot.path)
        slot.rename(self.root / folder)
        self.newest = slot
        fcntl.flock(slot.descriptor, fcntl.LOCK_UN)
        return slot.digest

    @property
    def names(self) -> Iterator[str]:
        return (slot.path.name for slot in self._all)


def _unfinished(target: Path, number: int) -> Path:
    """Where a slot is filled; each has names of its own."""
    return target.with_name(f"{weights.UNFINISHED}{target.name}-{number}")


class Chain:
    """A whole version on the shared disk, and what has changed since, version by version.

    A new one begins when the changes would take more to read than a whole version.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.links: tuple[str, ...] = ()  # folders below the root
        self._room = 0  # bytes until a new one begins

    def add(self, version: Path, before: Path | None, folder: str) -> None:
        """Add a version in memory, as a folder below the root; ``before`` is in memory, too."""
        target = self.root / folder
        if not all((self.root / link).exists() for link in self.links):
            before = None
        size = deltas.write_link(version, before, target)
        if before is not None and size > self._room:
            before, size = None, deltas.write_link(version, None, target)
        if before is None:
            self.links, self._room = (folder,), size
        else:
            self.links, self._room = (*self.links, folder), self._room - size


class Publisher:
    def __init__(self, attempt: Attempt, disk: Path, memory: Path, *, by_delta: bool) -> None:
        self.attempt = attempt
        self.disk, self.memory = disk, memory
        self.newest: PolicyVersion | None = None  # the last that is whole
        self.evaluated: PolicyVersion | None = None  # while training continues
        self._lease = ExitStack()  # of the version that is evaluated
        self._kept: list[PolicyVersion] = []  # that, and those that a checkpoint is made of
        self._slots = Slots(memory)
        self._chain = Chain(disk) if by_delta else None
        self._announcing: asyncio.Task[None] | None = None
        self._base: dict[str, str] = {}  # of adapters, once it is there
        self.probes_of: Callable[[int], Probes | None] = lambda _: None  # of a version's number

    async def make_room(self) -> None:
        """Remove what earlier attempts have left, but for the last: a rollout may begin with it."""
        newest = await self.attempt.exchange.newest_policy(self.attempt.job_id)
        await self._retain(*([newest] if newest is not None else []))

    async def publish(self, team: Team, number: int) -> None:
        """Write the current weights as version ``number``, to be announced as soon as may be.

        Where they are an adapter, the model that it is for goes ahead of the first. It waits until
        the version before is announced. A number that is published stays as it is.
        """
        await self.announced()
        for policy in (self.newest, self.evaluated):
            if policy is not None and policy.number == number:
                return await self._send(policy)
        await self._publish_base(team)
        folder = self._folder(number)
        slot = await asyncio.to_thread(self._slots.take, folder)
        await team.publish(slot.path, slot.number)
        self._announcing = asyncio.create_task(self._announce(slot, number, folder))

    async def announced(self) -> None:
        """Wait until what was published is announced, or raise what prevented it."""
        if self._announcing is not None:
            await asyncio.shield(self._announcing)

    def check(self) -> None:
        """Raise what has prevented an announcement, if anything has."""
        if self._announcing is not None and self._announcing.done():
            self._announcing.result()

    def mend(self) -> None:
        """Write the links again of which a rollout has removed one, because they are damaged."""
        if self._chain is not None and (self._announcing is None or self._announcing.done()):
            self._announcing = asyncio.create_task(self._mend())

    async def stop(self) -> None:
        announcing, self._announcing = self._announcing, None
        if announcing is not None:
            announcing.cancel()
            await asyncio.wait({announcing})
        self._lease.close()
        self._slots = Slots(self.memory)  # those that it had are open until they are collected

    async def evaluate(self) -> None:
        """Keep the newest version, and announce that it is evaluated."""
        await self.announced()
        assert self.newest is not None, "it is published"
        await self._set_evaluated(self.newest.model_copy(update={"evaluated": None}))

    async def restore_evaluated(self, team: Team, number: int, folder: Path) -> None:
        """Keep a version that an earlier attempt has made, which is still evaluated."""
        await self._publish_base(team)
        if self.newest is not None and self.newest.number == number:
            return await self.evaluate()
        name, fill = self._folder(number), partial(weights.copy, folder)
        digest = await asyncio.to_thread(weights.write, self.memory, name, fill)
        links = await self._link(self.memory / name, None, number)
        await self._set_evaluated(self._version(number, name, digest, links))

    async def end_evaluation(self) -> None:
        if self.evaluated is not None:
            await self.announced()
            await self._set_evaluated(None)

    @contextmanager
    def keeping(self, *policies: PolicyVersion) -> Iterator[None]:
        with ExitStack() as leases:
            for policy in policies:
                leases.enter_context(weights.leased(self.folder_of(policy)))
                self._kept.append(policy)
                leases.callback(self._kept.remove, policy)
            yield

    def folder_of(self, policy: PolicyVersion) -> Path:
        return self.memory / policy.folder

    async def _set_evaluated(self, policy: PolicyVersion | None) -> None:
        self._lease.close()
        if policy is not None:
            self._lease.enter_context(self.keeping(policy))
        self.evaluated = policy
        if self.newest is not None:
            await self._send(self.newest)

    async def _send(self, policy: PolicyVersion) -> None:
        policy = policy.model_copy(update={"evaluated": self.evaluated})
        self.newest = policy  # before others can see it, or the reconciler might go back
        await self.attempt.exchange.announce(policy)

    async def _announce(self, slot: Slot, number: int, folder: str) -> None:
        began, before = time.monotonic(), self.newest and self.folder_of(self.newest)
        digest = await asyncio.to_thread(self._slots.finish, slot, folder)
        links = await self._link(slot.path, before, number)
        policy = self._version(number, folder, digest, links)
        await self._send(policy)
        log.info("announced", extra={"policy": folder, "seconds": time.monotonic() - began})
        await self._retain(policy, *self._kept)

    async def _mend(self) -> None:
        policies = [policy for policy in (self.evaluated, self.newest) if policy is not None]
        folders = {self.disk / link for policy in policies for link in policy.links}
        if await asyncio.to_thread(lambda: all(folder.exists() for folder in folders)):
            return
        log.warning("links were damaged, and are written again")
        for policy in policies:  # the newest last: the chain goes on from there
            links = await self._link(self.folder_of(policy), None, policy.number)
            mended = policy.model_copy(update={"links": links})
            if policy is self.evaluated:
                self.evaluated = mended
            if policy is self.newest:
                await self._send(mended)

    async def _retain(self, *policies: PolicyVersion) -> None:
        """Remove what this attempt and those before have published, but for slots and these."""
        kept = [*self._slots.names]
        for policy in policies:
            kept += [policy.folder, *policy.links, policy.base]
        job_id, attempt = self.attempt.job_id, self.attempt.number
        for root in {self.disk, self.memory}:
            await asyncio.to_thread(weights.retain, root, job_id, attempt, kept)

    async def _link(self, version: Path, before: Path | None, number: int) -> tuple[str, ...]:
        """Add a version to the chain for other machines, if there is one; returns its links."""
        if self._chain is None:
            return ()
        link = weights.link_folder(self.attempt.job_id, self.attempt.number, number)
        await asyncio.to_thread(self._chain.add, version, before, link)
        return self._chain.links

    async def _publish_base(self, team: Team) -> None:
        if team.adapts is not None and not self._base:
            folder = weights.base_folder(self.attempt.job_id, self.attempt.number)
            fill = partial(weights.copy, team.adapts, follow_links=True)
            digest = await asyncio.to_thread(weights.write, self.disk, folder, fill)
            self._base = {"base": folder, "base_digest": digest}

    def _folder(self, number: int) -> str:
        return weights.version_folder(self.attempt.job_id, self.attempt.number, number)

    def _version(
        self, number: int, folder: str, digest: str, links: tuple[str, ...]
    ) -> PolicyVersion:
        return PolicyVersion(
            job_id=self.attempt.job_id,
            attempt=self.attempt.number,
            number=number,
            folder=folder,
            digest=digest,
            links=links,
            probes=self.probes_of(number),
            base=self._base.get("base", ""),
            base_digest=self._base.get("base_digest", ""),
        )


async def withdraw(deployment: Deployment, job_id: str) -> None:
    """Remove all versions of a job that has ended."""
    for root in set(deployment.weights_roots):
        await asyncio.to_thread(shutil.rmtree, root / job_id, ignore_errors=True)


async def sweep(exchange: Exchange, deployment: Deployment) -> None:
    """Withdraw the versions of all jobs that are unknown, ended or paused, while none is running.

    A paused job publishes its own again when it is resumed.
    """
    for root in set(deployment.weights_roots):
        for folder in await asyncio.to_thread(lambda root=root: list(root.glob("[!.]*"))):
            try:
                record = await exchange.job(folder.name)
            except UnreadableRecord:
                continue
            if record is None or record.state.is_final or record.state is JobState.PAUSED:
                await withdraw(deployment, folder.name)
