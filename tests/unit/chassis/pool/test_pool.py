"""The pool keeps its word whatever a worker does.

Only a deadline under test is short. Each test waits for the events that it needs, so that a busy
machine fails none.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

import services.chassis.pool
from services.chassis.pool import (
    ALIVE,
    KILLED,
    MAX_LINE_BYTES,
    Cause,
    Failed,
    NoWorkerError,
    Pool,
    SetUp,
    SetUpError,
    Value,
    encode_line,
)
from tests.tables import table
from tests.unit.grader.judge_server import until
from tests.unit.grader.pools import list_descendants, list_workers, wait_until_gone

pytestmark = [pytest.mark.anyio]

HOSTILE = "tests.unit.grader.hostile"
SIZE = 3
AMPLE_S = 60
STALLED_S = 3


@pytest.fixture(scope="module")
async def pool(anyio_backend: str) -> AsyncIterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services.chassis.pool, "STALL_GRACE_S", STALLED_S)
        async with Pool(SIZE) as pool:
            yield pool


def forkserver(pool: Pool) -> subprocess.Popen[bytes]:
    assert pool._server is not None
    return pool._server


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def collect_pids(calls: Iterable) -> set[int]:
    """The pids that these calls have told."""
    return {outcome.value for outcome in await asyncio.gather(*calls)}


def waiting(pool: Pool, sign: Path, number: int = SIZE) -> list[asyncio.Task]:
    """So many calls at once, which last until the sign is there."""
    call = f"{HOSTILE}:wait_until_exists", str(sign)
    return [asyncio.create_task(pool.run(*call, deadline_s=AMPLE_S)) for _ in range(number)]


@pytest.mark.parametrize("text", ["", "π\x00\ud800" + "x" * 3_000_000])
async def test_a_call_returns_what_the_function_returned(pool: Pool, text: str) -> None:
    assert await pool.run("builtins:str", text, deadline_s=AMPLE_S) == Value(text)


FORGED = encode_line({"number": 1_000_000, "value": "lie", "unasked": 0}).hex()

FAULTS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("timeout not done after 0.1 s of CPU time", "spin", ()),
    ("timeout not done after 0.1 s of CPU time", "hang_in_c", ()),
    ("stall not done after 3.2 s", "send_itself", ("SIGSTOP",)),
    ("stall not done after 3.2 s", "close_pipe", (9,)),
    ("crash exit status 1", "close_pipe", (0,)),
    ("crash its answer cannot be read", "hang_up", ()),
    ("crash SIGSEGV", "segfault", ()),
    ("crash exit status 3", "vanish", ()),
    *(("crash its answer", "scribble", (text,)) for text in ("a1b2c3", FORGED, FORGED * 2)),
    ("killed SIGKILL", "send_itself", ("SIGKILL",)),
    ("killed SIGKILL", "scribble", ("a1b2c3", "SIGKILL")),
    ("memory ", "hoard", ()),
    ("error RecursionError: ", "nest", (100_000,)),
    ("error AttributeError: ", "missing", ()),
    ("error ValueError: ", "builtins:float", ("nan",)),
    ("error TypeError: ", "builtins:object", ()),
    ("error ValueError: 16777", "operator:mul", ("x", MAX_LINE_BYTES)),
)


@pytest.mark.parametrize(("failure", "function", "args"), FAULTS, ids=range(len(FAULTS)))
async def test_a_failure_names_its_cause_and_leaves_the_pool_at_full_strength(
    pool: Pool, failure: str, function: str, args: tuple[Any, ...]
) -> None:
    name, _, detail = failure.partition(" ")
    cause = Cause(name)
    deadline_s = 0.1 if cause in {Cause.TIMEOUT, Cause.STALL} else AMPLE_S
    before = await list_workers(pool, SIZE)
    killed = KILLED.labels(name)._value.get()
    files = open_files()
    called = function if ":" in function else f"{HOSTILE}:{function}"
    outcome = await pool.run(called, *args, deadline_s=deadline_s)
    assert isinstance(outcome, Failed)
    assert outcome.cause is cause
    assert outcome.detail.startswith(detail)
    assert KILLED.labels(name)._value.get() - killed == (cause is not Cause.ERROR)
    replaced = before - await list_workers(pool, SIZE)
    assert len(replaced) == (cause is not Cause.ERROR)
    await wait_until_gone(replaced)
    await until(lambda: open_files() <= files, AMPLE_S)


async def test_callers_are_served_in_order_beside_those_that_hang(pool: Pool) -> None:
    served: list[int] = []

    async def call(number: int) -> None:
        root = await pool.run("math:sqrt", number * number, deadline_s=AMPLE_S)
        assert root == Value(number)
        served.append(number)

    hangs = [pool.run("time:sleep", 999, deadline_s=999)]
    hangs += [pool.run("time:sleep", 999, deadline_s=999, suspect=True) for _ in range(50)]
    hanging = [asyncio.create_task(hang) for hang in hangs]
    await asyncio.wait_for(asyncio.gather(*map(call, range(50))), AMPLE_S)
    assert served == list(range(50))
    assert all(hang.cancel() for hang in hanging)
    await asyncio.wait(hanging)


async def test_a_cancelled_call_kills_its_own_worker_only(pool: Pool, tmp_path: Path) -> None:
    before = await list_workers(pool, SIZE)
    doomed = asyncio.create_task(pool.run(f"{HOSTILE}:hang_in_c", deadline_s=AMPLE_S))
    waiting_calls = waiting(pool, tmp_path / "sign", SIZE - 1)
    await asyncio.sleep(0.1)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    (tmp_path / "sign").touch()
    survivors = await collect_pids(waiting_calls)
    after = await list_workers(pool, SIZE)
    assert survivors == before & after
    await wait_until_gone(before - after)


@table("""
    size | max_suspects
    1    | 1
    3    | 1
    4    | 2
