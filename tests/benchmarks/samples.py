"""How long the samples of a job take to open, to list, to search and to show.

``python -m tests.benchmarks.samples`` writes a store of 2,000 steps with 100,000 responses and
prints one table. The first list is made from nothing, as after a start of the gateway, once with
the store out of the system's page cache and once with it in there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from services.gateway.samples.reading import FOLDER, SampleQuery, Samples
from tests.builders import a_graded_group, a_group, a_request
from tests.sample_stores import record, response_facts, sample_facts, write_segment

STEPS, GROUPS, GROUP_SIZE = 2_000, 12_500, 8
GROUPS_PER_SEGMENT = 250


def write_store(folder: Path, tokens: int) -> int:
    """Fill a store with groups whose responses have so many tokens; returns its bytes."""
    draw, noise = random.Random(1), np.random.default_rng(1)
    group = a_group(
        a_request(group_size=GROUP_SIZE),
        [tokens] * GROUP_SIZE,
        texts=[f"{index}+{index}={2 * index} and so on, {'word ' * tokens}" for index in range(8)],
        behavior_logprobs=-noise.exponential(size=tokens * GROUP_SIZE),
    )
    made = a_graded_group(group)
    logprobs = -noise.exponential(size=tokens * GROUP_SIZE)
    for number in range(GROUPS):
        responses = [
            response_facts(accuracy=draw.choice([0.0, 1.0]), surprise=draw.random(), length=tokens)
            for _ in range(GROUP_SIZE)
        ]
        facts = sample_facts(number, *responses, step=number * STEPS // GROUPS)
        packed = record(facts, graded=made, logprobs=logprobs, entropies=-logprobs)
        write_segment(folder, f"000001-{number // GROUPS_PER_SEGMENT:06d}", packed)
    return sum(path.stat().st_size for path in folder.iterdir())


def forget_pages(folder: Path) -> None:
    """Have the system drop what it holds of the files in a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def timed(name: str, work: Callable[[], Awaitable[bytes]]) -> bytes:
    """Print how long the work takes, its CPU time, and how long the event loop stood still."""
    longest, running = 0.0, True

    async def watch() -> None:
        nonlocal longest
        while running:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)

    watching = asyncio.create_task(watch())
    began, cpu_before = time.perf_counter(), time.process_time()
    answer = await work()
    seconds, cpu, running = time.perf_counter() - began, time.process_time() - cpu_before, False
    await watching
    times = "".join(f"{each * 1e3:>9.0f} ms" for each in (seconds, cpu, longest))
    print(f"{name:<34}{times}{len(answer):>13,}")
    return answer


async def measure(job_dir: Path) -> None:
    """Print the table."""
    print(f"{'':<34}{'time':>12}{'CPU':>12}{'loop stood':>12}{'bytes':>13}")
    for name in ("first list, nothing in the cache", "first list, pages in the cache"):
        if name.endswith("nothing in the cache"):
            forget_pages(job_dir / FOLDER)
        samples = Samples()
        await timed(name, lambda samples=samples: samples.page(job_dir, SampleQuery()))
    for name, query in {
        "the same list again": {},
        "wrong ones, most confident first": {"order": "wrong"},
        "1,000 of a filter": {"order": "surprising", "correct": True, "limit": 1000},
        "a text that all have": {"text": "AND SO ON"},
        "a text that none has": {"text": "absent"},
    }.items():
        await timed(name, lambda query=query: samples.page(job_dir, SampleQuery(**query)))
    write_segment(job_dir / FOLDER, "000002-000000", record(sample_facts(GROUPS)))
    await timed("a list when the store has grown", lambda: samples.page(job_dir, SampleQuery()))
    await timed("one group", lambda: samples.group(job_dir, f"train:{GROUPS // 2}"))
    responses = [response_facts(length=32_768)] * 16
    write_segment(job_dir / FOLDER, "000002-000000", record(sample_facts(GROUPS + 1, *responses)))
    await timed(
        "a group of 16 x 32,768 tokens", lambda: samples.group(job_dir, f"train:{GROUPS + 1}")
    )


def main() -> None:
    """Write a store and measure it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=200, help="of each response")
    parser.add_argument("--store", type=Path, help="a folder to keep it in, or to find it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        job_dir = given.store or Path(temporary)
        if not (job_dir / FOLDER).exists():
            size = write_store(job_dir / FOLDER, given.tokens)
            print(f"{GROUPS:,} groups of {GROUP_SIZE}, {size / 2**20:,.0f} MiB")
        asyncio.run(measure(job_dir))


if __name__ == "__main__":
    main()
