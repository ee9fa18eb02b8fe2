"""The jailed processes of a worker: which play episodes, for whom, and what becomes of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protocol.messages import Task
from protocol.recipe import Environment

from services.chassis.faults import UnsupportedEntry, Unworkable
from services.environment.addresses import Addresses
from services.environment.door import Session
from services.environment.episodes import PROBLEMS, Broken, EnvironmentEnded
from services.environment.relay import Relay

_LOAD_S = 180.0  # until an environment is ready; a busy machine takes a while to import
_PARTING_S = 2.0  # for a process that has closed its connection
_MAX_LINE_BYTES = 1 << 16  # of an answer
_BACKLOG = 4096  # episodes that begin at once
_MAX_ENDS = 3  # of the process, before its group is given up
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(eq=False)
class Host:
    """One jailed process, which has loaded an environment."""

    name: str  # the field of the recipe that it plays
    folder: tempfile.TemporaryDirectory[str]  # of its socket
    process: asyncio.subprocess.Process
    relay: Relay | None = None

    @property
    def end(self) -> str:
        """How it has ended; nothing while it lives."""
        status = self.process.returncode
        return "" if status is None else _describe(status)

    async def load(self, gateway_url: str, addresses: Addresses) -> None:
        """Wait until it has loaded its environment; see `Hosts.start` for what it raises."""
        with socket.socket(socket.AF_UNIX) as way, suppress(OSError):  # which may have ended
            way.connect(_path_in(self.folder))
            for each in (await asyncio.to_thread(socket.recv_fds, way, 1, 1))[1]:
                self.relay = Relay(socket.socket(fileno=each), gateway_url, addresses)
                await self.relay.start()
        try:
            answer = await self._ask({})
        except EnvironmentEnded as error:
            raise UnsupportedEntry(f"{self.name}: the process that loads it {error}") from error
        if "error" in answer:
            raise (RuntimeError if answer["is_passing"] else UnsupportedEntry)(answer["error"])

    async def play(self, task: Task, session: Session, seed: int) -> float | None:
        """Play an episode; `EnvironmentEnded` if the process ends."""
        url = self.relay.url_inside(session.url) if self.relay is not None else session.url
        content = {"task": task.model_dump(mode="json"), "url": url, "key": session.key}
        answer = await self._ask({"seed": seed, **content})
        if (problem := answer.get("problem")) is not None:
            known = problem if problem in PROBLEMS else PROBLEMS[0]
            raise Broken(known, str(answer.get("words")))
        reward = answer.get("reward")
        return None if reward is None else float(reward)

    async def close(self) -> None:
        if self.relay is not None:
            self.relay.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        self.folder.cleanup()

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; a process that gives none, or none that makes sense, ends."""
        answer = None
        with suppress(ValueError, RecursionError, OSError):
            answer = await self._exchange(json.dumps(request).encode() + b"\n")
        if isinstance(answer, dict):
            return answer
        with suppress(TimeoutError):
            async with asyncio.timeout(_PARTING_S):
                await self.process.wait()
        await self.close()
        raise EnvironmentEnded(self.end)

    async def _exchange(self, line: bytes) -> Any:
        path = _path_in(self.folder)
        reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_LINE_BYTES)
        try:
            writer.write(line)
            return json.loads(await reader.readline())
        finally:
            writer.transport.abort()


def _path_in(folder: tempfile.TemporaryDirectory[str]) -> str:
    return f"{folder.name}/host"


def _describe(status: int) -> str:
    code = status - 128 if status > 128 else -status
    if code in set(signal.Signals):
        return f"was ended by {signal.Signals(code).name}"
    return f"ended with status {status}"


def _field(environment: Environment) -> str:
    if environment.taskset is not None:
        return f"environment.taskset = {environment.taskset!r}"
    return "environment.command"


