"""What stands still is told by real parts on a real server: as words, metric and event.

Which words and edge each moment has is a table of `tests/unit/gateway/test_stalls.py`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from prometheus_client import REGISTRY
from protocol.exchange import Exchange
from protocol.messages import Doing, Failure, GradedGroup
from protocol.streams import GRADED, ROLLOUTS

from services.chassis.consumer import Consumer, limit_in_flight, work_forever
from services.chassis.faults import StartupFailed, WorkerFault
from services.chassis.service import Service, StatusReporter, run_with_status
from services.gateway.core.watch.stalls import Edge
from services.gateway.core.watch.watchdog import Watchdog
from tests.builders import a_group, a_job_record, a_request, a_status, as_dict
from tests.contract.attempts import Learner, until
from tests.contract.conftest import OpenExchange
from tests.contract.exchange_steps import (
    DEPLOYMENT,
    activate,
    an_active_job,
    claim_one,
    record_of,
    running,
)
from tests.contract.valkey_server import Server

LOOK_S = 0.1


def exported() -> set[str]:
    """The edges of the stall that is exported."""
    labels = {"job": "job", "recipe": "small"}
    return {
        edge
        for edge in Edge
        if REGISTRY.get_sample_value("weir_job_stalled", labels | {"edge": edge.value})
    }


async def edges(exchange: Exchange, kind: str) -> list[Any]:
    """The edges in the events of a kind."""
    rows = await exchange.events("job")
    return [as_dict(event)["edge"] for _, event in rows if event.id.startswith(kind)]


async def look_forever(dog: Watchdog) -> None:
    while True:
        await dog.look(time.monotonic())
        await asyncio.sleep(LOOK_S)


async def stalled(exchange: Exchange, edge: Edge) -> None:
    """Wait until an event says so."""

    async def is_in_event() -> bool:
        return edge in await edges(exchange, "stall:")

    await until(is_in_event)


async def test_a_job_without_a_rollout_says_so_once_and_that_it_moves_again(
    exchange: Exchange, learner: Learner
) -> None:
    dog = Watchdog(exchange, 2.0, LOOK_S)
    learner.answers_training = learner.answers_evaluations = False
    await learner.submit(steps=1000)
    async with (
        learner.attempting(),
        running(StatusReporter(learner.service).report_until_ended(), look_forever(dog)),
    ):
        await stalled(exchange, Edge.NO_ROLLOUT)
        assert exported() == {Edge.NO_ROLLOUT}
        assert "train:0" in dog.progress_object(await learner.record())["because"]
        await asyncio.sleep(3 * LOOK_S)
        stalls = await edges(exchange, "stall:")
        assert len(stalls) == len(set(stalls))
        learner.answers_training = True
        await until(lambda: edges(exchange, "moves:"))
        assert len(await edges(exchange, "moves:")) == 1
        assert exported() == set()


async def test_a_grader_that_claims_and_releases_and_fails_each_time_is_a_stall_with_its_name(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async def fail(*_: object) -> GradedGroup:
        raise WorkerFault("no process can be forked")

    async def wait(service: Service) -> None:
        with service.activity.during(Doing.WAITS_FOR_GROUPS, waits_for=lambda: ["train:0"]):
            await asyncio.Event().wait()

    dog = Watchdog(exchange, 0.6, LOOK_S)
    await exchange.update_job("job", await activate(exchange), state="running")
    await exchange.ask(a_request())
    await exchange.hand_off(await claim_one(exchange), ROLLOUTS, a_group())
    stage = Consumer(
        (ROLLOUTS,),
        GRADED,
        GRADED,
        fail,
        limit_in_flight(4),
        doing=Doing.GRADES,
    )
    async with open_exchange("grader-host-1.1") as own:
        learner = Service("learner", DEPLOYMENT, exchange)
        grader = Service("grader", DEPLOYMENT, own)
        async with running(
            run_with_status(learner, wait),
            run_with_status(grader, lambda service: work_forever(service, stage)),
            look_forever(dog),
        ):
            await stalled(exchange, Edge.GRADING)
    because = dog.progress_object(await record_of(exchange))["because"]
    assert "grader-host fails at every group: no process" in because


async def test_a_job_has_its_place_in_the_queue_until_it_is_active(exchange: Exchange) -> None:
    def list_places() -> list[float | None]:
        job_ids = ("job", "second", "third")
        return [
            REGISTRY.get_sample_value("weir_job_queue_place", {"job": job_id}) for job_id in job_ids
        ]

    dog = Watchdog(exchange, 2.0, LOOK_S)
    for job_id in ("job", "second", "third"):
        await exchange.submit(a_job_record(job_id))
    await dog.look(time.monotonic())
    assert list_places() == [1, 2, 3]
    await exchange.activate(an_active_job("job", await exchange.begin_attempt("job")))
    await dog.look(time.monotonic())
    assert list_places() == [None, 1, 2]


async def test_lives_that_were_never_ready_are_counted_and_told_now_and_then(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async def fail(_: Service) -> None:
        raise StartupFailed("no kernel for this GPU", "job")

    await activate(exchange)
    for life in range(5):
        async with open_exchange(f"rollout-host-1.{life}") as own:
            with pytest.raises(StartupFailed):
                await run_with_status(Service("rollout", DEPLOYMENT, own), fail)
    (status,) = (await exchange.statuses()).values()
    failure = Failure(words="no kernel for this GPU", job_id="job")
    assert (status.starts, status.failure) == (5, failure)
    events = [as_dict(event) for _, event in await exchange.events("job")]
    assert [event["attempt"] for event in events] == [1, 2, 4]


async def test_a_status_is_of_a_replica_and_goes_with_a_process_that_leaves_in_good_order(
    server: Server, exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async def wait(service: Service) -> None:
        service.readiness.set(True)
        await until(exchange.statuses)
        (status,) = (await exchange.statuses()).values()
        assert (status.replica, status.name, status.doing) == ("replica-1", "replica", Doing.STARTS)
        service.stop()

    server.exhaust_memory()
    async with open_exchange("replica-1.7") as own:
        await run_with_status(Service("worker", DEPLOYMENT, own), wait)
    assert await exchange.statuses() == {}


async def test_a_process_stands_still_while_its_work_does_whether_or_not_it_shows_life(
    exchange: Exchange,
) -> None:
    dog = Watchdog(exchange, 15.0)
    still = list[float]()
    teller = StatusReporter(Service("rollout", DEPLOYMENT, exchange))
    for look, moved in enumerate((7, 7, 7, 8, 8)):
        teller.service.activity.moved = lambda moved=moved: moved
        await exchange.show_status(teller.status())
        await dog.look(100.0 + 2 * look)
        still.append(dog.snapshot.processes[0].still_s)
    assert still == [0, 2, 4, 0, 2]


async def test_two_stacks_in_one_database_are_told_apart_from_a_process_that_was_replaced(
    exchange: Exchange, caplog: pytest.LogCaptureFixture
) -> None:
    dog = Watchdog(exchange, 15.0)
    old, new = "rollout-a-1", "rollout-b-2"
    warnings = list[int]()
    for beats, replicas in enumerate([[old]] * 2 + [[new]] * 3 + [[old, new]] * 3):
        for replica in replicas:
            await exchange.show_status(a_status("rollout", replica=replica, beats=beats))
        await dog.look(float(beats))
        warnings.append(caplog.text.count("two stacks"))
    assert warnings == [0, 0, 0, 0, 0, 0, 1, 1]
