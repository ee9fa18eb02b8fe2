"""The worker: a request comes in, the episodes are played, the group goes out."""

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
from services.environment.door import Door, DoorShut, client_of
from services.environment.episodes import UNDER_WAY, Episodes
from services.environment.group import Played, group_of
from services.environment.hosts import Hosts
from services.environment.kinds import Kinds

T = TypeVar("T")
_MOST_REST_S = 15.0


async def run(service: Service) -> None:
    """Consumes requests for episodes; produces groups.

    Waits for: requests, the model door, environments. Unblocked by: those, the deadline of each
    episode, and the service stopping.
    """
    PHASES.name("playing", rest="idle")
    read = Reader(os.environ)
    url = read("WEIR_GATEWAY_URL", str).rstrip("/")
    key = read("WEIR_ENVIRONMENT_KEY", str)
    kinds = kinds_of(read, url, hidden=_stack_folders(service.deployment))
    _show_its_programs()
    _start_no_thread_for_a_process()
    async with client_of(key) as http:
        worker = Worker(service, Door(url, http), kinds)
        service.activity.at_once = lambda: sum(worker.left.values())
        service.readiness.set(True)
        try:
            await work_forever(service, worker.stage())
        finally:
            await kinds.hosts.close()


def kinds_of(read: Reader, gateway_url: str, hidden: list[str]) -> Kinds:
    """The environments that the operator allows."""
    hosts = Hosts(
        gateway_url=gateway_url,
        addresses=Addresses(allowed_names(read, "WEIR_ENVIRONMENT_HOSTS")),
        may_run_programs=is_allowed(read, "WEIR_ENVIRONMENT_COMMANDS"),
        hidden=hidden,
    )
    return Kinds(hosts, allowed_names(read, "WEIR_ENVIRONMENT_TASKSETS"))


def _stack_folders(deployment: Deployment) -> list[str]:
    """The stack's folders, and those of its secrets, which no environment sees."""
    secrets = re.compile("WEIR_.*_FILE")
    files = [Path(text) for name, text in os.environ.items() if secrets.fullmatch(name)]
    folders = [deployment.data_dir, deployment.memory_dir, home_dir(os.environ)]
    return [str(folder.absolute()) for folder in [*folders, *(file.parent for file in files)]]


def _show_its_programs() -> None:
    """Agents find `uv`, which verifiers runs, and this Python, which has what they import."""
    here = Path(sys.executable).parent
    os.environ["PATH"] = f"{here}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _start_no_thread_for_a_process() -> None:
    if sys.version_info < (3, 12):  # from then on it is so by itself
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.get_event_loop_policy().set_child_watcher(watcher)


@dataclass
class Worker:
    service: Service
    door: Door
    kinds: Kinds
    left: dict[int, int] = field(default_factory=dict)  # episodes of each group that have not ended
    rest_s: float = 0.0  # after a fault of the model, longer from one to the next
    rests_until: float = 0.0

    def stage(self) -> Consumer[RolloutRequest, RolloutGroup]:
        return Consumer(
            inputs=(EVAL_EPISODES, EPISODES),
            output=ROLLOUTS,
            failures=FAILED,
            handle=self.play_group,
            room=self.room,
            is_open=lambda _: time.monotonic() >= self.rests_until,
            doing=Doing.PLAYS,
        )

    def room(self, job: ActiveJob, in_flight: int) -> int:
        """For as many groups as the recipe's number of episodes allows, and for one at least."""
        if job.recipe.environment is None:
            return 0
        size, most = job.recipe.rollout.group_size, job.recipe.environment.concurrency
        under_way = sum(self.left.values()) + (in_flight - len(self.left)) * size
        return max((most - under_way) // size, int(in_flight == 0))

    async def play_group(self, job: ActiveJob, request: RolloutRequest) -> RolloutGroup:
        assert job.recipe.environment is not None
        began, me = time.monotonic(), id(request)
        self.left[me] = request.group_size
        try:
            async with self.kinds.open_environment(job.recipe.environment, job.job_id) as play:
                episodes = Episodes(request, job.recipe.environment, play, self.door)
                played = await self._all(episodes, me)
        except DoorShut as error:
            self._rest(str(error))
            raise
        finally:
            del self.left[me]
        self._recover()
        await self._tell_of_branches(job, played)
        return group_of(request, played, time.monotonic() - began)

    async def _all(self, episodes: Episodes, me: int) -> list[Played]:
        async def one(index: int) -> Played:
            async with places:
                try:
                    with UNDER_WAY.track_inprogress(), PHASES.during("playing"):
                        return await episodes.play(index)
                finally:
                    self.left[me] -= 1

        places = asyncio.Semaphore(episodes.settings.concurrency)
        return await _together([one(index) for index in range(episodes.request.group_size)])

    def _rest(self, why: str) -> None:
        """Leave the next tries to others for a while, and say why."""
        now = time.monotonic()
        if now >= self.rests_until:  # else they failed side by side
            self.rest_s = min(2 * self.rest_s or 1.0, _MOST_REST_S)
            self.rests_until = now + self.rest_s
        self.service.readiness.set_fault(self.service.exchange.shown(why))

    def _recover(self) -> None:
        if self.rest_s:
            self.rest_s = self.rests_until = 0.0
            self.service.readiness.set_fault("")

    async def _tell_of_branches(self, job: ActiveJob, played: list[Played]) -> None:
        most = max(len(each.trace.branches) for each in played)
        if most < 2:
            return
        event = JobEvent(
            id=f"branches:{job.attempt}",
            job_id=job.job_id,
            created_at=time.time(),
            message=f"an episode has {most} branches, since a call did not go on from the one "
            "before it; of each episode the branch with the most tokens of the policy is trained",
        )
        await self.service.exchange.record_event(event)


async def _together(coroutines: list[Awaitable[T]]) -> list[T]:
    """Their results; the first error, after which the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