@dataclass
class Hosts:
    """The hosts of a worker: one for each environment in use, shared by its groups."""

    gateway_url: str
    addresses: Addresses
    may_run_programs: bool
    hidden: Sequence[str]
    shared: dict[str, asyncio.Task[Host]] = field(default_factory=dict)
    users: Counter[str] = field(default_factory=Counter)  # of each, with those who wait for it

    @asynccontextmanager
    async def open_group(self, environment: Environment, job_id: str) -> AsyncIterator[GroupPlayer]:
        """Play a group; its hosts that nobody else uses end when another environment comes."""
        key = f"{job_id}:{environment.model_dump_json()}"  # each client's job has its own
        player = GroupPlayer(self, environment, key)
        self.users[key] += 1
        try:
            await player.host()
            yield player
        finally:
            self.users[key] -= 1
            await player.leave()

    async def share(self, environment: Environment, key: str) -> Host:
        """A host of several groups; see `start` for what it raises."""
        start = self.shared.get(key)
        if start is None or (start.done() and (start.exception() or start.result().end)):
            unused = [each for each in self.shared if each == key or not self.users[each]]
            old = [self.shared.pop(each) for each in unused]
            start = self.shared[key] = asyncio.create_task(self.start(environment))
            await _close(old)
        return await asyncio.shield(start)

    async def start(self, environment: Environment) -> Host:
        """Start a process that has loaded an environment.

        Raises:
            UnsupportedEntry: if it cannot, or has not in time.
            RuntimeError: if a network or a disk may be to blame.
        """
        name = _field(environment)
        host = await self._begin(environment, name)
        try:
            async with asyncio.timeout(_LOAD_S):
                await host.load(self.gateway_url, self.addresses)
        except TimeoutError:
            await host.close()
            raise UnsupportedEntry(f"{name} is not loaded after {_LOAD_S:g} s") from None
        except BaseException:
            await host.close()
            raise
        return host

    async def _begin(self, environment: Environment, name: str) -> Host:
        settings = {
            "environment": environment.model_dump(mode="json"),
            "may_run_programs": self.may_run_programs,
            "hidden": list(self.hidden),
        }
        folder = tempfile.TemporaryDirectory()
        with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryFile() as told:
            listener.bind(_path_in(folder))
            listener.listen(_BACKLOG)
            told.write(json.dumps(settings).encode())
            told.seek(0)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "services.environment.jail", str(listener.fileno())),
                pass_fds=[listener.fileno()],
                stdin=told,
                env=self._variables(),
            )
        return Host(name, folder, process)

    def _variables(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        return inherited | threads | {"HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache"}

    async def close(self) -> None:
        remaining, self.shared = self.shared, {}
        await _close(remaining.values())


async def _close(starts: Iterable[asyncio.Task[Host]]) -> None:
    for each in starts:
        each.cancel()
        await asyncio.wait({each})
        if not each.cancelled() and not each.exception():
            await each.result().close()


@dataclass
class GroupPlayer:
    """Plays the episodes of one group, and counts how often that has ended its process.

    The first is shared with other groups, any of which may have ended it; the next are its own.
    """

    hosts: Hosts
    environment: Environment
    key: str
    ends: int = 0
    _host: Host | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def play(self, task: Task, session: Session, seed: int) -> float | None:
        """Play an episode.

        Raises:
            EnvironmentEnded: if the process has ended; another one plays the next.
            Unworkable: if it has too often.
        """
        return await (await self.host()).play(task, session, seed)

    async def host(self) -> Host:
        async with self._lock:
            if self._host is not None and (end := self._host.end):
                self.ends += 1
                await self.leave()
                if self.ends >= _MAX_ENDS:
                    raise Unworkable(
                        f"{_field(self.environment)}: its process has ended {self.ends} times "
                        f"while it played this group, at last it {end}"
                    )
            if self._host is None:
                own, shared = self.hosts.start, partial(self.hosts.share, key=self.key)
                self._host = await (own if self.ends else shared)(self.environment)
            return self._host

    async def leave(self) -> None:
        """End its own process, or one that has ended."""
        host, self._host = self._host, None
        if host is not None and self.ends:
            await host.close()
