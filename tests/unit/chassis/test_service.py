"""Waiting for an event: it ends with the event, with its time, and with a cancellation."""

import asyncio

import pytest

from services.chassis.service import set_within

pytestmark = pytest.mark.anyio


async def test_a_wait_ends_with_the_event_or_with_its_time() -> None:
    event = asyncio.Event()
    assert not await set_within(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await set_within(event, 3600)
    assert await set_within(event, 0)


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("by_time", [False, True])
async def test_a_cancellation_that_comes_with_the_end_of_the_wait_is_not_swallowed(
    turns: int, by_time: bool
) -> None:
    event = asyncio.Event()

    async def wait_and_go_on() -> None:
        await set_within(event, 0.01 if by_time else 3600)
        await asyncio.sleep(3600)

    going_on = asyncio.create_task(wait_and_go_on())
    ending = asyncio.get_running_loop().create_future()
    await asyncio.sleep(0)
    if by_time:
        asyncio.get_running_loop().call_later(0.01, ending.set_result, None)
        await ending
    else:
        event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    going_on.cancel()
    done, _ = await asyncio.wait({going_on}, timeout=30)
    going_on.cancel()
    assert done
