"""The slots of a judge: who waits to be alone, and who is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager

import pytest

from services.grader.judge.judge import Slots
from tests.unit.grader.judge.asked import ended

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_who_waits_to_be_alone_is_passed_by_nobody() -> None:
    slots, order = Slots(3), []

    async def enter(name: str, taken: AbstractAsyncContextManager[None]) -> None:
        async with taken:
            order.append(name)
            await asyncio.sleep(0.01)
            order.append(name.upper())

    names = ["a", "b", "alone c", "d", "e", "alone f", "g"]
    taken = [slots.taken(alone="alone" in name) for name in names]
    await ended(*map(enter, names, taken), within_s=2)
    rounds = [["a", "b"], ["alone c"], ["d", "e"], ["alone f"], ["g"]]
    assert order == [each for names in rounds for each in (*names, *map(str.upper, names))]


@pytest.mark.parametrize("seed", range(8))
async def test_slots_are_neither_lost_nor_doubled_by_cancelling(seed: int) -> None:
    chance, slots = random.Random(seed), Slots(3)
    inside, inside_alone = 0, 0

    async def visit() -> None:
        nonlocal inside, inside_alone
        is_alone = chance.random() < 0.2
        await asyncio.sleep(chance.random() * 0.05)
        async with slots.taken(alone=is_alone):
            inside, inside_alone = inside + 1, inside_alone + is_alone
            try:
                assert inside <= (1 if inside_alone else 3)
                await asyncio.sleep(chance.random() * 0.002)
            finally:
                inside, inside_alone = inside - 1, inside_alone - is_alone

    visits = [asyncio.create_task(visit()) for _ in range(200)]
    for _ in range(100):
        await asyncio.sleep(0)
        await asyncio.sleep(chance.random() * 0.001)
        chance.choice(visits).cancel()
    results = await ended(*visits)
    assert all(each is None or isinstance(each, asyncio.CancelledError) for each in results)
    assert results.count(None) > 50
    async with asyncio.timeout(60), slots.taken(alone=True):
        pass
