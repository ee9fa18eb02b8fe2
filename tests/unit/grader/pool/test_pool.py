"""The pool keeps its word whatever a worker does."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import pytest

from services.grader.pool import Cause, Failed, NoWorkerError, Pool, Value, processes
from services.grader.pool import pool as pool_module
from services.grader.pool.pool import _WORKERS_PER_CALL, BACKLOG, KILLED
from services.grader.pool.processes import ALIVE
from services.grader.pool.worker import MAX_LINE_BYTES, as_line
from tests.unit.grader.judge_server import until
from tests.unit.grader.processes import family_of, until_gone, workers_of

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


async def told(calls: Iterable) -> set[int]:
    """The pids that these calls have told."""
    return {outcome.value for outcome in await asyncio.gather(*calls)}


def naps(pool: Pool, number: int = SIZE) -> list[asyncio.Task]:
    """So many calls at once, each long enough that all are under way a moment later."""
    return [asyncio.create_task(pool.run(NAP, 0.4, deadline_s=5)) for _ in range(number)]


@pytest.mark.parametrize("text", ["", "π\x00\ud800" + "x" * 3_000_000])
async def test_a_call_returns_what_the_function_returned(pool: Pool, text: str) -> None:
    assert await pool.run("builtins:str", text, deadline_s=5) == Value(text)


FORGED = as_line({"number": 1_000_000, "value": "lie", "cpu_s": 0.0}).hex()
SCRIBBLED = "a1b2c3", "ff" * 40, "7b0a", FORGED, FORGED * 2
Fault = tuple[str, tuple, Cause, str]

FAULTS: tuple[Fault, ...] = (
    (f"{HOSTILE}:spin", (), Cause.TIMEOUT, "not done after 0.2 s"),
    (f"{HOSTILE}:hang_in_c", (), Cause.TIMEOUT, "not done after 0.2 s"),
    (f"{HOSTILE}:send_itself", ("SIGSTOP",), Cause.TIMEOUT, "not done"),
    (f"{HOSTILE}:close_pipe", (9,), Cause.TIMEOUT, "not done"),
    (f"{HOSTILE}:close_pipe", (0,), Cause.CRASH, "exit status 1"),
    (f"{HOSTILE}:hang_up", (), Cause.CRASH, "its answer cannot be read"),
    (f"{HOSTILE}:send_itself", ("SIGXCPU",), Cause.CRASH, "SIGXCPU"),
    (f"{HOSTILE}:send_itself", ("SIGABRT",), Cause.CRASH, "SIGABRT"),
    (f"{HOSTILE}:segfault", (), Cause.CRASH, "SIGSEGV"),
    (f"{HOSTILE}:vanish", (), Cause.CRASH, "exit status 3"),
    *((f"{HOSTILE}:scribble", (text,), Cause.CRASH, "its answer") for text in SCRIBBLED),
    (f"{HOSTILE}:send_itself", ("SIGKILL",), Cause.KILLED, "SIGKILL"),
    (f"{HOSTILE}:scribble", ("a1b2c3", "SIGKILL"), Cause.KILLED, "SIGKILL"),
    (f"{HOSTILE}:hoard", (), Cause.MEMORY, "over the memory limit"),
    (f"{HOSTILE}:nest", (100_000,), Cause.ERROR, "RecursionError: "),
    ("math:sqrt", (-1,), Cause.ERROR, "ValueError: math domain error"),
    ("math:missing", (), Cause.ERROR, "AttributeError: module 'math' has no attribute 'missing'"),
    ("builtins:float", ("nan",), Cause.ERROR, "ValueError: Out of range float values"),
    ("builtins:object", (), Cause.ERROR, "TypeError: Object of type object is not JSON"),
    ("operator:mul", ("x", MAX_LINE_BYTES), Cause.ERROR, "ValueError: 16777"),
)


async def fail(pool: Pool, fault: Fault, *, suspect: bool = False) -> None:
    function, args, cause, detail = fault
    deadline_s = 0.2 if cause is Cause.TIMEOUT else 9
    outcome = await pool.run(function, *args, deadline_s=deadline_s, suspect=suspect)
    assert isinstance(outcome, Failed)
    assert outcome.cause is cause, (fault, outcome)
    assert outcome.detail.startswith(detail)
    assert (outcome.cpu_s is None) is function.endswith(":hang_up")  # then nobody can tell


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_failure_names_its_cause_and_leaves_the_pool_at_full_strength(
    pool: Pool, fault: Fault
) -> None:
    *_, cause, _ = fault
    before, killed = await workers_of(pool, SIZE), KILLED.labels(cause.value)._value.get()
    started = time.monotonic()
    await fail(pool, fault)
    assert time.monotonic() - started >= 0.2 * (cause is Cause.TIMEOUT)
    assert KILLED.labels(cause.value)._value.get() - killed == (cause is not Cause.ERROR)
    replaced = before - await workers_of(pool, SIZE)
    assert len(replaced) == (cause is not Cause.ERROR)
    await until_gone(replaced)


@pytest.mark.parametrize(("function", "number", "suspect"), [("spin", 1, 0), ("hang_in_c", 100, 1)])
async def test_hangs_cost_other_callers_nothing(
    pool: Pool, function: str, number: int, suspect: bool
) -> None:
    hang = f"{HOSTILE}:{function}"
    calls = [pool.run(hang, deadline_s=60, suspect=suspect) for _ in range(number)]
    hanging = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0.05)
    for root in range(50):
        assert await pool.run("math:sqrt", root * root, deadline_s=30) == Value(root)
    assert all(call.cancel() for call in hanging)
    await asyncio.wait(hanging)


async def test_callers_are_served_in_the_order_in_which_they_came() -> None:
    served: list[int] = []

    async def call(number: int) -> None:
        await pool.run("math:sqrt", 4, deadline_s=5)
        served.append(number)

    async with Pool(1) as pool:
        await asyncio.gather(*map(call, range(50)))
    assert served == list(range(50))


async def test_a_cancelled_call_kills_its_own_worker_only(pool: Pool) -> None:
    before = await workers_of(pool, SIZE)
    doomed = asyncio.create_task(pool.run(f"{HOSTILE}:hang_in_c", deadline_s=60))
    others = naps(pool, SIZE - 1)
    await asyncio.sleep(0.1)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    survivors, after = await told(others), await workers_of(pool, SIZE)
    assert survivors == before & after
    await until_gone(before - after)


async def test_a_call_cancelled_in_the_queue_costs_no_worker(pool: Pool) -> None:
    before = await workers_of(pool, SIZE)
    running = naps(pool)
    await asyncio.sleep(0.05)
    queued = naps(pool, 1)[0]
    await asyncio.sleep(0.05)
    assert BACKLOG.labels("no")._value.get() == 1
    queued.cancel()
    assert await told(running) == before
    assert BACKLOG.labels("no")._value.get() == 0


@pytest.mark.parametrize(("size", "most"), [(1, 1), (2, 1), (3, 1), (4, 2)])
async def test_suspects_get_workers_of_their_own_and_are_at_most_half_of_the_calls_under_way(
    size: int, most: int
) -> None:
    async with Pool(size) as pool:
        before = await workers_of(pool, size)
        started = time.monotonic()
        calls = (pool.run(NAP, 0.2, deadline_s=5, suspect=True) for _ in range(3 * most))
        guests = await told(calls) - before
        assert len(guests) == 3 * most
        assert time.monotonic() - started > 0.6
        assert await workers_of(pool, size) == before  # nobody made way for them
        await until_gone(guests)


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
    with pytest.raises(ValueError, match="size=0"):
        Pool(0)


async def test_a_failure_says_what_cpu_time_the_call_took_and_not_the_calls_before() -> None:
    async def spent(function: str, *args: float, deadline_s: float) -> float:
        await pool.run(f"{HOSTILE}:burn", 0.2, deadline_s=20)
        outcome = await pool.run(function, *args, deadline_s=deadline_s)
        assert isinstance(outcome, Failed)
        assert outcome.cpu_s is not None
        return outcome.cpu_s

    async with Pool(1) as pool:  # others may run on this machine: a share of the time is enough
        assert 0.03 < await spent(f"{HOSTILE}:spin", deadline_s=0.3) < 0.35
        assert await spent("time:sleep", 9, deadline_s=0.1) < 0.1
        assert 0.1 <= await spent(f"{HOSTILE}:burn", 0.1, True, deadline_s=20) < 0.28


async def test_a_deadline_is_kept_even_if_the_forkserver_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_DYING_S", 0.3)
    async with Pool(1) as pool:
        pids, alive = await workers_of(pool, 1), ALIVE._value.get()
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


@pytest.fixture
def no_process_left() -> Iterator[None]:
    before = family_of(os.getpid())
    yield
    assert family_of(os.getpid()) <= before


@pytest.mark.usefixtures("no_process_left")
async def test_closing_leaves_no_process_and_gives_no_verdict() -> None:
    async with Pool(SIZE) as pool:
        await workers_of(pool, SIZE)
        hangs = (pool.run(f"{HOSTILE}:spin", deadline_s=60) for _ in range(2 * SIZE))
        calls = [asyncio.create_task(hang) for hang in hangs]
        await asyncio.sleep(0.05)
        workers = family_of(forkserver(pool).pid)
        assert len(workers) == SIZE
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, NoWorkerError) for outcome in outcomes)
    await until_gone(workers)


@pytest.mark.usefixtures("no_process_left")
async def test_closing_while_a_forkserver_is_replaced_leaves_no_process() -> None:
    async with Pool(1, warm_ups=[f"{HOSTILE}:tarry"]) as pool:
        forkserver(pool).kill()
        forkserver(pool).wait()
        call = asyncio.create_task(pool.run("os:getpid", deadline_s=5))
        await asyncio.sleep(0.15)
        assert not call.done()
    with pytest.raises(NoWorkerError, match="closed"):
        await call


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(
    ("warm_up", "limit_s", "error", "words"),
    [("vanish", 30, NoWorkerError, "hostile:vanish: .* ended"), ("spin", 1, TimeoutError, None)],
)
async def test_a_pool_that_fails_to_open_or_is_cancelled_meanwhile_leaves_no_process(
    warm_up: str, limit_s: float, error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        async with asyncio.timeout(limit_s):
            await Pool(1, warm_ups=[f"{HOSTILE}:{warm_up}"]).__aenter__()


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
    pid = (await workers_of(pool, SIZE)).pop()
    calls = naps(pool)
    await asyncio.sleep(0.1)
    for target in (pid, forkserver(pool).pid):
        os.kill(target, signal.SIGTERM)
        os.kill(target, signal.SIGINT)
    assert pid in await told(calls)


PARENT = f"""
import asyncio
from services.grader.pool import Pool

