"""How fast answers are graded, what more cores bring, and what hanging inputs and a judge cost.

``python -m tests.benchmarks.grading`` prints one table. All that is compared runs in turns in the
same minutes, each time in a new process, so that nobody finds what was cached before. Of all rounds
the fastest counts: what others do on the machine only ever takes time away.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from protocol.messages import Graded, Task
from protocol.rewards import MathAnswer
from pydantic import JsonValue

from services.grader.answers.units import measure_of
from services.grader.pool import Cause, Failed, Pool, Value
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from tests.benchmarks import grading_judge
from tests.benchmarks.grading_mixes import GROUP_SIZE, Response, hanging, mixes, source

T = TypeVar("T")

CORES = len(os.sched_getaffinity(0))
HANGING_SHARE = 0.01
QUICK_S, COMPARE_S = 0.2, 0.5  # deadlines in the row with hanging inputs; in service 0.5 and 2
CALLS, CALL_S = 400, 0.008
_CHECK = MathAnswer()
_HERE = "tests.benchmarks.grading"
_CPU_TIME = f"{_HERE}:nap_and_tell_cpu_time"
_WARM_UPS = (math_answer.WARM_UP, _CPU_TIME)
_CHUNK = 16  # answers that ProcessPoolExecutor hands over at once


@dataclass(frozen=True)
class Run:
    """One batch, graded: the time it took, in seconds, and which responses were found right."""

    seconds: float
    cpu_s: float  # of all processes together
    right: list[bool]


# ---------------------------------------------------------------- contenders


def plain_math_verify(batch: Sequence[Response]) -> Run:
    """math-verify as its documentation shows it, given nothing but the boxed answers."""
    pairs = [(response.gold, response.answer) for response in batch]
    _warm_up()
    started, cpu_started_s = time.perf_counter(), time.process_time()
    right = [_verified(pair) for pair in pairs]
    return Run(time.perf_counter() - started, time.process_time() - cpu_started_s, right)


def pooled_math_verify(batch: Sequence[Response]) -> Run:
    """The same on all cores by concurrent.futures."""
    pairs = [(response.gold, response.answer) for response in batch]
    with ProcessPoolExecutor(CORES, initializer=_warm_up) as executor:
        list(executor.map(time.sleep, [0.05] * CORES))
        started, cpu_started_s = time.perf_counter(), time.process_time()
        found = list(executor.map(_verified_and_timed, pairs, chunksize=_CHUNK))
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started_s
    return Run(seconds, cpu_s + sum(each for _, each in found), [right for right, _ in found])


def weir(workers: int, batch: Sequence[Response]) -> Run:
    """Weir's verifier ``math_answer`` from the text of the responses, all groups at once."""

    async def graded() -> Run:
        async with Pool(workers, warm_ups=_WARM_UPS) as pool:
            measure_of("cm")  # loads the units, as the service does before it asks for groups
            cpu_started_s = await _cpu_s(pool, workers) + time.process_time()
            started = time.perf_counter()
            right = await asyncio.gather(*(_is_right(each, Tools(pool)) for each in batch))
            seconds = time.perf_counter() - started
            cpu_s = time.process_time() + await _cpu_s(pool, workers)
            return Run(seconds, cpu_s - cpu_started_s, right)

    return asyncio.run(graded())


def _verified_and_timed(pair: tuple[str, str]) -> tuple[bool, float]:
    started = time.process_time()
    return _verified(pair), time.process_time() - started


def _verified(pair: tuple[str, str]) -> bool:
    from math_verify import parse, verify  # in the process that works: the others stay slim

    gold, answer = pair
    return verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{answer}}}"))


def _warm_up() -> None:
    _verified((r"\frac{1}{2}", "0.5"))


async def _is_right(response: Response, tools: Tools) -> bool:
    task = Task(id="task", prompt="?", answer=response.gold)
    score = await math_answer.verify(task, response.text, _CHECK, tools)
    return isinstance(score, Graded) and score.value == 1


