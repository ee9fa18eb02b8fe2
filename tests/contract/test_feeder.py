"""The learner's feeder on a real exchange: how far it asks, and what a new attempt counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from protocol.exchange import Exchange
from protocol.messages import RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import REQUESTS

from services.learner.attempt import Attempt
from services.learner.supply.feeder import Feeder
from services.learner.supply.selection import Lookahead
from tests.builders import a_recipe, a_task
from tests.contract.exchange_steps import begin, running

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

RECIPE = a_recipe(training={"steps": 9, "groups_per_step": 2, "max_staleness": 1})
TASKS = [a_task(id=f"task-{index}") for index in range(5)]


def a_feeder(
    exchange: Exchange, attempt: int = 1, answered: frozenset[int] = frozenset()
) -> Feeder:
    asking = Attempt(exchange, "job", attempt, RECIPE, Path("unused"))
    return Feeder(asking, TASKS, Purpose.TRAIN, lambda number: number in answered)


async def until_asked(feeder: Feeder, number: int) -> None:
    async with asyncio.timeout(60):
        while feeder.asked < number:
            await asyncio.sleep(0.005)


async def requests(exchange: Exchange) -> list[RolloutRequest]:
    claimed = await exchange.claim((REQUESTS,), "job", count=100, wait_s=0.01)
    return [delivery.message() for delivery in claimed]


async def test_it_asks_as_far_as_the_lookahead_says_and_for_weights_fresh_enough(
    exchange: Exchange,
) -> None:
    await begin(exchange)
    feeder = a_feeder(exchange)
    async with running(feeder.feed_forever()):
        feeder.admit(Lookahead(step=0, position=0, needs=(2, 2), most=100))
        await until_asked(feeder, 4)
        first = await requests(exchange)
        feeder.admit(Lookahead(step=4, position=3, needs=(2, 2), most=100))
        await until_asked(feeder, 7)
        second = await requests(exchange)
    assert [(r.number, r.step, r.min_version) for r in first] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 1, 0),
        (3, 1, 0),
    ]
    assert [(r.number, r.step, r.min_version) for r in second] == [(4, 4, 3), (5, 5, 4), (6, 5, 4)]
    assert sorted(r.task.id for r in [*first, *second][:5]) == [task.id for task in TASKS]


async def test_the_step_that_is_expected_never_falls_with_the_number(exchange: Exchange) -> None:
    feeder = a_feeder(exchange)
    feeder.admit(Lookahead(step=4, position=0, needs=(1, 1), most=100))
    assert [feeder.request(number).step for number in (0, 1)] == [4, 5]
    feeder.admit(Lookahead(step=4, position=1, needs=(3, 1), most=100))
    assert [feeder.request(number).step for number in (2, 3, 4)] == [5, 5, 5]


async def test_a_new_attempt_counts_what_the_last_one_asked_for_and_asks_it_again_for_nothing(
    exchange: Exchange,
) -> None:
    await begin(exchange)
    last = a_feeder(exchange)
    async with running(last.feed_forever()):
        last.admit(Lookahead(step=0, position=0, needs=(6,), most=100))
        await until_asked(last, 6)
    asked = await requests(exchange)
    attempt = await exchange.begin_attempt("job")

    feeder = a_feeder(exchange, attempt, answered=frozenset({2}))
    feeder.resume(2, await exchange.under_way("job"))
    assert feeder.asked == 6
    async with running(feeder.feed_forever()):
        feeder.admit(Lookahead(step=1, position=2, needs=(5,), most=100))
        await until_asked(feeder, 7)
    (new,) = await requests(exchange)
    assert (new.number, new.attempt) == (6, 2)
    again = feeder.request(3)
    assert (again.task, again.seed) == (asked[3].task, asked[3].seed)
