"""The processes of a stack: the product's own loops, around a team and workers that stand in."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from protocol.exchange import connect
from protocol.messages import ActiveJob, GradedGroup, RolloutGroup, RolloutRequest
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS, ROLLOUTS

from services.chassis import consumer as work_loop
from services.chassis.consumer import Consumer, limit_in_flight, work_forever
from services.chassis.logs import set_up_logs
from services.chassis.parent import die_with_parent
from services.chassis.service import Service
from services.learner.job.role import work_on_one_job
from services.rollout.policy_sync import PolicyFollower
from services.rollout.samples import LoadError
from tests.chaos.broken_disk import break_disk
from tests.chaos.hash_team import HashTeam, exported_hash
from tests.chaos.job import graded, sampled
from tests.chaos.places import Place
from tests.inline_prompts import InlinePrompts

log = logging.getLogger(__name__)
_CAPACITY = 4
_LONGEST_WORK_S = 0.3  # short against the time between two deaths of a worker
# So many kills come here that one group may be held through four of them by chance.
_MAX_DEATHS = 12
T = TypeVar("T")


def live(place: Place) -> None:
    """One life on a replica: connected, logged, and stopped by SIGTERM, as every service is."""
    die_with_parent()
    log_file = place.folder / "logs" / f"{place.replica.name}.log"
    with log_file.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    set_up_logs(place.replica.name, "INFO")
    log.info("a life begins", extra={"pid": os.getpid()})
    work_loop.MAX_DEATHS = _MAX_DEATHS
    if place.replica.role == "learner":
        break_disk(place.switches, below=place.data)
    asyncio.run(_serve(place))


async def _serve(place: Place) -> None:
    async with connect(place.url, me=place.new_life()) as exchange:
        service = Service(place.replica.role, place.deployment(), exchange)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.stopping.set)
        await MAINS[place.replica.role](service, place)


async def learn(service: Service, place: Place) -> None:
    team = cast(Any, HashTeam(place.switches))
    await work_on_one_job(service, team, InlinePrompts())


@dataclass
class HashEngine:
    """The engine of a rollout; loading takes a while when the switch says so."""

    place: Place
    has_died: bool = False

    async def load(self, folder: Path, label: str, *, keep_kv: bool) -> dict[str, float]:
        try:
            begun = exported_hash(folder)
            if self.place.is_switched("slow load"):
                await asyncio.sleep(1.0)
            if exported_hash(folder) != begun:
                (self.place.folder / "torn").touch()  # it was written over meanwhile
        except FileNotFoundError as error:
            raise LoadError(str(error)) from error
        return {"load": 0.0}

    def shut_down(self) -> None:
        pass


async def sample(service: Service, place: Place) -> None:
    async def start_engine(*_: Any) -> Any:
        return HashEngine(place)

    follower = PolicyFollower(service, start_engine)

    async def answer(_: ActiveJob, request: RolloutRequest) -> RolloutGroup:
        async with follower.acquire_engine(request):
            return await _worked(place, sampled, request)

    consumer = Consumer(
        inputs=(EVAL_REQUESTS, REQUESTS),
        output=ROLLOUTS,
        failures=GRADED,
        handle=answer,
        free_slots=limit_in_flight(_CAPACITY),
        is_open=follower.serves,
        excluded_inputs=follower.demand.excluded_streams,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.follow_policy_forever())
        tasks.create_task(work_forever(service, consumer))


async def grade(service: Service, place: Place) -> None:
    async def answer(_: ActiveJob, group: RolloutGroup) -> GradedGroup:
        return await _worked(place, graded, group)

    consumer = Consumer((ROLLOUTS,), GRADED, GRADED, answer, limit_in_flight(_CAPACITY))
    await work_forever(service, consumer)


async def _worked(place: Place, answer: Callable[[Any], T], message: Any) -> T:
    """The answer, after a while, so that many are in flight when something happens.

    A worker is as broken as the switches say.
    """
    if place.is_switched("crashes"):
        os.kill(os.getpid(), signal.SIGKILL)
    if place.is_switched("raises"):
        raise RuntimeError("CUDA error: this worker is broken")
    if place.switches.is_enabled("pace"):
        await asyncio.sleep(random.random() * _LONGEST_WORK_S)
    return answer(message)


MAINS: dict[str, Callable[[Service, Place], Coroutine[Any, Any, None]]] = {
    "learner": learn,
    "rollout": sample,
    "grader": grade,
}
