"""Publishing: the learner's weights become a version in memory, which the rollouts load.

Only copying the weights delays the next step; digests and the announcement follow meanwhile.

A version is in a slot: a folder in memory with the version's name while it is whole. Afterwards
the slot is filled with a later version under another name, unless a reader holds a lease
(`weights.leased`), which ends with the reader's process. Rollouts on other machines read a chain
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
        # Closing releases the lock, which would outlive the attempt.
        os.close(self.descriptor)

    def try_lock(self) -> bool:
        """Lock it for writing; False if it has a reader."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def rename(self, path: Path) -> None:
        """Move it to a path that no other slot has."""
        if path != self.path:
            shutil.rmtree(path, ignore_errors=True)
            self.path.rename(path)
            self.path = path


class Slots:
    """The slots of one attempt. Two are enough while readers keep up with the learner."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.newest: Slot | None = None  # a rollout that joins late reads it
        self._all: list[Slot] = []

    def take(self, folder: str) -> Slot:
        """Return a slot, hidden from readers, for the version of a folder below the root."""
        target = self.root / folder
        for slot in self._all:
            if slot is not self.newest and slot.try_lock():
                slot.rename(_unfinished(target, slot.number))
                return slot
        unfinished = _unfinished(target, len(self._all))
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        slot = Slot(len(self._all), unfinished, os.open(unfinished, os.O_RDONLY))
        slot.try_lock()
        self._all.append(slot)
        return slot

    def finish(self, slot: Slot, folder: str) -> str:
        """Seal a filled slot and rename it to its folder; return the digest of the folder.

        An existing version with this name stays, since it may have readers.
        """
        for other in self._all:
            if other.path == self.root / folder:
                slot.unlock()
                return other.digest
        (slot.path / weights.MANIFEST).unlink(missing_ok=True)
        slot.digest = weights.seal(slot.path)
        slot.rename(self.root / folder)
        self.newest = slot
        slot.unlock()
        return slot.digest

    @property
    def names(self) -> Iterator[str]:
        return (slot.path.name for slot in self._all)


def _unfinished(target: Path, number: int) -> Path:
    """Return the folder in which a slot is filled; slots share no names."""
    return target.with_name(f"{weights.UNFINISHED}{target.name}-{number}")


class Chain:
    """A whole version on the shared disk, followed by the changes of each later version.

    A new chain begins when reading the changes would take longer than reading a whole version.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.links: tuple[str, ...] = ()  # folders below the root
        self._remaining_bytes = 0

    def add(self, version: Path, previous: Path | None, folder: str) -> None:
        """Add a version in memory as a folder below the root; ``previous`` is in memory, too."""
        target = self.root / folder
        if not all((self.root / link).exists() for link in self.links):
            previous = None
        num_bytes = deltas.write_link(version, previous, target)
        if previous is not None and num_bytes > self._remaining_bytes:
            previous = None
            num_bytes = deltas.write_link(version, None, target)
        if previous is None:
            self.links = (folder,)
            self._remaining_bytes = num_bytes
        else:
            self.links = (*self.links, folder)
            self._remaining_bytes -= num_bytes