""")
async def test_suspects_get_workers_of_their_own_and_are_at_most_half_of_the_calls_under_way(
    size: int, max_suspects: int
) -> None:
    async with Pool(size) as pool:
        before = await list_workers(pool, size)
        started = time.monotonic()
        nap = f"{HOSTILE}:nap_and_tell", 0.1
        calls = (pool.run(*nap, deadline_s=AMPLE_S, suspect=True) for _ in range(3 * max_suspects))
        guests = await collect_pids(calls) - before
        assert len(guests) == 3 * max_suspects
        assert time.monotonic() - started > 0.3
        assert await list_workers(pool, size) == before  # nobody made way for them
        await wait_until_gone(guests)


async def test_arguments_that_are_no_json_are_the_callers_mistake(pool: Pool) -> None:
    for no_json in (float("nan"), {1, 2}, "x" * MAX_LINE_BYTES):
        with pytest.raises((TypeError, ValueError), match="JSON"):
            await pool.run("builtins:str", no_json, deadline_s=AMPLE_S)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size=0"):
        Pool(0)


async def test_a_deadline_is_the_cpu_time_of_its_call_alone(pool: Pool) -> None:
    for _ in range(3):
        assert await pool.run(f"{HOSTILE}:burn", 0.2, deadline_s=0.4) == Value(None)
    assert await pool.run("time:sleep", 0.6, deadline_s=0.2) == Value(None)


async def test_a_call_ends_even_if_the_forkserver_stands_still(pool: Pool) -> None:
    pids = await list_workers(pool, SIZE)
    alive = ALIVE._value.get()
    forkserver(pool).send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await pool.run("os:getpid", deadline_s=AMPLE_S, suspect=True)
    await until(lambda: ALIVE._value.get() == alive, AMPLE_S)
    outcome = await pool.run(f"{HOSTILE}:spin", deadline_s=0.1)
    assert outcome == Failed(Cause.STALL, "not done after 3.2 s")
    forkserver(pool).send_signal(signal.SIGCONT)
    await wait_until_gone(pids - await list_workers(pool, SIZE))


@pytest.fixture
async def no_process_left() -> AsyncIterator[None]:
    before = list_descendants(os.getpid())
    yield
    await wait_until_gone(list_descendants(os.getpid()) - before)


@pytest.mark.usefixtures("no_process_left")
async def test_closing_leaves_no_process_and_gives_no_verdict() -> None:
    async with Pool(SIZE) as pool:
        await list_workers(pool, SIZE)
        hangs = (pool.run(f"{HOSTILE}:spin", deadline_s=AMPLE_S) for _ in range(2 * SIZE))
        calls = [asyncio.create_task(hang) for hang in hangs]
        await asyncio.sleep(0.05)
        workers = list_descendants(forkserver(pool).pid)
        assert len(workers) == SIZE
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, NoWorkerError) for outcome in outcomes)
    await wait_until_gone(workers)


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(
    ("warm_up", "limit_s", "error"),
    [("vanish", AMPLE_S, NoWorkerError), ("spin", 1, TimeoutError)],
)
async def test_a_pool_that_fails_to_open_or_is_cancelled_meanwhile_leaves_no_process(
    warm_up: str, limit_s: float, error: type[Exception]
) -> None:
    with pytest.raises(error):
        async with asyncio.timeout(limit_s):
            await Pool(1, warm_ups=[f"{HOSTILE}:{warm_up}"]).__aenter__()


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("confined", [False, True])
async def test_workers_are_forked_after_the_set_up_and_a_confined_one_then_serves_many_calls(
    confined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_API_KEYS", "secret")
    pool = Pool(1, warm_ups=[f"{HOSTILE}:burn_nothing"], confined=confined)
    pool.start()
    pool.set_up = SetUp(f"{HOSTILE}:keep", ["kept"], AMPLE_S)

    async def read_texts() -> tuple[str, int, str | None]:
        outcome: Any = await pool.run(f"{HOSTILE}:read_texts", deadline_s=AMPLE_S)
        return tuple(outcome.value)

    async with pool:
        first, *others = await asyncio.gather(*(read_texts() for _ in range(3)))
        assert others == [first] * 2, "one worker serves them all"
        assert (first[0], first[2]) == ("kept", None)
        forkserver(pool).kill()
        forkserver(pool).wait()
        assert (await read_texts())[0] == "kept"


@pytest.mark.usefixtures("no_process_left")
@table("""
    function          | cause
    spin              | timeout
    hang_in_c         | timeout
    wait_until_exists | stall
    hoard             | memory
    vanish            | crash
    segfault          | crash
    missing           | error
