"""What runs on the seats: the product's services around the stand-ins."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from protocol.exchange import connect
from protocol.messages import ActiveJob, GradedGroup, RolloutGroup, RolloutRequest
from protocol.streams import EVAL_REQUESTS, GRADED, REQUESTS, ROLLOUTS

from services.chassis.logs import set_up_logs
from services.chassis.parent import die_with_parent
from services.chassis.service import Service
from services.chassis.work import Station, work_forever
from services.learner.job import work_on_one_job
from services.rollout.policy_sync import PolicyFollower
from tests.chaos.broken_disk import break_disk
from tests.chaos.seats import LEARNER, Place
from tests.chaos.stand_ins import HashEngine, HashTeam, graded, group_for

_CAPACITY = 4
_LONGEST_WORK_S = 0.3
T = TypeVar("T")
log = logging.getLogger(__name__)


def live(place: Place) -> None:
    """One life of one process: run the seat's service until it ends or is told to stop."""
    die_with_parent()
    with place.log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    set_up_logs(place.seat.name, "INFO")
    log.info("a life begins", extra={"pid": os.getpid()})
    if place.seat == LEARNER:
        break_disk(place.switches, below=place.data)
    asyncio.run(_serve(place))


async def _serve(place: Place) -> None:
    seat, host = place.seat, socket.gethostname()
    me = f"{seat.role}-{host}-{seat.port}.{os.getpid()}-{secrets.token_hex(3)}"
    async with connect(place.url, me=me) as exchange:
        service = Service(seat.role, place.deployment(), exchange)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.stopping.set)
        await _MAINS[seat.role](service, place)


async def _learn(service: Service, place: Place) -> None:
    team = HashTeam(place.switches)
    await work_on_one_job(service, team)
    await team.leave()


async def _sample(service: Service, place: Place) -> None:
    async def start_engine(*_: Any) -> Any:
        return HashEngine(place.switches, place.seat.name)

    follower = PolicyFollower(service, start_engine)

    async def sample(_: ActiveJob, request: RolloutRequest) -> RolloutGroup:
        await follower.engine_for(request)
        await _work(request.seed, place)
        return group_for(request)

    station = Station(
        inputs=(EVAL_REQUESTS, REQUESTS),
        output=ROLLOUTS,
        failures=GRADED,
        handle=_misbehaving(sample, place),
        capacity=_CAPACITY,
        is_open=follower.serves,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follower.follow_policy_forever())
        tasks.create_task(work_forever(service, station))


async def _grade(service: Service, place: Place) -> None:
    async def grade(_: ActiveJob, group: RolloutGroup) -> GradedGroup:
        await _work(-group.request.seed, place)
        return graded(group)

    station = Station((ROLLOUTS,), GRADED, GRADED, _misbehaving(grade, place), _CAPACITY)
    await work_forever(service, station)


_MAINS: dict[str, Callable[[Service, Place], Awaitable[None]]] = {
    "learner": _learn,
    "rollout": _sample,
    "grader": _grade,
}


async def _work(seed: int, place: Place) -> None:
    """Be busy with an entry for a while, so that many are in flight when something happens."""
    if place.switches.is_on("pace"):
        await asyncio.sleep(random.Random(seed).random() * _LONGEST_WORK_S)


def _misbehaving(
    handle: Callable[[ActiveJob, Any], Awaitable[T]], place: Place
) -> Callable[[ActiveJob, Any], Awaitable[T]]:
    """A worker that does what it should, unless a switch says that it is broken."""

    async def handle_or_break(job: ActiveJob, message: Any) -> T:
        if place.switches.is_on("crashes", place.seat.name):
            os.kill(os.getpid(), signal.SIGKILL)
        if place.switches.is_on("raises", place.seat.name):
            raise RuntimeError("CUDA error: this worker is broken")
        return await handle(job, message)

    return cast(Callable[[ActiveJob, Any], Awaitable[T]], handle_or_break)
