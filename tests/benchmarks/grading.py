"""How fast answers are graded, what more cores bring, and what hanging inputs cost.

``python -m tests.benchmarks.grading`` prints one table. All that is compared runs in turns in the
same minutes, each contender in a process of its own, so that none finds what another has cached.
A number is the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from protocol.messages import Graded, Task
from protocol.rewards import Check
from pydantic import JsonValue

from services.grader.pool import Cause, Failed, Pool, Value
from services.grader.tools import Tools
from services.grader.verifiers import math_answer
from tests.benchmarks.grading_mixes import GROUP_SIZE, Response, hanging, mixes, source

CORES = len(os.sched_getaffinity(0))
HANGING_SHARE = 0.01
QUICK_S, COMPARE_S = 0.2, 0.5  # deadlines in the row with hanging inputs; in service 1 and 5
CALLS, CALL_S = 400, 0.008
_CHECK = Check(verifier="math_answer")
_HERE = "tests.benchmarks.grading"
_CHUNK = 16  # answers that ProcessPoolExecutor hands over at once


@dataclass(frozen=True)
class Run:
    """One batch, graded: the seconds it took, and which responses were found to be right."""

    seconds: float
    right: list[bool]


# ---------------------------------------------------------------- contenders


def plain_math_verify(batch: Sequence[Response]) -> Run:
    """math-verify as its documentation shows it, given nothing but the boxed answers."""
    pairs = [(response.gold, response.answer) for response in batch]
    started = time.perf_counter()
    right = [_verified(pair) for pair in pairs]
    return Run(time.perf_counter() - started, right)


def pooled_math_verify(batch: Sequence[Response]) -> Run:
    """The same on all cores by concurrent.futures."""
    pairs = [(response.gold, response.answer) for response in batch]
    with ProcessPoolExecutor(CORES, initializer=_warm_up) as executor:
        list(executor.map(_verified, pairs[: 4 * CORES]))
        started = time.perf_counter()
        right = list(executor.map(_verified, pairs, chunksize=_CHUNK))
        return Run(time.perf_counter() - started, right)


def weir(workers: int, batch: Sequence[Response]) -> Run:
    """Weir's verifier ``math_answer`` from the text of the responses, all groups at once."""

    async def graded() -> Run:
        async with Pool(workers, warm_ups=[math_answer.WARM_UP]) as pool:
            await _until_warm(pool, workers)
            started = time.perf_counter()
            right = await asyncio.gather(*(_is_right(each, Tools(pool)) for each in batch))
            return Run(time.perf_counter() - started, right)

    return asyncio.run(graded())


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


async def _until_warm(pool: Pool, workers: int) -> None:
    await asyncio.gather(*(pool.run("time:sleep", 0.05, deadline_s=9) for _ in range(workers)))


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
        async with Pool(workers) as pool:
            await _until_warm(pool, workers)
            await asyncio.gather(
                *(pool.run(f"{_HERE}:work", 1, deadline_s=60) for _ in range(9 * workers))
            )
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
    """Seconds until the last honest answer; what of them hanging ones held one worker; counts."""

    seconds: float
    held_s: float
    hung: int
    total_seconds: float


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
        async with _CountingPool(CORES, warm_ups=[math_answer.WARM_UP]) as pool:
            await _until_warm(pool, CORES)
            tools = Tools(pool, quick_deadline_s=QUICK_S, compare_deadline_s=COMPARE_S)
            return await _through_storm(_with_hanging(batch, share), pool, tools)

    return asyncio.run(graded())


async def _through_storm(
    batch: Sequence[tuple[Response, bool]], pool: _CountingPool, tools: Tools
) -> Storm:
    started = time.perf_counter()
    tasks = [(asyncio.create_task(_is_right(each, tools)), hangs) for each, hangs in batch]
    await asyncio.gather(*(task for task, hangs in tasks if not hangs))
    seconds, held_s = time.perf_counter() - started, pool.held_s
    await asyncio.gather(*(task for task, _ in tasks))
    return Storm(seconds, held_s, pool.hung, time.perf_counter() - started)


def _with_hanging(batch: Sequence[Response], share: float) -> list[tuple[Response, bool]]:
    chance = random.Random(0)
    mixed = [(response, False) for response in batch]
    for _ in range(round(share * len(batch))):
        place = chance.randrange(len(mixed))
        mixed.insert(place, (hanging(chance.choice(batch), chance), True))
    return mixed


# --------------------------------------------------------------------- table


