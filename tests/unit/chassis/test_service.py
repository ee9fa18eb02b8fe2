"""Waiting for an event: it ends with the event, with its time, and with a cancellation."""

import asyncio

import pytest

from services.chassis.service import set_within

pytestmark = pytest.mark.anyio


async def test_a_wait_ends_with_the_event_or_with_its_time() -> None:
    event = asyncio.Event()
    assert not await set_within(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await asyncio.wait_for(set_within(event, 60), 5)
    assert await set_within(event, 0)


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_that_comes_with_the_event_is_not_swallowed(turns: int) -> None:
    event = asyncio.Event()

    async def wait_and_go_on() -> None:
        await set_within(event, 60)
        await asyncio.sleep(60)

    going_on = asyncio.create_task(wait_and_go_on())
    await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    going_on.cancel()
    done, _ = await asyncio.wait({going_on}, timeout=1)
    going_on.cancel()
    assert done


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_that_comes_with_the_end_of_its_time_is_not_swallowed(
    turns: int,
) -> None:
    async def wait_and_go_on() -> None:
        await set_within(asyncio.Event(), 0.01)
        await asyncio.sleep(60)

    going_on = asyncio.create_task(wait_and_go_on())
    ending = asyncio.get_running_loop().create_future()
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.01, ending.set_result, None)
    await ending
    for _ in range(turns):
        await asyncio.sleep(0)
    going_on.cancel()
    done, _ = await asyncio.wait({going_on}, timeout=1)
    going_on.cancel()
    assert done
