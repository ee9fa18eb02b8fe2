"""The learner's feeder on a real exchange: what a new attempt counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from protocol.exchange import Exchange
from protocol.recipe import Purpose

from services.learner.attempt import Attempt
from services.learner.supply.feeder import Feeder
from services.learner.supply.selection import Lookahead
from tests.builders import a_recipe, a_task
from tests.contract.exchange_steps import begin, claim_all
from tests.contract.line import running

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def feed(feeder: Feeder, lookahead: Lookahead) -> None:
    async with running(feeder.feed_forever()), asyncio.timeout(60):
        feeder.admit(lookahead)
        while feeder.asked < lookahead.admitted:
            await asyncio.sleep(0.005)


async def test_a_new_attempt_counts_what_the_last_one_asked_for_and_asks_it_again_for_nothing(
    exchange: Exchange,
) -> None:
    def a_feeder(attempt: int, *answered: int) -> Feeder:
        asking = Attempt(exchange, "job", attempt, a_recipe(), Path("unused"))
        return Feeder(asking, [a_task()], Purpose.TRAIN, lambda number: number in answered)

    await feed(a_feeder(await begin(exchange)), Lookahead(needs=(6,), most=100))
    asked = [delivery.message() for delivery in await claim_all(exchange)]
    assert [request.number for request in asked] == [0, 1, 2, 3, 4, 5]
    feeder = a_feeder(await exchange.begin_attempt("job"), 2)
    feeder.resume(2, await exchange.under_way("job"))
    assert feeder.asked == 6
    await feed(feeder, Lookahead(step=1, position=2, needs=(5,), most=100))
    (new,) = [delivery.message() for delivery in await claim_all(exchange)]
    assert (new.number, new.attempt) == (6, 2)
    again = feeder.request(3)
    assert (again.task, again.seed) == (asked[3].task, asked[3].seed)
