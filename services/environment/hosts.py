"""The hosts of a worker: jailed processes that play episodes, shared by groups where possible."""

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
from typing import Any

from protocol.messages import Task
from protocol.recipe import Environment

from services.chassis.faults import UnsupportedEntry, Unworkable
from services.environment.addresses import Addresses
from services.environment.episodes import PROBLEMS, EnvironmentEnded, EpisodeBroken
from services.environment.gateway_client import Session
from services.environment.relay import Relay

# Imports take long on a busy machine.
_LOAD_TIMEOUT_S = 180.0
# A process that has closed its connection gets this long to end.
_EXIT_TIMEOUT_S = 2.0
_MAX_ANSWER_BYTES = 1 << 16
# This many episodes may begin at once.
_BACKLOG = 4096
# A group that has ended this many processes fails.
_MAX_ENDS = 3
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(eq=False)
class Host:
    """A jailed process with an environment; ``setting`` is the recipe's setting that names it."""

    setting: str
    socket_folder: tempfile.TemporaryDirectory[str]
    process: asyncio.subprocess.Process
    relay: Relay | None = None

    @property
    def end(self) -> str:
        """How the process ended; empty while it runs."""
        status = self.process.returncode
        if status is None:
            return ""
        code = status - 128 if status > 128 else -status
        if code in set(signal.Signals):
            return f"was ended by {signal.Signals(code).name}"
        return f"ended with status {status}"

    @property
    def socket_path(self) -> str:
        return f"{self.socket_folder.name}/host"

    async def load(self, gateway_url: str, addresses: Addresses) -> None:
        """Wait until the environment is loaded; raises as `Hosts.start` does."""
        # An OSError means that the process has ended, which the request below reports.
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.connect(self.socket_path)
            received = await asyncio.to_thread(socket.recv_fds, connection, 1, 1)
            for descriptor in received[1]:
                self.relay = Relay(socket.socket(fileno=descriptor), gateway_url, addresses)
                await self.relay.start()
        try:
            answer = await self._request({})
        except EnvironmentEnded as error:
            raise UnsupportedEntry(f"{self.setting}: the process that loads it {error}") from error
        if "error" in answer:
            raise (RuntimeError if answer["is_passing"] else UnsupportedEntry)(answer["error"])

    async def play(self, task: Task, session: Session, seed: int) -> float | None:
        """Play an episode; raises `EnvironmentEnded` if the process ends."""
        url = session.url if self.relay is None else self.relay.url_inside(session.url)
        request = {
            "task": task.model_dump(mode="json"),
            "url": url,
            "key": session.key,
            "seed": seed,
        }
        answer = await self._request(request)
        problem = answer.get("problem")
        if problem is not None:
            # A client's code may have written the answer.
            problem = problem if problem in PROBLEMS else "episode_failed"
            raise EpisodeBroken(problem, str(answer.get("message")))
        reward = answer.get("reward")
        return None if reward is None else float(reward)

    async def close(self) -> None:
        if self.relay is not None:
            self.relay.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        self.socket_folder.cleanup()

    async def _request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer; a process without a valid answer is ended."""
        answer = None
        with suppress(ValueError, RecursionError, OSError):
            answer = await self._exchange(json.dumps(request).encode() + b"\n")
        if isinstance(answer, dict):
            return answer
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), _EXIT_TIMEOUT_S)
        await self.close()
        raise EnvironmentEnded(self.end)

    async def _exchange(self, line: bytes) -> Any:
        reader, writer = await asyncio.open_unix_connection(
            self.socket_path, limit=_MAX_ANSWER_BYTES
        )
        try:
            writer.write(line)
            return json.loads(await reader.readline())
        finally:
            writer.transport.abort()


def _setting(environment: Environment) -> str:
    if environment.taskset is not None:
        return f"environment.taskset = {environment.taskset!r}"
    return "environment.command"


@dataclass
class Hosts:
    """The hosts of a worker: one for each environment of a job, shared by its groups.

    ``hidden`` are folders that no host may see; ``num_groups`` counts the groups that use or await
    a shared host.
    """

    gateway_url: str
    addresses: Addresses
    may_run_programs: bool
    hidden: Sequence[str]
    shared: dict[str, asyncio.Task[Host]] = field(default_factory=dict)
    num_groups: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def open_group(self, environment: Environment, job_id: str) -> AsyncIterator[GroupPlayer]:
        """Yield the player of a group.

        Unused shared hosts end when another environment starts.
        """
        key = f"{job_id}:{environment.model_dump_json()}"
        player = GroupPlayer(self, environment, key)
        self.num_groups[key] += 1
        try:
            await player.host()
            yield player
        finally:
            self.num_groups[key] -= 1
            await player.leave()

    async def share(self, environment: Environment, key: str) -> Host:
        """Return the shared host of a key, or start it; raises as `start` does."""
        starting = self.shared.get(key)
        if starting is None or _has_ended(starting):
            unused = [name for name in self.shared if name == key or not self.num_groups[name]]
            old = [self.shared.pop(name) for name in unused]
            starting = asyncio.create_task(self.start(environment))
            self.shared[key] = starting
            await _close(old)
        return await asyncio.shield(starting)

    async def start(self, environment: Environment) -> Host:
        """Start a process and load the environment in it.

        Raises:
            UnsupportedEntry: if it cannot be loaded, or not in time.
            RuntimeError: if a network or a disk may be to blame.
        """
        setting = _setting(environment)
        host = await self._start_process(environment, setting)
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await host.load(self.gateway_url, self.addresses)
        except BaseException as error:
            await host.close()
            if isinstance(error, TimeoutError):
                message = f"{setting} has not loaded within {_LOAD_TIMEOUT_S:g} s"
                raise UnsupportedEntry(message) from None
            raise
        return host

    async def _start_process(self, environment: Environment, setting: str) -> Host:
        settings = {
            "environment": environment.model_dump(mode="json"),
            "may_run_programs": self.may_run_programs,
            "hidden": list(self.hidden),
        }
        variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        variables |= {"HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache"}
        folder = tempfile.TemporaryDirectory()
        with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryFile() as stdin:
            listener.bind(f"{folder.name}/host")
            listener.listen(_BACKLOG)
            stdin.write(json.dumps(settings).encode())
            stdin.seek(0)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "services.environment.jail", str(listener.fileno())),
                pass_fds=[listener.fileno()],
                stdin=stdin,
                env=variables,
            )
        return Host(setting, folder, process)

    async def close(self) -> None:
        shared = list(self.shared.values())
        self.shared.clear()
        await _close(shared)


def _has_ended(starting: asyncio.Task[Host]) -> bool:
    """Whether a host failed to start, or has ended since."""
    if not starting.done():
        return False
    return starting.exception() is not None or bool(starting.result().end)


async def _close(starting: Iterable[asyncio.Task[Host]]) -> None:
    for task in starting:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and not task.exception():
            await task.result().close()


@dataclass
class GroupPlayer:
    """Plays the episodes of a group, and counts the processes that ended meanwhile.

    Other groups may have ended the shared process, so a group's later processes are its own.
    """

    hosts: Hosts
    environment: Environment
    key: str
    num_ends: int = 0
    _host: Host | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def play(self, task: Task, session: Session, seed: int) -> float | None:
        """Play an episode.

        Raises:
            EnvironmentEnded: if the process ends; the next call starts another one.
            Unworkable: if too many processes have ended.
        """
        host = await self.host()
        return await host.play(task, session, seed)

    async def host(self) -> Host:
        async with self._lock:
            end = "" if self._host is None else self._host.end
            if end:
                self.num_ends += 1
                await self.leave()
                if self.num_ends >= _MAX_ENDS:
                    raise Unworkable(
                        f"{_setting(self.environment)}: its process has ended {self.num_ends} "
                        f"times while it played this group; the last one {end}"
                    )
            if self._host is None and self.num_ends:
                self._host = await self.hosts.start(self.environment)
            elif self._host is None:
                self._host = await self.hosts.share(self.environment, self.key)
            return self._host

    async def leave(self) -> None:
        """Close the host if it is the group's own, or has ended."""
        host = self._host
        self._host = None
        if host is not None and self.num_ends:
            await host.close()
