"""What watching costs a job: ``python -m tests.benchmarks.followers``.

A stack trains with the demo's recipe while, in turns of some steps, nobody watches; 200 clients
follow its events; and, where there is a Chromium, the page is open as well. A table tells the
median time of a step, its ratio to that of an unwatched one, and how much of one core the gateway
and Valkey took meanwhile. Watchers use the same cores.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import psutil
from playwright.async_api import async_playwright
from protocol.recipe import load_recipe

from services.gateway.client.client import JOBS
from tests.contract.page.conftest import CHROMIUM, FLAGS
from tests.stack.conftest import ROOT, Stack, start

FOLLOWERS = 200
STEPS = 12  # of a turn
SETTLING = 4  # steps before them, in which watchers read what has been
ROUNDS = 8


async def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        stack = start(Path(folder) / "stack")
        try:
            stack.wait_until_up()
            await measure(stack, submit(stack))
        finally:
            stack.supervisor.terminate()
            stack.supervisor.wait(60)


def submit(stack: Stack) -> str:
    """A job that outlasts the measurement, without the pauses of evaluations."""
    recipe = load_recipe(ROOT / "recipes/demo.toml")
    training = recipe.training.model_copy(update={"steps": 10_000})
    recipe = recipe.model_copy(update={"training": training, "evaluation": None})
    with stack.client() as weir:
        return weir.submit_recipe(recipe, model=str(ROOT / recipe.model.path))["id"]


async def measure(stack: Stack, job_id: str) -> None:
    """Let the watchers come and go, and read the times of steps from the job's events."""
    watchers = {"nobody": nothing, f"{FOLLOWERS} followers": followers}
    if CHROMIUM.exists():
        watchers[f"{FOLLOWERS} followers, and the page"] = followers_and_page
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    shares: defaultdict[str, list[list[float]]] = defaultdict(list)
    for _ in range(ROUNDS):
        for name, watching in watchers.items():
            async with watching(stack, job_id):
                await next_steps(stack, job_id, SETTLING)
                before, began = cpu_seconds(stack), time.monotonic()
                seconds[name] += await next_steps(stack, job_id, STEPS)
                passed = time.monotonic() - began
            spent = zip(before, cpu_seconds(stack), strict=True)
            shares[name].append([(after - earlier) / passed for earlier, after in spent])
    base = statistics.median(seconds["nobody"])
    print(
        f"{'who watches':32} {'steps':>6} {'median':>8} {'ratio':>6} {'gateway':>8} {'valkey':>7}"
    )
    for name, taken in seconds.items():
        median = statistics.median(taken)
        gateway, valkey = (statistics.mean(each) for each in zip(*shares[name], strict=True))
        print(
            f"{name:32} {len(taken):6} {median:6.3f} s {median / base:6.3f} "
            f"{gateway:8.1%} {valkey:7.1%}"
        )


def cpu_seconds(stack: Stack) -> list[float]:
    """What the gateway and Valkey have spent of a core."""
    processes = (psutil.Process(stack.facts["process_ids"][name]) for name in ("gateway", "valkey"))
    return [sum(process.cpu_times()[:2]) for process in processes]


async def next_steps(stack: Stack, job_id: str, count: int) -> list[float]:
    """The seconds of each of the next steps."""
    with stack.client() as weir:
        step = first = weir.job(job_id)["weir"]["step"]
        while step < first + count:
            await asyncio.sleep(0.5)
            step = (await asyncio.to_thread(weir.job, job_id))["weir"]["step"]
        events = await asyncio.to_thread(lambda: list(weir.past_events(job_id)))
    taken = {e["data"]["step"]: e["data"]["seconds"] for e in events if e["type"] == "metrics"}
    return [taken[each] for each in range(first + 1, first + count + 1)]


@asynccontextmanager
async def nothing(stack: Stack, job_id: str) -> AsyncIterator[None]:
    """Watch nothing."""
    yield


@asynccontextmanager
async def followers(stack: Stack, job_id: str) -> AsyncIterator[None]:
    """Clients that read every event and make nothing of it."""
    url = httpx.URL(stack.facts["url"])
    request = (
        f"GET {JOBS}/{job_id}/events?stream=true HTTP/1.1\r\nHost: {url.host}\r\n"
        f"Authorization: Bearer {stack.facts['api_key']}\r\n\r\n"
    )
    lines = [await asyncio.open_connection(url.host, url.port) for _ in range(FOLLOWERS)]
    for _, writer in lines:
        writer.write(request.encode())
    reading = [asyncio.create_task(reader.read(-1)) for reader, _ in lines]
    try:
        yield
    finally:
        for task, (_, writer) in zip(reading, lines, strict=True):
            task.cancel()
            writer.close()


@asynccontextmanager
async def followers_and_page(stack: Stack, job_id: str) -> AsyncIterator[None]:
    """The followers, and a browser that draws the job's curves."""
    async with AsyncExitStack() as exits:
        await exits.enter_async_context(followers(stack, job_id))
        playwright = await exits.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        page = await browser.new_page(base_url=stack.facts["url"])
        key = f"sessionStorage.setItem('weir.key', '{stack.facts['api_key']}')"
        await page.add_init_script(key)
        await page.goto(f"/#/jobs/{job_id}")
        await page.wait_for_selector(".curve canvas", timeout=60_000)
        yield
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