@contextmanager
def own_processes(contenders: Mapping[str, Callable[..., Any]]) -> Iterator[dict[str, Any]]:
    """Each contender as a function that runs in a process that it has for itself."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        yield {
            name: partial(_call, stack.enter_context(ProcessPoolExecutor(1, context)), contender)
            for name, contender in contenders.items()
        }


def _call(executor: ProcessPoolExecutor, contender: Callable[..., Any], *args: Any) -> Any:
    return executor.submit(contender, *args).result()


def measure(rounds: int) -> list[tuple[str, str]]:
    """All rows: what, and how much."""
    contenders = {
        "plain": plain_math_verify,
        "pooled": pooled_math_verify,
        "weir": partial(weir, CORES),
        "weir on 1": partial(weir, 1),
    }
    rows: list[tuple[str, str]] = []
    with own_processes(contenders) as run:
        for mix, batches in mixes(rounds).items():
            runs = [{name: run[name](batch) for name in contenders} for batch in batches]
            rows += speed_rows(mix, batches, runs)
            print(f"done: {mix}", file=sys.stderr)
    rows += scaling_rows(rounds)
    print("done: scaling", file=sys.stderr)
    rows += storm_rows(rounds)
    return rows


def speed_rows(
    mix: str, batches: Sequence[Sequence[Response]], runs: Sequence[Mapping[str, Run]]
) -> list[tuple[str, str]]:
    """Answers per second and core, and how often the verdict was the one expected."""
    cores = {"plain": 1, "pooled": CORES, "weir": CORES}
    names = {
        "plain": "math-verify, one process",
        "pooled": f"math-verify, ProcessPoolExecutor({CORES})",
        "weir": f"Weir, {CORES} workers",
    }
    rows = []
    for name, title in names.items():
        speeds = [
            len(batch) / each[name].seconds / cores[name]
            for batch, each in zip(batches, runs, strict=True)
        ]
        ratio = median(each["plain"].seconds / each[name].seconds for each in runs) / cores[name]
        expected = [
            found == response.right
            for batch, each in zip(batches, runs, strict=True)
            for response, found in zip(batch, each[name].right, strict=True)
        ]
        agree = sum(expected) / len(expected)
        rows.append(
            (
                f"{mix}: {title}, answers/s per core",
                f"{median(speeds):,.0f} ({ratio:.1f}×; {agree:.1%} as expected)",
            )
        )
    gain = median(each["weir on 1"].seconds / each["weir"].seconds for each in runs)
    rows.append((f"{mix}: Weir, {CORES} workers ÷ 1 worker", f"{gain:.2f}"))
    return rows


def scaling_rows(rounds: int) -> list[tuple[str, str]]:
    """What a pool of all cores gains over one worker, beside what bare processes gain."""
    each_call = rounds_of_one_call()
    gains, bare = [], []
    for _ in range(rounds):
        gains.append(calls_through_pool(1, each_call) / calls_through_pool(CORES, each_call))
        bare.append(
            calls_in_bare_processes(1, each_call) / calls_in_bare_processes(CORES, each_call)
        )
    call = f"calls of {1000 * CALL_S:g} ms"
    return [
        (f"{call}: pool of {CORES} ÷ pool of 1, per core", f"{median(gains) / CORES:.2f}"),
        (f"{call}: {CORES} bare processes ÷ 1, per core", f"{median(bare) / CORES:.2f}"),
    ]


def storm_rows(rounds: int) -> list[tuple[str, str]]:
    """Throughput of the other answers lost to hanging ones beyond their own deadlines."""
    lost, hung = [], 0
    with own_processes({"calm": storm, "storm": storm}) as run:
        for batch in mixes(rounds, seed=1)[source()]:
            calm = run["calm"](batch * 2, 0.0)
            stormy = run["storm"](batch * 2, HANGING_SHARE)
            lost.append((stormy.seconds - stormy.held_s / CORES) / calm.seconds - 1)
            hung += stormy.hung
    title = f"{source()}: time lost to {HANGING_SHARE:.0%} hanging answers beyond their deadlines"
    return [(title, f"{median(lost):+.1%} ({hung} hung)")]


def main(arguments: Sequence[str]) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Measure the graders on this machine.")
    parser.add_argument("--rounds", type=int, default=3)
    rows = measure(parser.parse_args(arguments).rounds)
    print(f"| {CORES} cores, groups of {GROUP_SIZE} | |\n|---|---|")
    for what, how_much in rows:
        print(f"| {what} | {how_much} |")


if __name__ == "__main__":
    main(sys.argv[1:])
