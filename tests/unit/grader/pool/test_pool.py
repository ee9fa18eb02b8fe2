"""The pool keeps its word whatever a worker does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.grader.pool import pool as pool_module
from services.grader.pool import Cause, Failed, NoWorkerError, Pool, Value
from services.grader.pool.pool import BACKLOG, KILLED

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HOSTILE = "tests.unit.grader.hostile"
SIZE = 3


@pytest.fixture(scope="module")
async def pool(anyio_backend: str) -> AsyncIterator[Pool]:
    async with Pool(SIZE) as pool:
        yield pool


@pytest.fixture
async def own_pool(anyio_backend: str) -> AsyncIterator[Pool]:
    """A pool that the test may close."""
    async with Pool(SIZE) as pool:
        yield pool


def forkserver(pool: Pool) -> subprocess.Popen[bytes]:
    assert pool._server._process is not None
    return pool._server._process


async def pids(pool: Pool, size: int = SIZE) -> set[int]:
    """The pids of all workers: each call holds one of them while the others are asked."""
    calls = (pool.run(f"{HOSTILE}:nap_and_tell", 0.15, deadline_s=5) for _ in range(size))
    return {outcome.value for outcome in await asyncio.gather(*calls)}  # type: ignore[misc,union-attr]


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until_gone(gone: set[int], within_s: float = 3.0) -> None:
    async with asyncio.timeout(within_s):
        while any(map(is_running, gone)):
            await asyncio.sleep(0.01)


async def test_a_call_returns_what_the_function_returned(pool: Pool) -> None:
    assert await pool.run("math:sqrt", 9, deadline_s=5) == Value(3.0)


async def test_text_travels_unharmed_even_with_half_a_surrogate_pair(pool: Pool) -> None:
    text = "π\x00\ud800" + "x" * 3_000_000
    assert await pool.run("builtins:str", text, deadline_s=5) == Value(text)


@pytest.mark.parametrize(
    ("hostile", "cause", "detail"),
    [
        ("spin", Cause.TIMEOUT, "not done after 0.3 s"),
        ("hang_in_c", Cause.TIMEOUT, "not done after 0.3 s"),
        ("segfault", Cause.CRASH, "SIGSEGV"),
        ("vanish", Cause.CRASH, "exit status 3"),
        ("hoard", Cause.MEMORY, "over the memory limit"),
        ("blunder", Cause.ERROR, "ValueError: on purpose"),
        ("unspeakable", Cause.ERROR, "TypeError: Object of type object is not JSON serializable"),
        ("missing", Cause.ERROR, f"AttributeError: module '{HOSTILE}' has no attribute 'missing'"),
    ],
)
async def test_a_failure_names_its_cause_and_leaves_the_pool_at_full_strength(
    pool: Pool, hostile: str, cause: Cause, detail: str
) -> None:
    before = KILLED.labels(cause.value)._value.get()
    outcome = await pool.run(f"{HOSTILE}:{hostile}", deadline_s=0.3)
    assert outcome == Failed(cause, detail)
    assert KILLED.labels(cause.value)._value.get() - before == (cause is not Cause.ERROR)
    assert len(await pids(pool)) == SIZE


@pytest.mark.parametrize("hostile", ["spin", "hang_in_c"])
async def test_a_deadline_is_kept(pool: Pool, hostile: str) -> None:
    started = time.monotonic()
    await pool.run(f"{HOSTILE}:{hostile}", deadline_s=0.4)
    assert 0.4 <= time.monotonic() - started < 5


async def test_a_worker_that_times_out_is_gone(pool: Pool) -> None:
    before = await pids(pool)
    await pool.run(f"{HOSTILE}:hang_in_c", deadline_s=0.1)
    replaced = before - await pids(pool)
    assert len(replaced) == 1
    await until_gone(replaced)


async def test_a_hang_costs_other_callers_nothing(pool: Pool) -> None:
    hang = asyncio.create_task(pool.run(f"{HOSTILE}:spin", deadline_s=60))
    await asyncio.sleep(0.05)
    for number in range(100):
        assert await pool.run("math:sqrt", number * number, deadline_s=30) == Value(number)
    assert not hang.done()
    hang.cancel()


async def test_callers_are_served_in_the_order_in_which_they_came() -> None:
    served: list[int] = []

    async def call(number: int) -> None:
        await pool.run("math:sqrt", 4, deadline_s=5)
        served.append(number)

    async with Pool(1) as pool:
        await asyncio.gather(*map(call, range(50)))
    assert served == list(range(50))


async def test_a_cancelled_call_kills_its_own_worker_only(pool: Pool) -> None:
    before = await pids(pool)
    doomed = asyncio.create_task(pool.run(f"{HOSTILE}:hang_in_c", deadline_s=60))
    others = [
        asyncio.create_task(pool.run(f"{HOSTILE}:nap_and_tell", 0.3, deadline_s=5))
        for _ in range(SIZE - 1)
    ]
    await asyncio.sleep(0.1)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    survivors = {outcome.value for outcome in await asyncio.gather(*others)}  # type: ignore[union-attr]
    after = await pids(pool)
    assert survivors == before & after
    await until_gone(before - after)


async def test_a_call_cancelled_in_the_queue_costs_no_worker(pool: Pool) -> None:
    before = await pids(pool)
    running = [
        asyncio.create_task(pool.run(f"{HOSTILE}:nap_and_tell", 0.3, deadline_s=5))
        for _ in range(SIZE)
    ]
    await asyncio.sleep(0.05)
    queued = asyncio.create_task(pool.run("math:sqrt", 4, deadline_s=5))
    await asyncio.sleep(0.05)
    assert BACKLOG.labels("no")._value.get() == 1
    queued.cancel()
    await asyncio.gather(*running)
    assert BACKLOG.labels("no")._value.get() == 0
    assert await pids(pool) == before


async def test_random_cancellations_never_lose_a_worker(pool: Pool) -> None:
    for round_number in range(40):
        tasks = [asyncio.create_task(pool.run("time:sleep", 0.002, deadline_s=5)) for _ in range(8)]
        await asyncio.sleep(0.0007 * (round_number % 7))
        for task in tasks[round_number % 3 :: 2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert len(await pids(pool)) == SIZE


async def test_a_suspect_gets_a_worker_of_its_own_and_no_other_makes_way_for_it(
    pool: Pool,
) -> None:
    before = await pids(pool)
    outcomes = [await pool.run("os:getpid", deadline_s=5, suspect=True) for _ in range(2)]
    guests = {int(str(outcome.value)) for outcome in outcomes if isinstance(outcome, Value)}
    assert len(guests) == 2
    assert await pids(pool) == before
    assert not guests & before
    await until_gone(guests)


async def test_workers_are_recycled_after_their_share_of_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_CALLS_PER_WORKER", 3)
    async with Pool(1) as pool:
        outcomes = [await pool.run("os:getpid", deadline_s=5) for _ in range(9)]
    seen = [outcome.value for outcome in outcomes if isinstance(outcome, Value)]
    assert [seen.count(pid) for pid in dict.fromkeys(seen)] == [3, 3, 3]


async def test_the_pool_survives_the_death_of_its_forkserver(pool: Pool) -> None:
    before = await pids(pool)
    under_way = asyncio.create_task(pool.run(f"{HOSTILE}:nap_and_tell", 0.3, deadline_s=5))
    await asyncio.sleep(0.05)
    os.kill(forkserver(pool).pid, signal.SIGKILL)
    assert await pool.run("math:sqrt", 4, deadline_s=5) == Value(2.0)
    outcome = await under_way
    assert isinstance(outcome, Value)
    assert outcome.value not in before
    await until_gone(before)
    assert len(await pids(pool)) == SIZE


async def test_closing_leaves_no_process_and_gives_no_verdict(own_pool: Pool) -> None:
    processes = {*await pids(own_pool), forkserver(own_pool).pid}
    calls = [
        asyncio.create_task(own_pool.run(f"{HOSTILE}:spin", deadline_s=60)) for _ in range(2 * SIZE)
    ]
    await asyncio.sleep(0.05)
    await own_pool.__aexit__()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, NoWorkerError) for outcome in outcomes)
    await until_gone(processes)


async def test_closing_while_a_forkserver_is_replaced_leaves_no_process() -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    async with Pool(1, warm_ups=[f"{HOSTILE}:tarry"]) as pool:
        os.kill(forkserver(pool).pid, signal.SIGKILL)
        forkserver(pool).wait()
        await asyncio.sleep(0)
        call = asyncio.create_task(pool.run("os:getpid", deadline_s=5))
        await asyncio.sleep(0.15)
        assert not call.done()
    with pytest.raises(NoWorkerError):
        await call
    assert children.read_text() == before


async def test_a_warm_up_that_fails_stops_the_pool_at_its_start() -> None:
    with pytest.raises(NoWorkerError, match="hostile:vanish"):
        async with Pool(1, warm_ups=[f"{HOSTILE}:vanish"]):
            pass


async def test_a_signal_to_the_whole_group_does_not_end_a_call(pool: Pool) -> None:
    pid = (await pids(pool)).pop()
    call = asyncio.gather(
        *(pool.run(f"{HOSTILE}:nap_and_tell", 0.3, deadline_s=5) for _ in range(SIZE))
    )
    await asyncio.sleep(0.1)
    for target in (pid, forkserver(pool).pid):
        os.kill(target, signal.SIGTERM)
        os.kill(target, signal.SIGINT)
    assert all(isinstance(outcome, Value) for outcome in await call)


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(ValueError, match="size=0"):
        Pool(0)


PARENT = """
import asyncio
from services.grader.pool import Pool

async def main():
    async with Pool(2) as pool:
        waiting = pool.run("tests.unit.grader.hostile:nap_and_tell", 0.2, deadline_s=9)
        outcomes = await asyncio.gather(waiting, pool.run("os:getpid", deadline_s=9))
        print(pool._server._process.pid, *(outcome.value for outcome in outcomes), flush=True)
        await asyncio.gather(
            pool.run("tests.unit.grader.hostile:hang_in_c", deadline_s=600),
            pool.run("tests.unit.grader.hostile:spin", deadline_s=600),
        )

asyncio.run(main())
"""


async def test_a_killed_parent_leaves_no_orphan_even_in_the_middle_of_a_c_call() -> None:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    children = {int(word) for word in parent.stdout.readline().split()}
    assert len(children) == 3
    time.sleep(0.2)
    assert all(map(is_running, children))
    parent.kill()
    parent.wait()
    await until_gone(children, within_s=2.0)