def nap_and_tell_cpu_time() -> float:
    """The CPU time of a worker so far, after a pause in which all others are asked too."""
    time.sleep(0.1)
    return time.process_time()


async def _cpu_s(pool: Pool, workers: int) -> float:
    """CPU time of all workers together."""
    outcomes = await asyncio.gather(*(pool.run(_CPU_TIME, deadline_s=60) for _ in range(workers)))
    return sum(float(str(each.value)) for each in outcomes if isinstance(each, Value))


# ------------------------------------------------------------------- scaling


def work(rounds: int) -> int:
    """A call of so many rounds of arithmetic; on one core always the same time."""
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def calls_through_pool(workers: int, rounds: int) -> float:
    """Seconds that a pool of so many workers takes for all calls."""

    async def called() -> float:
        async with Pool(workers, warm_ups=[_CPU_TIME]) as pool:
            await _cpu_s(pool, workers)
            calls = (pool.run(f"{_HERE}:work", rounds, deadline_s=60) for _ in range(CALLS))
            started = time.perf_counter()
            await asyncio.gather(*calls)
            return time.perf_counter() - started

    return asyncio.run(called())


def calls_in_bare_processes(processes: int, rounds: int) -> float:
    """Seconds that bare processes take for the same work, each its share without being asked."""
    with ProcessPoolExecutor(processes) as executor:
        list(executor.map(time.sleep, [0.05] * processes))
        started = time.perf_counter()
        list(executor.map(_work_often, [(CALLS // processes, rounds)] * processes))
        return time.perf_counter() - started


def _work_often(what: tuple[int, int]) -> None:
    times, rounds = what
    for _ in range(times):
        work(rounds)


def rounds_of_one_call() -> int:
    """How many rounds take `CALL_S`, at this machine's best."""
    trial = 20_000
    best = min(_timed(partial(work, trial)) for _ in range(30))
    return round(trial * CALL_S / best)


def _timed(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


# ----------------------------------------------------------- hanging answers


@dataclass(frozen=True)
class Storm:
    """Seconds until the last honest answer, and what hanging ones had of the workers till then."""

    seconds: float
    held_s: float  # of one worker, as deadlines that were used up
    hung: int


class _CountingPool(Pool):
    """A pool that keeps account of the deadlines that calls have used up."""

    held_s = 0.0
    hung = 0

    async def run(
        self, function: str, *args: JsonValue, deadline_s: float, suspect: bool = False
    ) -> Value | Failed:
        outcome = await super().run(function, *args, deadline_s=deadline_s, suspect=suspect)
        if isinstance(outcome, Failed) and outcome.cause is Cause.TIMEOUT:
            self.held_s += deadline_s
            self.hung += not suspect
        return outcome


def storm(batch: Sequence[Response], share: float) -> Storm:
    """Grade a batch into which this share of hanging answers is mixed."""

    async def graded() -> Storm:
        async with _CountingPool(CORES, warm_ups=_WARM_UPS) as pool:
            await _cpu_s(pool, CORES)
            tools = Tools(pool, quick_deadline_s=QUICK_S, compare_deadline_s=COMPARE_S)
            return await _through_storm(_with_hanging(batch, share), pool, tools)

    return asyncio.run(graded())


async def _through_storm(
    batch: Sequence[tuple[Response, bool]], pool: _CountingPool, tools: Tools
) -> Storm:
    started = time.perf_counter()
    tasks = [(asyncio.create_task(_is_right(each, tools)), hangs) for each, hangs in batch]
    await asyncio.gather(*(task for task, hangs in tasks if not hangs))
    result = Storm(time.perf_counter() - started, pool.held_s, pool.hung)
    await asyncio.gather(*(task for task, _ in tasks))
    return result


def _with_hanging(batch: Sequence[Response], share: float) -> list[tuple[Response, bool]]:
    chance = random.Random(0)
    mixed = [(response, False) for response in batch]
    for _ in range(round(share * len(batch))):
        place = chance.randrange(len(mixed))
        mixed.insert(place, (hanging(chance.choice(batch), chance), True))
    return mixed


# --------------------------------------------------------------------- table


def in_a_new_process(do: Callable[..., T], *args: Any) -> T:
    """Call it where nothing has been cached and nothing was imported."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(do, *args).result()


def measure(rounds: int) -> Iterator[tuple[str, str]]:
    """All rows as they are ready: what, and how much."""
    for mix, batch in mixes().items():
        yield from speed_rows(mix, batch, rounds)
    yield from scaling_rows(rounds)
    yield storm_row(rounds)
    yield from grading_judge.rows(rounds + 1)


def speed_rows(mix: str, batch: Sequence[Response], rounds: int) -> Iterator[tuple[str, str]]:
    """Answers by wall clock and by CPU time, and how often the verdict was the one expected."""
    contenders = {
        "math-verify, one process": (plain_math_verify, 1),
        f"math-verify, ProcessPoolExecutor({CORES})": (pooled_math_verify, CORES),
        f"Weir, {CORES} workers": (partial(weir, CORES), CORES),
        "Weir, 1 worker": (partial(weir, 1), CORES),
    }
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (contender, _) in contenders.items():
            runs[name].append(in_a_new_process(contender, batch))
    best = {name: min(each, key=lambda run: run.seconds) for name, each in runs.items()}
    cpu_s = {name: min(run.cpu_s for run in each) for name, each in runs.items()}
    plain = next(iter(cpu_s.values()))
    for name, run in best.items():
        expected = [each.right == found for each, found in zip(batch, run.right, strict=True)]
        yield (
            f"{mix}: {name}",
            f"{len(batch) / run.seconds / contenders[name][1]:,.0f} per second and core; "
            f"{len(batch) / cpu_s[name]:,.0f} per second of CPU time "
            f"({plain / cpu_s[name]:.1f}×); {sum(expected) / len(batch):.1%} as expected",
        )


def scaling_rows(rounds: int) -> Iterator[tuple[str, str]]:
    """What a pool of all cores gains over one worker, beside what bare processes gain."""
    each = rounds_of_one_call()
    ways = {"pool": calls_through_pool, "bare processes": calls_in_bare_processes}
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, way in ways.items():
            for workers in (1, CORES):
                seconds[name, workers].append(way(workers, each))
    for name in ways:
        gain = min(seconds[name, 1]) / min(seconds[name, CORES]) / CORES
        yield f"calls of {1000 * CALL_S:g} ms: {name}, {CORES} ÷ 1, per core", f"{gain:.2f}"


def storm_row(rounds: int) -> tuple[str, str]:
    """Throughput of the other answers lost to hanging ones beyond their own deadlines."""
    batch = mixes(seed=1)[source()]
    calm, stormy = [], []
    for _ in range(rounds):
        calm.append(in_a_new_process(storm, batch, 0.0).seconds)
        stormy.append(in_a_new_process(storm, batch, HANGING_SHARE))
    least = min(stormy, key=lambda each: each.seconds - each.held_s / CORES)
    lost_s = least.seconds - least.held_s / CORES - min(calm)
    each_ms = 1000 * CORES * lost_s / max(1, least.hung)
    title = f"{source()}: time lost to {HANGING_SHARE:.0%} hanging answers beyond their deadlines"
    return title, (
        f"{lost_s / min(calm):+.1%} of the time without them, {lost_s / least.seconds:+.1%} of the "
        f"time with them ({least.hung} hung for {QUICK_S:g} s, {each_ms:.0f} ms of a worker each)"
    )


def main(arguments: Sequence[str]) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Measure the graders on this machine.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args(arguments).rounds
    print(f"| {CORES} cores, groups of {GROUP_SIZE} | best of {rounds} |\n|---|---|", flush=True)
    for what, how_much in measure(rounds):
        print(f"| {what} | {how_much} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
