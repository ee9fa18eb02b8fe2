"""Who gets a worker next: first come, first served, suspects last and never all workers."""

from __future__ import annotations

import asyncio

import pytest

from services.grader.pool import Pool, Value
from services.grader.pool_seats import Seats

pytestmark = pytest.mark.anyio

HOSTILE = "tests.unit.grader.hostile"


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def ask(seats: Seats[int], *, suspect: bool = False) -> asyncio.Task[int]:
    return asyncio.create_task(seats.take(suspect=suspect))


async def test_suspects_hold_at_most_half_of_the_seats() -> None:
    for size, most in ((1, 1), (2, 1), (3, 1), (4, 2), (7, 3)):
        seats = Seats(range(size))
        suspects = [ask(seats, suspect=True) for _ in range(10)]
        await settle()
        seated = [task for task in suspects if task.done()]
        assert len(seated) == most
        seats.give_back(seated[0].result(), suspect=True)
        await settle()
        assert sum(task.done() for task in suspects) == most + 1
        for task in suspects:
            task.cancel()


async def test_a_suspect_waits_until_nobody_else_does() -> None:
    seats = Seats([0])
    seat = await seats.take(suspect=False)
    suspect = ask(seats, suspect=True)
    await settle()
    others = [ask(seats) for _ in range(3)]
    for other in others:
        await settle()
        seats.give_back(seat, suspect=False)
        assert await other == seat
        assert not suspect.done()
    seats.give_back(seat, suspect=False)
    assert await suspect == seat


async def test_whoever_is_cancelled_leaves_the_queue() -> None:
    seats = Seats([0])
    seat = await seats.take(suspect=False)
    impatient, patient = ask(seats), ask(seats)
    await settle()
    impatient.cancel()
    seats.give_back(seat, suspect=False)
    assert await patient == seat


async def test_all_are_free_when_nobody_sits_or_waits() -> None:
    seats = Seats([0, 1])
    first, second = await seats.take(suspect=True), ask(seats, suspect=True)
    free = asyncio.create_task(seats.all_free())
    await settle()
    seats.give_back(first, suspect=True)
    await settle()
    assert second.done()
    assert not free.done()
    seats.give_back(second.result(), suspect=True)
    assert sorted(await asyncio.wait_for(free, 1)) == [0, 1]


async def test_a_seat_that_comes_with_a_cancellation_is_given_back() -> None:
    for suspect in (False, True):
        seats = Seats([0])
        seat = await seats.take(suspect=False)
        unlucky = ask(seats, suspect=suspect)
        await settle()
        seats.give_back(seat, suspect=False)
        unlucky.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unlucky
        assert await asyncio.wait_for(seats.all_free(), 1) == [0]
        assert await asyncio.wait_for(seats.take(suspect=True), 1) == 0


async def test_a_hundred_hanging_suspects_never_block_the_others() -> None:
    async with Pool(2) as pool:
        hanging = [
            asyncio.create_task(pool.run("time:sleep", 60, deadline_s=60, suspect=True))
            for _ in range(100)
        ]
        await asyncio.sleep(0.05)
        for number in range(50):
            outcome = await pool.run("math:sqrt", number * number, deadline_s=5)
            assert outcome == Value(number)
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()


async def test_suspects_get_their_turn_one_by_one() -> None:
    async with Pool(2) as pool:
        calls = [
            pool.run(f"{HOSTILE}:nap_and_tell", 0.01, deadline_s=5, suspect=True) for _ in range(6)
        ]
        outcomes = await asyncio.gather(*calls)
    pids = [outcome.value for outcome in outcomes if isinstance(outcome, Value)]
    assert len(set(map(str, pids))) == 6
