"""How long the samples of a job take to open, to list, to search and to show.

``python -m benchmarks.samples`` writes a store of 2,000 steps with 100,000 responses and
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
from collections.abc import Callable
from pathlib import Path

import numpy as np

from services.chassis.pool import Pool
from services.gateway.api.samples import FOLDER, SampleQuery, page_json
from services.gateway.core.samples.group import group_json
from services.gateway.core.samples.store import Store
from services.learner.durable.sample_rows import Row
from tests.builders import a_graded_group, a_group, a_request
from tests.sample_stores import a_response, a_sample, write_samples

STEPS, GROUPS, GROUP_SIZE = 2_000, 12_500, 8


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
    of_step: list[list[Row]] = []
    for number in range(GROUPS):
        responses = [
            a_response(accuracy=draw.choice([0.0, 1.0]), surprise=draw.random(), length=tokens)
            for _ in range(GROUP_SIZE)
        ]
        step = number * STEPS // GROUPS
        rows = a_sample(number, *responses, step=step, graded=made, key=f"train:{number}")
        for row, values in zip(rows, np.split(logprobs, GROUP_SIZE), strict=True):
            row |= {"number": number, "logprobs": values, "entropies": -values}
        if of_step and of_step[0][0]["step"] != step:
            write_samples(folder, *of_step)
            of_step = []
        of_step.append(rows)
    write_samples(folder, *of_step)
    return sum(path.stat().st_size for path in folder.iterdir())


def forget_pages(folder: Path) -> None:
    """Have the system drop what it holds of the files in a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(name: str, work: Callable[[], bytes]) -> None:
    """Print how long the work takes, and its CPU time."""
    began, cpu_before = time.perf_counter(), time.process_time()
    answer = work()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_before
    print(f"| {name} | {seconds * 1e3:.0f} ms | {cpu * 1e3:.0f} ms | {len(answer):,} |")


def measure(job_dir: Path) -> None:
    """Print the table."""
    folder, query = job_dir / FOLDER, SampleQuery()
    print("| | time | CPU | bytes |\n|---|---|---|---|")
    forget_pages(folder)
    timed("first list, nothing in the cache", lambda: page_json(Store(folder), query))
    store = Store(folder)
    timed("first list, pages in the cache", lambda: page_json(store, query))
    timed("the same list again", lambda: page_json(store, query))
    absent = SampleQuery(text="absent")
    timed("a text that none has", lambda: page_json(store, absent))
    write_samples(folder, a_sample(GROUPS, step=STEPS))
    timed("a list when the store has grown", lambda: page_json(store, query))
    write_samples(folder, a_sample(GROUPS + 1, *[a_response(length=32_768)] * 16, step=STEPS + 1))
    long = f"train:{GROUPS + 1}"

    async def read_group() -> bytes:
        async with Pool(1) as pool:
            return await group_json(store, long, pool)

    timed("a group of 16 x 32,768 tokens", lambda: asyncio.run(read_group()))


def main() -> None:
    """Write a store and measure it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=200, help="of each response")
    with tempfile.TemporaryDirectory() as folder:
        size = write_store(Path(folder) / FOLDER, parser.parse_args().tokens)
        print(f"{GROUPS:,} groups of {GROUP_SIZE}, {size / 2**20:,.0f} MiB\n")
        measure(Path(folder))


if __name__ == "__main__":
    main()
