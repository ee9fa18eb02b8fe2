"""The pool keeps its word whatever a worker does."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from services.grader.pool import Cause, Failed, NoWorkerError, Pool, Value, processes
from services.grader.pool import pool as pool_module
from services.grader.pool.pool import BACKLOG, KILLED
from services.grader.pool.processes import ALIVE
from services.grader.pool.worker import MAX_LINE_BYTES

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HOSTILE = "tests.unit.grader.hostile"
NAP = f"{HOSTILE}:nap_and_tell"
SIZE = 3


@pytest.fixture(scope="module")
async def pool(anyio_backend: str) -> AsyncIterator[Pool]:
    async with Pool(SIZE) as pool:
        yield pool


def forkserver(pool: Pool) -> subprocess.Popen[bytes]:
    assert pool._server._process is not None
    return pool._server._process


def children_of_this() -> str:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()


async def told(calls: Iterable) -> set[int]:
    """The pids that these calls have told."""
    return {outcome.value for outcome in await asyncio.gather(*calls)}


def naps(pool: Pool, number: int = SIZE, seconds: float = 0.15) -> list[asyncio.Task]:
    """So many calls at once; as long as all workers nap, none of them serves twice."""
    return [asyncio.create_task(pool.run(NAP, seconds, deadline_s=5)) for _ in range(number)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until_gone(gone: set[int]) -> None:
    async with asyncio.timeout(3):
        while any(map(is_running, gone)):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("text", ["", "π\x00\ud800" + "x" * 3_000_000])
async def test_a_call_returns_what_the_function_returned(pool: Pool, text: str) -> None:
    assert await pool.run("builtins:str", text, deadline_s=5) == Value(text)


@pytest.mark.parametrize(
    ("hostile", "cause", "detail"),
    [
        ("spin", Cause.TIMEOUT, "not done after 0.3 s"),
        ("hang_in_c", Cause.TIMEOUT, "not done after 0.3 s"),
        ("segfault", Cause.CRASH, "SIGSEGV"),
        ("vanish", Cause.CRASH, "exit status 3"),
        ("hang_up", Cause.CRASH, "its answer cannot be read"),
        ("hoard", Cause.MEMORY, "over the memory limit"),
        ("nest", Cause.ERROR, "TypeError: nest() missing 1 required positional argument: 'depth'"),
        ("Path", Cause.ERROR, "TypeError: Object of type PosixPath is not JSON serializable"),
        ("missing", Cause.ERROR, f"AttributeError: module '{HOSTILE}' has no attribute 'missing'"),
    ],
)
async def test_a_failure_names_its_cause_and_leaves_the_pool_at_full_strength(
    pool: Pool, hostile: str, cause: Cause, detail: str
) -> None:
    before, killed = await told(naps(pool)), KILLED.labels(cause.value)._value.get()
    started = time.monotonic()
    outcome = await pool.run(f"{HOSTILE}:{hostile}", deadline_s=0.3)
    assert outcome == Failed(cause, detail)
    assert (time.monotonic() - started >= 0.3) is (cause is Cause.TIMEOUT)
    assert time.monotonic() - started < 5
    assert KILLED.labels(cause.value)._value.get() - killed == (cause is not Cause.ERROR)
    replaced = before - await told(naps(pool))
    assert len(replaced) == (cause is not Cause.ERROR)
    await until_gone(replaced)


@pytest.mark.parametrize(("function", "number", "suspect"), [("spin", 1, 0), ("hang_in_c", 100, 1)])
async def test_hangs_cost_other_callers_nothing(
    pool: Pool, function: str, number: int, suspect: bool
) -> None:
    hang = f"{HOSTILE}:{function}"
    async with asyncio.TaskGroup() as tasks:
        calls = [pool.run(hang, deadline_s=60, suspect=suspect) for _ in range(number)]
        hanging = [tasks.create_task(call) for call in calls]
        await asyncio.sleep(0.05)
        for root in range(50):
            assert await pool.run("math:sqrt", root * root, deadline_s=30) == Value(root)
        for task in hanging:
            assert task.cancel()


async def test_callers_are_served_in_the_order_in_which_they_came() -> None:
    served: list[int] = []

    async def call(number: int) -> None:
        await pool.run("math:sqrt", 4, deadline_s=5)
        served.append(number)

    async with Pool(1) as pool:
        await asyncio.gather(*map(call, range(50)))
    assert served == list(range(50))


async def test_a_cancelled_call_kills_its_own_worker_only(pool: Pool) -> None:
    before = await told(naps(pool))
    doomed = asyncio.create_task(pool.run(f"{HOSTILE}:hang_in_c", deadline_s=60))
    others = naps(pool, SIZE - 1, 0.3)
    await asyncio.sleep(0.1)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    survivors, after = await told(others), await told(naps(pool))
    assert survivors == before & after
    await until_gone(before - after)


async def test_a_call_cancelled_in_the_queue_costs_no_worker(pool: Pool) -> None:
    before = await told(naps(pool))
    running = naps(pool)
    await asyncio.sleep(0.05)
    queued = naps(pool, 1)[0]
    await asyncio.sleep(0.05)
    assert BACKLOG.labels("no")._value.get() == 1
    queued.cancel()
    assert await told(running) == before
    assert BACKLOG.labels("no")._value.get() == 0


async def test_a_suspect_gets_a_worker_of_its_own_and_no_other_makes_way_for_it(
    pool: Pool,
) -> None:
    before = await told(naps(pool))
    guests = await told(pool.run("os:getpid", deadline_s=5, suspect=True) for _ in range(2))
    assert len(guests) == 2
    assert await told(naps(pool)) == before
    assert not guests & before
    await until_gone(guests)


@pytest.mark.parametrize(("size", "most"), [(1, 1), (2, 1), (3, 1), (4, 2)])
async def test_suspects_are_at_most_half_of_the_calls_under_way(size: int, most: int) -> None:
    async with Pool(size) as pool:
        started = time.monotonic()
        calls = (pool.run(NAP, 0.2, deadline_s=5, suspect=True) for _ in range(3 * most))
        assert len(await told(calls)) == 3 * most
        assert time.monotonic() - started > 0.6


async def test_workers_are_recycled_after_their_share_of_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_CALLS_PER_WORKER", 3)
    async with Pool(1) as pool:
        seen = [str(await pool.run("os:getpid", deadline_s=5)) for _ in range(9)]
    assert [seen.count(pid) for pid in dict.fromkeys(seen)] == [3, 3, 3]


async def test_arguments_that_are_no_json_are_the_callers_mistake(pool: Pool) -> None:
    for no_json in (float("nan"), float("inf"), {1, 2}):
        with pytest.raises((TypeError, ValueError), match="JSON"):
            await pool.run("builtins:str", no_json, deadline_s=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="over the limit of 16777216"):
        await pool.run("builtins:len", "x" * MAX_LINE_BYTES, deadline_s=5)


async def test_a_failure_says_what_cpu_time_the_call_took_and_not_the_calls_before() -> None:
    async def spent(function: str, *args: float, deadline_s: float) -> float:
        await pool.run(f"{HOSTILE}:burn", 0.2, deadline_s=20)
        outcome = await pool.run(function, *args, deadline_s=deadline_s)
        assert isinstance(outcome, Failed)
        assert outcome.cpu_s is not None
        return outcome.cpu_s

    async with Pool(1) as pool:  # others may run on this machine: a share of the time is enough
        assert 0.03 < await spent(f"{HOSTILE}:spin", deadline_s=0.3) < 0.35
        assert await spent("time:sleep", 9, deadline_s=0.1) < 0.03
        assert 0.1 <= await spent(f"{HOSTILE}:burn", 0.1, True, deadline_s=20) < 0.2


async def test_the_pool_survives_the_death_of_its_forkserver(pool: Pool) -> None:
    before = await told(naps(pool))
    (under_way,) = naps(pool, 1, 0.3)
    await asyncio.sleep(0.05)
    forkserver(pool).kill()
    assert await pool.run("math:sqrt", 4, deadline_s=5) == Value(2.0)
    assert (await under_way).value not in before
    await until_gone(before)
    assert len(await told(naps(pool))) == SIZE


async def test_a_deadline_is_kept_even_if_the_forkserver_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_DYING_S", 0.3)
    async with Pool(1) as pool:
        pids, alive = await told(naps(pool, 1)), ALIVE._value.get()
        forkserver(pool).send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await pool.run("os:getpid", deadline_s=5, suspect=True)
        await asyncio.sleep(0.01)
        assert ALIVE._value.get() == alive
        async with asyncio.timeout(5):
            outcome = await pool.run(f"{HOSTILE}:spin", deadline_s=0.1)
        assert outcome == Failed(Cause.TIMEOUT, "not done after 0.1 s")
        await until_gone(pids)


async def test_closing_leaves_no_process_and_gives_no_verdict() -> None:
    before = children_of_this()
    async with Pool(SIZE) as pool:
        processes = {*await told(naps(pool)), forkserver(pool).pid}
        hangs = (pool.run(f"{HOSTILE}:spin", deadline_s=60) for _ in range(2 * SIZE))
        calls = [asyncio.create_task(hang) for hang in hangs]
        await asyncio.sleep(0.05)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, NoWorkerError) for outcome in outcomes)
    await until_gone(processes)
    assert children_of_this() == before


async def test_closing_while_a_forkserver_is_replaced_leaves_no_process() -> None:
    before = children_of_this()
    async with Pool(1, warm_ups=[f"{HOSTILE}:tarry"]) as pool:
        forkserver(pool).kill()
        forkserver(pool).wait()
        call = asyncio.create_task(pool.run("os:getpid", deadline_s=5))
        await asyncio.sleep(0.15)
        assert not call.done()
    with pytest.raises(NoWorkerError, match="closed"):
        await call
    assert children_of_this() == before


@pytest.mark.parametrize(
    ("warm_up", "error", "words"),
    [("vanish", NoWorkerError, "hostile:vanish: .* ended"), ("spin", TimeoutError, None)],
)
async def test_a_pool_that_fails_to_open_or_is_cancelled_meanwhile_leaves_no_process(
    warm_up: str, error: type[Exception], words: str | None
) -> None:
    before = children_of_this()
    with pytest.raises(error, match=words):
        async with asyncio.timeout(1 if warm_up == "spin" else 30):
            await Pool(1, warm_ups=[f"{HOSTILE}:{warm_up}"]).__aenter__()
    assert children_of_this() == before


async def test_a_pool_may_have_more_workers_than_a_socket_holds_orders() -> None:
    before, (few, most) = ALIVE._value.get(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))  # what forks them opens two for each
    async with Pool(520) as pool:
        assert ALIVE._value.get() - before == 520
        assert await pool.run("math:sqrt", 4, deadline_s=5) == Value(2.0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))


async def test_a_worker_has_no_key_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_JUDGE_API_KEY", "secret")
    async with Pool(1) as pool:
        assert await pool.run("os:getenv", "WEIR_JUDGE_API_KEY", deadline_s=5) == Value(None)


async def test_a_signal_to_the_whole_group_does_not_end_a_call(pool: Pool) -> None:
    pid = (await told(naps(pool))).pop()
    calls = naps(pool, SIZE, 0.3)
    await asyncio.sleep(0.1)
    for target in (pid, forkserver(pool).pid):
        os.kill(target, signal.SIGTERM)
        os.kill(target, signal.SIGINT)
    assert pid in await told(calls)


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
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    children = {int(word) for word in parent.stdout.readline().split()}
    assert len(children) == 3
    await asyncio.sleep(0.2)
    assert all(map(is_running, children))
    parent.kill()
    parent.wait()
    await until_gone(children)