async def main():
    async with Pool(2) as pool:
        await asyncio.gather(*(pool.run("{NAP}", 0.2, deadline_s=60) for _ in range(2)))
        print(flush=True)  # both have loaded what is called next
        hangs = (pool.run(f"{HOSTILE}:{{hang}}", deadline_s=600) for hang in ("spin", "hang_in_c"))
        await asyncio.gather(*hangs)

asyncio.run(main())
"""


async def test_a_killed_parent_leaves_no_orphan_even_in_the_middle_of_a_c_call() -> None:
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = ["env", f"PYTHONPATH={path}", sys.executable, "-c", PARENT]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"\n"
    await asyncio.sleep(0.2)
    family = family_of(parent.pid)
    assert len(family) == 3  # what forks them, and two
    parent.kill()
    parent.wait()
    await until_gone(family)


HONEST = 400
EACH_FAULT = 12


def open_files(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def until_at_rest(pool: Pool) -> None:
    """Wait until every worker lives, answers, and is alone: replaced ones are buried."""
    await asyncio.gather(*(pool.run("time:sleep", 0.05, deadline_s=5) for _ in range(SIZE)))
    await until(lambda: len(family_of(forkserver(pool).pid)) == SIZE, within_s=60)


async def honest(pool: Pool, number: int, book: Path) -> None:
    outcome = await pool.run(
        f"{HOSTILE}:note_and_return", str(book), number, 0.002, deadline_s=9, suspect=number < 20
    )
    assert outcome == Value([number])


async def cancelled(pool: Pool, number: int) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.003 * (number % 50)):
            await pool.run("time:sleep", 9, deadline_s=10)


async def test_after_a_storm_of_faults_every_honest_call_has_its_own_value_and_nothing_leaked(
    pool: Pool, tmp_path: Path
) -> None:
    await until_at_rest(pool)
    gc.collect()  # what other tests have left open
    before = open_files("self"), open_files(forkserver(pool).pid), ALIVE._value.get()
    book, pid = tmp_path / "book", forkserver(pool).pid
    calls = [honest(pool, number, book) for number in range(HONEST)]
    calls += [fail(pool, fault, suspect=n % 4 == 0) for n in range(EACH_FAULT) for fault in FAULTS]
    calls += [cancelled(pool, number) for number in range(50)]
    tasks = []
    for number, call in enumerate(random.Random(7).sample(calls, len(calls))):
        tasks.append(asyncio.create_task(call))
        if number % 10 == 0:  # some begin before others
            await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    assert Counter(book.read_text().split()) == Counter(map(str, range(HONEST)))
    await until_at_rest(pool)
    assert forkserver(pool).pid == pid
    assert (open_files("self"), open_files(pid), ALIVE._value.get()) == before
    assert BACKLOG.labels("no")._value.get() == BACKLOG.labels("yes")._value.get() == 0


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_honest_calls_outlive_forkservers_that_die_or_stand_still(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals
) -> None:
    monkeypatch.setattr(processes, "_DYING_S", 0.5)
    monkeypatch.setattr(processes, "_FORKING_S", 3.0)
    files = open_files("self")

    async def strike() -> None:
        for _ in range(_WORKERS_PER_CALL - 1):  # more could hit one call every time
            await asyncio.sleep(0.15)
            await until(lambda: len(family_of(forkserver(pool).pid)) >= 2, 60)  # it has warmed up
            os.kill(forkserver(pool).pid, signum)

    calls = [honest(pool, number, tmp_path / "book") for number in range(HONEST)]
    hangs = [pool.run("time:sleep", 9, deadline_s=0.05) for _ in range(20)]
    outcomes, *_ = await asyncio.gather(asyncio.gather(*hangs), strike(), *calls)
    assert {outcome.cause for outcome in outcomes if isinstance(outcome, Failed)} == {Cause.TIMEOUT}
    await until_at_rest(pool)
    assert open_files("self") == files
