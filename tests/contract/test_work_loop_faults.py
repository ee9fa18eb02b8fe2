"""What a worker does about entries that it cannot do, and about its own faults."""

from __future__ import annotations

import asyncio

import pytest
from protocol.exchange import Exchange
from protocol.messages import ActiveJob, GradedGroup, RolloutRequest

from services.chassis.faults import Unworkable, WorkerBroken, WorkerFault
from services.chassis.service import Service
from services.chassis.work import work_forever
from tests.contract.conftest import OpenExchange
from tests.contract.stations import (
    DEPLOYMENT,
    Handle,
    answer,
    begin,
    results,
    slowly,
    station_of,
    unable,
    until_claiming,
    working,
)

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def test_an_entry_that_fails_wherever_it_runs_is_handed_on_with_its_reason(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    tries: list[str] = []

    def stumbling(name: str) -> Handle:
        async def stumble(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
            if request.number == 1:
                tries.append(name)
                raise ValueError("this one cannot be")
            return await answer(job, request)

        return stumble

    await begin(exchange, requests=3)
    async with (
        open_exchange("one") as one,
        open_exchange("other") as other,
        working(one, stumbling("one")),
        working(other, stumbling("other")),
    ):
        found = await results(exchange, 3)
    assert len(tries) == 3
    assert set(tries) == {"one", "other"}
    assert found[1] == "failures: ValueError: this one cannot be"
    assert found[0] == found[2] == "done"


async def test_what_every_worker_is_unable_to_do_is_handed_on_at_once_with_their_words(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange, requests=12)  # more than fail in a row where a worker is broken
    async with open_exchange("own") as own, working(own, unable):
        found = await results(exchange, 12)
    assert set(found.values()) == {"unworkable: no verifier is called 'my_lab.oracle'"}


async def test_what_one_worker_is_unable_to_do_is_done_by_one_who_is_able(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    await begin(exchange, requests=40)
    async with (
        open_exchange("able") as able,
        open_exchange("other") as other,
        working(able, slowly),
    ):
        await until_claiming(exchange, "able")
        async with working(other, unable):
            found = await results(exchange, 40)
    assert set(found.values()) == {"done"}


async def test_a_lone_worker_tries_again_what_failed(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    tries: list[int] = []

    async def stumble_twice(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        tries.append(request.number)
        if len(tries) < 3:
            raise ValueError("not yet")
        return await answer(job, request)

    await begin(exchange, requests=1)
    async with open_exchange("worker") as own, working(own, stumble_twice):
        assert await results(exchange, 1) == {0: "done"}


async def test_a_worker_where_everything_fails_ends_and_costs_nothing(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    ends: list[BaseException] = []

    async def never(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
        raise RuntimeError("CUDA error")

    async def restarted_forever(name: str) -> None:
        for life in range(99):
            async with open_exchange(f"{name}.{life}") as own:
                try:
                    await work_forever(Service("worker", DEPLOYMENT, own), station_of(never))
                except WorkerBroken as error:
                    ends.append(error)

    await begin(exchange, requests=80)
    async with open_exchange("good") as good, working(good, slowly):
        bad = asyncio.create_task(restarted_forever("bad-seat"))
        found = await results(exchange, 80)
        bad.cancel()
        await asyncio.gather(bad, return_exceptions=True)
    assert set(found.values()) == {"done"}
    assert "groups in a row failed in the worker" in str(ends[0])


async def test_a_lone_worker_where_everything_fails_costs_nothing_and_says_so(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    async def never(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
        raise RuntimeError("CUDA error")

    await begin(exchange, requests=8)
    for life in range(5):
        async with open_exchange(f"seat.{life}") as own:
            with pytest.raises(WorkerBroken):
                await work_forever(Service("worker", DEPLOYMENT, own), station_of(never, 8))
    async with open_exchange("seat.5") as own, working(own, answer):
        assert set((await results(exchange, 8)).values()) == {"done"}
    events = [event for _, event in await exchange.events("job")]
    assert {event.level for event in events} == {"warn"}
    assert "groups in a row failed in the worker seat.0" in events[0].message


async def test_what_no_worker_can_do_is_handed_on_at_once(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    tries: list[int] = []

    async def refuse(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
        tries.append(request.number)
        raise Unworkable("the prompt does not fit")

    await begin(exchange, requests=9)
    async with open_exchange("worker") as own, working(own, refuse):
        found = await results(exchange, 9)
    assert set(found.values()) == {"unworkable: the prompt does not fit"}
    assert sorted(tries) == list(range(9))


async def test_a_fault_of_the_worker_is_never_the_entrys(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    tries: list[int] = []

    async def recover(job: ActiveJob, request: RolloutRequest) -> GradedGroup:
        tries.append(request.number)
        if len(tries) < 12:
            raise WorkerFault("no process can be forked")
        return await answer(job, request)

    await begin(exchange, requests=1)
    async with open_exchange("worker") as own, working(own, recover):
        assert await results(exchange, 1) == {0: "done"}


async def test_a_result_that_cannot_be_encoded_is_a_failure(
    exchange: Exchange, open_exchange: OpenExchange
) -> None:
    tries: list[int] = []

    async def not_a_number(_: ActiveJob, request: RolloutRequest) -> GradedGroup:
        tries.append(request.number)
        group = GradedGroup(purpose=request.purpose, number=request.number, failure="x")
        return group.model_copy(update={"grading_seconds": float("nan")})

    await begin(exchange, requests=1)
    async with open_exchange("worker") as own, working(own, not_a_number):
        found = await results(exchange, 1)
    assert found[0].startswith("failures: ValueError")
    assert len(tries) == 3