class Publisher:
    def __init__(self, attempt: Attempt, disk: Path, memory: Path, *, by_delta: bool) -> None:
        self.attempt = attempt
        self.disk = disk
        self.memory = memory
        self.newest: PolicyVersion | None = None  # the last whole version
        self.evaluated: PolicyVersion | None = None  # stays while training continues
        self.find_probes: Callable[[int], Probes | None] = lambda _: None  # by version number
        self._evaluated_lease = ExitStack()
        self._leased: list[PolicyVersion] = []  # of an evaluation or a checkpoint
        self._slots = Slots(memory)
        self._chain = Chain(disk) if by_delta else None
        self._announcing: asyncio.Task[None] | None = None
        self._base = ""  # the folder of the base model of adapters, once it is published
        self._base_digest = ""

    async def make_room(self) -> None:
        """Remove the versions of earlier attempts; the last stays, since a rollout may load it."""
        newest = await self.attempt.exchange.newest_policy(self.attempt.job_id)
        await self._retain(*([newest] if newest is not None else []))

    async def publish(self, team: Team, number: int) -> None:
        """Write the current weights as version ``number``; announce them in the background.

        It waits until the version before is announced. A published number stays unchanged. The base
        model of adapters is published before the first adapter.
        """
        await self.wait_announced()
        for policy in (self.newest, self.evaluated):
            if policy is not None and policy.number == number:
                return await self._send(policy)
        await self._publish_base(team)
        folder = self._folder(number)
        slot = await asyncio.to_thread(self._slots.take, folder)
        await team.publish(slot.path, slot.number)
        self._announcing = asyncio.create_task(self._announce(slot, number, folder))

    async def wait_announced(self) -> None:
        """Wait until the published version is announced; raise the error that prevents it."""
        if self._announcing is not None:
            await asyncio.shield(self._announcing)

    def check(self) -> None:
        """Raise the error of an announcement, if one has failed."""
        if self._announcing is not None and self._announcing.done():
            self._announcing.result()

    def repair(self) -> None:
        """Rewrite the links if a rollout has removed a damaged one."""
        if self._chain is not None and (self._announcing is None or self._announcing.done()):
            self._announcing = asyncio.create_task(self._rewrite_links())

    async def stop(self) -> None:
        announcing = self._announcing
        self._announcing = None
        if announcing is not None:
            announcing.cancel()
            await asyncio.wait({announcing})
        self._evaluated_lease.close()
        # Drop the old slots, whose descriptors close when they are collected.
        self._slots = Slots(self.memory)

    async def evaluate(self) -> None:
        """Keep the newest version for an evaluation, and announce that."""
        await self.wait_announced()
        assert self.newest is not None, "it is published"
        await self._set_evaluated(self.newest.model_copy(update={"evaluated": None}))

    async def restore_evaluated(self, team: Team, number: int, folder: Path) -> None:
        """Publish a version of an earlier attempt whose evaluation is not over."""
        await self._publish_base(team)
        if self.newest is not None and self.newest.number == number:
            return await self.evaluate()
        name = self._folder(number)
        digest = await asyncio.to_thread(
            weights.write, self.memory, name, partial(weights.copy, folder)
        )
        links = await self._link(self.memory / name, None, number)
        await self._set_evaluated(self._version(number, name, digest, links))

    async def end_evaluation(self) -> None:
        if self.evaluated is not None:
            await self.wait_announced()
            await self._set_evaluated(None)

    @contextmanager
    def lease(self, *policies: PolicyVersion) -> Iterator[None]:
        """Keep versions from being overwritten or removed."""
        with ExitStack() as leases:
            for policy in policies:
                leases.enter_context(weights.leased(self.memory_folder(policy)))
                self._leased.append(policy)
                leases.callback(self._leased.remove, policy)
            yield

    def memory_folder(self, policy: PolicyVersion) -> Path:
        return self.memory / policy.folder

    async def _set_evaluated(self, policy: PolicyVersion | None) -> None:
        self._evaluated_lease.close()
        if policy is not None:
            self._evaluated_lease.enter_context(self.lease(policy))
        self.evaluated = policy
        if self.newest is not None:
            await self._send(self.newest)

    async def _send(self, policy: PolicyVersion) -> None:
        policy = policy.model_copy(update={"evaluated": self.evaluated})
        # Set it before it is visible, or the reconciler might announce the version before.
        self.newest = policy
        await self.attempt.exchange.announce(policy)

    async def _announce(self, slot: Slot, number: int, folder: str) -> None:
        began = time.monotonic()
        previous = None if self.newest is None else self.memory_folder(self.newest)
        digest = await asyncio.to_thread(self._slots.finish, slot, folder)
        links = await self._link(slot.path, previous, number)
        policy = self._version(number, folder, digest, links)
        await self._send(policy)
        log.info("announced", extra={"policy": folder, "seconds": time.monotonic() - began})
        await self._retain(policy, *self._leased)

    async def _rewrite_links(self) -> None:
        policies = [policy for policy in (self.evaluated, self.newest) if policy is not None]
        folders = {self.disk / link for policy in policies for link in policy.links}
        if await asyncio.to_thread(lambda: all(folder.exists() for folder in folders)):
            return
        log.warning("links were damaged, and are written again")
        # The newest comes last, since the chain continues from it.
        for policy in policies:
            links = await self._link(self.memory_folder(policy), None, policy.number)
            repaired = policy.model_copy(update={"links": links})
            if policy is self.evaluated:
                self.evaluated = repaired
            if policy is self.newest:
                await self._send(repaired)

    async def _retain(self, *policies: PolicyVersion) -> None:
        """Remove versions of this attempt and earlier ones, except slots and these versions."""
        names = [*self._slots.names]
        for policy in policies:
            names += [policy.folder, *policy.links, policy.base]
        for root in {self.disk, self.memory}:
            await asyncio.to_thread(
                weights.retain, root, self.attempt.job_id, self.attempt.number, names
            )

    async def _link(self, version: Path, previous: Path | None, number: int) -> tuple[str, ...]:
        """Add a version to the chain for other machines, if there is one; return the links."""
        if self._chain is None:
            return ()
        link = weights.link_folder(self.attempt.job_id, self.attempt.number, number)
        await asyncio.to_thread(self._chain.add, version, previous, link)
        return self._chain.links

    async def _publish_base(self, team: Team) -> None:
        if team.adapts is not None and not self._base:
            folder = weights.base_folder(self.attempt.job_id, self.attempt.number)
            fill = partial(weights.copy, team.adapts, follow_links=True)
            self._base_digest = await asyncio.to_thread(weights.write, self.disk, folder, fill)
            self._base = folder

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
            probes=self.find_probes(number),
            base=self._base,
            base_digest=self._base_digest,
        )


async def withdraw(deployment: Deployment, job_id: str) -> None:
    """Remove all versions of a job that has ended."""
    for root in set(deployment.weights_roots):
        await asyncio.to_thread(shutil.rmtree, root / job_id, ignore_errors=True)


async def sweep(exchange: Exchange, deployment: Deployment) -> None:
    """Remove the versions of all unknown, ended and paused jobs, while no job is running.

    A paused job publishes its versions again when it is resumed.
    """
    for root in set(deployment.weights_roots):
        for folder in await asyncio.to_thread(lambda root=root: list(root.glob("[!.]*"))):
            try:
                record = await exchange.job(folder.name)
            except UnreadableRecord:
                continue
            if record is None or record.state.is_final or record.state is JobState.PAUSED:
                await withdraw(deployment, folder.name)
