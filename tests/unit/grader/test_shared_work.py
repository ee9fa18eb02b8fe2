"""One piece of work for all who ask the same at the same time."""

import asyncio
from collections.abc import Iterator

import pytest

from services.grader.shared_work import SharedWork

pytestmark = pytest.mark.anyio


class Work:
    """A piece of work that is done anew each time, once it may."""

    def __init__(self, *results: int | Exception, gate: bool = False) -> None:
        self._results: Iterator[int | Exception] = iter(results)
        self.num_cancelled = 0
        self.may = asyncio.Event()
        if not gate:
            self.may.set()

    async def __call__(self) -> int:
        result = next(self._results)
        try:
            await asyncio.sleep(0)
            await self.may.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            await asyncio.sleep(0.02)  # to be cancelled takes a while, too
            raise
        if isinstance(result, Exception):
            raise result
        return result


async def start_calls(shared: SharedWork[int], work: Work, number: int) -> list[asyncio.Task[int]]:
    calls = [asyncio.create_task(shared.run_once("?", work)) for _ in range(number)]
    for _ in range(3):  # they begin, and so does the work
        await asyncio.sleep(0)
    return calls


async def test_all_who_ask_at_one_time_share_a_result_or_an_error() -> None:
    shared = SharedWork[int]()
    work = Work(1, LookupError("nothing there"), 2)
    assert await asyncio.gather(*(shared.run_once("?", work) for _ in range(5))) == [1] * 5
    calls = (shared.run_once("?", work) for _ in range(5))
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert list(map(type, errors)) == [LookupError] * 5
    assert await shared.run_once("?", work) == 2


async def test_one_who_is_cancelled_takes_nothing_from_the_others() -> None:
    shared = SharedWork[int]()
    work = Work(1, gate=True)
    calls = await start_calls(shared, work, 3)
    calls[0].cancel()
    calls[2].cancel()
    await asyncio.wait([calls[0], calls[2]])
    work.may.set()
    assert await calls[1] == 1


async def test_what_nobody_waits_for_is_given_up_and_nobody_joins_it() -> None:
    shared = SharedWork[int]()
    work = Work(1, 2, gate=True)
    calls = await start_calls(shared, work, 3)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    work.may.set()
    assert await shared.run_once("?", work) == 2
    assert work.num_cancelled == 1


async def test_who_waits_is_let_go_when_it_is_closed() -> None:
    shared = SharedWork[int]()
    work = Work(1, gate=True)
    (call,) = await start_calls(shared, work, 1)
    await shared.close()
    with pytest.raises(asyncio.CancelledError):
        await call
