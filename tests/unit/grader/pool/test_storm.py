"""Hundreds of faults between honest calls: each call gets its own outcome, no worker is lost."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from services.grader.pool import Cause, Failed, Pool, Value, processes
from services.grader.pool.pool import _WORKERS_PER_CALL, BACKLOG
from services.grader.pool.processes import ALIVE
from services.grader.pool.worker import MAX_LINE_BYTES, as_line

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HOSTILE = "tests.unit.grader.hostile"
SIZE = 3
HONEST = 400
EACH_FAULT = 12
FORGED = as_line({"number": 1_000_000, "value": "lie", "cpu_s": 0.0}).hex()
SCRIBBLED = "a1b2c3", "ff" * 40, "7b0a", FORGED, FORGED * 2

FAULTS: tuple[tuple[str, tuple, Cause], ...] = (
    (f"{HOSTILE}:spin", (), Cause.TIMEOUT),
    (f"{HOSTILE}:hang_in_c", (), Cause.TIMEOUT),
    (f"{HOSTILE}:send_itself", ("SIGSTOP",), Cause.TIMEOUT),
    (f"{HOSTILE}:close_pipe", (9,), Cause.TIMEOUT),
    (f"{HOSTILE}:close_pipe", (0,), Cause.CRASH),
    (f"{HOSTILE}:send_itself", ("SIGXCPU",), Cause.CRASH),
    (f"{HOSTILE}:send_itself", ("SIGABRT",), Cause.CRASH),
    (f"{HOSTILE}:segfault", (), Cause.CRASH),
    ("os:_exit", (0,), Cause.CRASH),
    *((f"{HOSTILE}:scribble", (text,), Cause.CRASH) for text in SCRIBBLED),
    (f"{HOSTILE}:send_itself", ("SIGKILL",), Cause.KILLED),
    (f"{HOSTILE}:scribble", ("a1b2c3", "SIGKILL"), Cause.KILLED),
    (f"{HOSTILE}:hoard", (), Cause.MEMORY),
    (f"{HOSTILE}:nest", (100_000,), Cause.ERROR),
    ("math:sqrt", (-1,), Cause.ERROR),
    ("math:missing", (), Cause.ERROR),
    ("builtins:float", ("nan",), Cause.ERROR),
    ("builtins:object", (), Cause.ERROR),
    ("operator:mul", ("x", MAX_LINE_BYTES), Cause.ERROR),
)


@pytest.fixture
async def pool(anyio_backend: str) -> AsyncIterator[Pool]:
    async with Pool(SIZE) as pool:
        yield pool


def forkserver_pid(pool: Pool) -> int:
    assert pool._server._process is not None
    return pool._server._process.pid


def num_workers(pool: Pool) -> int:
    """The children of the fork server that it has not buried."""
    path = Path(f"/proc/{forkserver_pid(pool)}/task/{forkserver_pid(pool)}/children")
    return len(path.read_text().split()) if path.exists() else 0


def open_files(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def until_at_rest(pool: Pool) -> None:
    """Wait until every worker lives, answers, and is alone: replaced ones are buried."""
    await asyncio.gather(*(pool.run("time:sleep", 0.05, deadline_s=5) for _ in range(SIZE)))
    async with asyncio.timeout(60):
        while num_workers(pool) != SIZE:
            await asyncio.sleep(0.01)


async def fault(pool: Pool, number: int, function: str, args: tuple, cause: Cause) -> None:
    deadline_s = 0.1 if cause is Cause.TIMEOUT else 9
    outcome = await pool.run(function, *args, deadline_s=deadline_s, suspect=number % 4 == 0)
    assert isinstance(outcome, Failed)
    assert outcome.cause is cause, (function, args, outcome)
    assert outcome.detail
    assert outcome.cpu_s is not None


async def honest(pool: Pool, number: int, book: Path) -> None:
    outcome = await pool.run(
        f"{HOSTILE}:note_and_return", str(book), number, 0.002, deadline_s=9, suspect=number < 20
    )
    assert outcome == Value([number])


async def cancelled(pool: Pool, number: int) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.003 * (number % 50)):
            await pool.run("time:sleep", 9, deadline_s=10)


async def all_of(calls: Sequence) -> None:
    """Start all calls in an order of chance, some before others; raise what any of them raised."""
    tasks = []
    for number, call in enumerate(random.Random(7).sample(calls, len(calls))):
        tasks.append(asyncio.create_task(call))
        if number % 10 == 0:
            await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)


async def test_after_a_storm_of_faults_every_honest_call_has_its_own_value_and_nothing_leaked(
    pool: Pool, tmp_path: Path
) -> None:
    await until_at_rest(pool)
    gc.collect()  # what other tests have left open
    before = open_files("self"), open_files(forkserver_pid(pool)), ALIVE._value.get()
    book, forkserver = tmp_path / "book", forkserver_pid(pool)
    calls = [honest(pool, number, book) for number in range(HONEST)]
    calls += [fault(pool, number, *what) for number in range(EACH_FAULT) for what in FAULTS]
    calls += [cancelled(pool, number) for number in range(50)]
    await all_of(calls)
    assert Counter(book.read_text().split()) == Counter(map(str, range(HONEST)))
    await until_at_rest(pool)
    assert forkserver_pid(pool) == forkserver
    assert (open_files("self"), open_files(forkserver), ALIVE._value.get()) == before
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
            while num_workers(pool) < 2:  # it has warmed up
                await asyncio.sleep(0.01)
            os.kill(forkserver_pid(pool), signum)

    calls = [honest(pool, number, tmp_path / "book") for number in range(HONEST)]
    hangs = [pool.run("time:sleep", 9, deadline_s=0.05) for _ in range(20)]
    outcomes, *_ = await asyncio.gather(asyncio.gather(*hangs), strike(), *calls)
    assert {outcome.cause for outcome in outcomes if isinstance(outcome, Failed)} == {Cause.TIMEOUT}
    await until_at_rest(pool)
    assert open_files("self") == files
