"""The environment worker: plays the episodes of requests, and publishes their groups."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from protocol.messages import ActiveJob, Doing, JobEvent, RolloutGroup, RolloutRequest
from protocol.streams import EPISODES, EVAL_EPISODES, FAILED, ROLLOUTS

from services.chassis.consumer import Consumer, work_forever
from services.chassis.deployment import Deployment, Reader, home_dir
from services.chassis.metrics import PHASES
from services.chassis.security import allowed_names, is_allowed
from services.chassis.service import Service
from services.environment.addresses import Addresses
from services.environment.episodes import UNDER_WAY, Episodes
from services.environment.gateway_client import GatewayClient, GatewayUnavailable, http_client
from services.environment.group import FinishedEpisode, build_group
from services.environment.hosts import Hosts
from services.environment.kinds import EnvironmentKinds

T = TypeVar("T")
# After failures of the model the worker takes no request for 1 s, doubling up to this.
_MIN_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 15.0


async def run(service: Service) -> None:
    """Consumes requests for episodes; produces groups.

    Waits for: requests, the gateway, environments. Unblocked by: those, the deadline of each
    episode, and the service stopping.
    """
    PHASES.name("playing", idle="idle")
    read = Reader(os.environ)
    url = read("WEIR_GATEWAY_URL", str).rstrip("/")
    key = read("WEIR_ENVIRONMENT_KEY", str)
    kinds = read_kinds(read, url, hidden=_stack_folders(service.deployment))
    _add_python_to_path()
    _watch_children_without_threads()
    async with http_client(key) as http:
        worker = Worker(service, GatewayClient(url, http), kinds)
        service.activity.at_once = lambda: sum(worker.unfinished.values())
        service.readiness.set(True)
        try:
            await work_forever(service, worker.consumer())
        finally:
            await kinds.hosts.close()


def read_kinds(read: Reader, gateway_url: str, hidden: list[str]) -> EnvironmentKinds:
    """Read which environments the operator allows."""
    hosts = Hosts(
        gateway_url=gateway_url,
        addresses=Addresses(allowed_names(read, "WEIR_ENVIRONMENT_HOSTS")),
        may_run_programs=is_allowed(read, "WEIR_ENVIRONMENT_COMMANDS"),
        hidden=hidden,
    )
    return EnvironmentKinds(hosts, allowed_names(read, "WEIR_ENVIRONMENT_TASKSETS"))


def _stack_folders(deployment: Deployment) -> list[str]:
    """Return the folders of the stack and its secrets, which environments must not see."""
    folders = [deployment.data_dir, deployment.memory_dir, home_dir(os.environ)]
    for name, text in os.environ.items():
        if re.fullmatch("WEIR_.*_FILE", name):
            folders.append(Path(text).parent)
    return [str(folder.absolute()) for folder in folders]


def _add_python_to_path() -> None:
    """Let agents find this Python with its packages, and `uv`, which verifiers runs."""
    folder = Path(sys.executable).parent
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _watch_children_without_threads() -> None:
    if sys.version_info < (3, 12):  # later versions use pidfds by default
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.get_event_loop_policy().set_child_watcher(watcher)


@dataclass
class Worker:
    """Plays groups; ``unfinished`` counts the episodes of each group that have not ended.

    All groups of a job share the ``slots`` for episodes under way.
    """

    service: Service
    gateway: GatewayClient
    kinds: EnvironmentKinds
    unfinished: dict[int, int] = field(default_factory=dict)
    backoff_s: float = 0.0
    closed_until: float = 0.0
    job_id: str = ""
    slots: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)

    def consumer(self) -> Consumer[RolloutRequest, RolloutGroup]:
        return Consumer(
            inputs=(EVAL_EPISODES, EPISODES),
            output=ROLLOUTS,
            failures=FAILED,
            handle=self.play_group,
            free_slots=self.room,
            is_open=lambda _: time.monotonic() >= self.closed_until,
            doing=Doing.PLAYS,
        )

    def room(self, job: ActiveJob, in_flight: int) -> int:
        """Return 1 while fewer episodes are unfinished than the recipe allows at once, else 0."""
        environment = job.recipe.environment
        if environment is None:
            return 0
        num_starting = in_flight - len(self.unfinished)
        num_unfinished = sum(self.unfinished.values()) + num_starting
        return int(num_unfinished < environment.concurrency)

    async def play_group(self, job: ActiveJob, request: RolloutRequest) -> RolloutGroup:
        environment = job.recipe.environment
        assert environment is not None
        start = time.monotonic()
        key = id(request)
        self.unfinished[key] = request.group_size
        if job.job_id != self.job_id:
            self.job_id = job.job_id
            self.slots = asyncio.Semaphore(environment.concurrency)
        try:
            async with self.kinds.open_environment(environment, job.job_id) as play:
                episodes = Episodes(request, environment, play, self.gateway)
                finished = await self._play_all(episodes, key)
        except GatewayUnavailable as error:
            self._back_off(str(error))
            raise
        finally:
            del self.unfinished[key]
        if self.backoff_s:
            self.backoff_s = 0.0
            self.service.readiness.set_fault("")
        await self._report_branches(job, finished)
        return build_group(request, finished, time.monotonic() - start)

    async def _play_all(self, episodes: Episodes, key: int) -> list[FinishedEpisode]:
        slots = self.slots

        async def play(index: int) -> FinishedEpisode:
            async with slots:
                try:
                    with UNDER_WAY.track_inprogress(), PHASES.during("playing"):
                        return await episodes.play(index)
                finally:
                    self.unfinished[key] -= 1

        return await _gather([play(index) for index in range(episodes.request.group_size)])

    def _back_off(self, message: str) -> None:
        """Leave retries to other workers for a while, and report why."""
        now = time.monotonic()
        # Groups that fail at the same time count once.
        if now >= self.closed_until:
            self.backoff_s = min(2 * self.backoff_s or _MIN_BACKOFF_S, _MAX_BACKOFF_S)
            self.closed_until = now + self.backoff_s
        self.service.readiness.set_fault(self.service.exchange.redact(message))

    async def _report_branches(self, job: ActiveJob, finished: list[FinishedEpisode]) -> None:
        max_branches = max(len(episode.trace.branches) for episode in finished)
        if max_branches < 2:
            return
        event = JobEvent(
            id=f"branches:{job.attempt}",
            job_id=job.job_id,
            created_at=time.time(),
            message=f"an episode has {max_branches} branches, since a call did not continue the "
            "one before it; of each episode the branch with the most tokens of the policy is "
            "trained",
        )
        await self.service.exchange.record_event(event)


async def _gather(coroutines: list[Awaitable[T]]) -> list[T]:
    """Return the results, or raise the first error after the others are cancelled."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