""")
async def test_a_set_up_that_fails_is_named_long_before_a_fork_is_given_up(
    function: str, cause: str
) -> None:
    # A set-up that sleeps must not use up its limit of CPU time before.
    limit_s = {"timeout": 0.1, "stall": 2.0}.get(cause, AMPLE_S)
    args = ["/nothing"] if cause == "stall" else []
    pool = Pool(1)
    pool.set_up = SetUp(f"{HOSTILE}:{function}", args, limit_s)
    with pytest.raises(SetUpError) as error:
        async with asyncio.timeout(AMPLE_S):
            await pool.__aenter__()
    assert error.value.failed.cause == Cause(cause)


async def test_a_signal_to_the_whole_group_does_not_end_a_call(pool: Pool, tmp_path: Path) -> None:
    pids = await list_workers(pool, SIZE)
    calls = waiting(pool, tmp_path / "sign")
    await asyncio.sleep(0.05)
    for target in (*pids, forkserver(pool).pid):
        os.kill(target, signal.SIGTERM)
        os.kill(target, signal.SIGINT)
    (tmp_path / "sign").touch()
    assert await collect_pids(calls) == pids


PARENT = f"""
import asyncio
from services.chassis.pool import Pool

async def main():
    async with Pool(2) as pool:
        calls = (pool.run("{HOSTILE}:nap_and_tell", 0.2, deadline_s=600) for _ in range(2))
        await asyncio.gather(*calls)
        print(flush=True)  # both have loaded the module of the next call
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
    family = list_descendants(parent.pid)
    assert len(family) == 3  # the fork server and two workers
    parent.kill()
    parent.wait()
    await wait_until_gone(family)


HONEST = 150


async def wait_until_idle(pool: Pool) -> None:
    """Wait until every worker lives, answers, and is alone: replaced ones are buried."""
    await list_workers(pool, SIZE)
    await until(lambda: len(list_descendants(forkserver(pool).pid)) == SIZE, AMPLE_S)


async def honest(pool: Pool, number: int, book: Path) -> None:
    call = f"{HOSTILE}:note_and_return", str(book), number, 0.002
    outcome = await pool.run(*call, deadline_s=AMPLE_S, suspect=number < 20)
    assert outcome == Value([number])


async def test_honest_calls_outlive_forkservers_that_die(pool: Pool, tmp_path: Path) -> None:
    await wait_until_idle(pool)
    files = open_files()

    async def strike() -> None:
        for _ in range(2):  # a third could hit a call for the third time
            await until(lambda: len(list_descendants(forkserver(pool).pid)) >= 2, AMPLE_S)
            forkserver(pool).kill()
            forkserver(pool).wait()
            await asyncio.sleep(0.05)

    calls = [honest(pool, number, tmp_path / "book") for number in range(HONEST)]
    await asyncio.gather(strike(), *calls)
    await wait_until_idle(pool)
    await until(lambda: open_files() <= files, AMPLE_S)
