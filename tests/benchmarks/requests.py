"""How soon the gateway answers while a job runs: ``python -m tests.benchmarks.requests``.

A stack trains with the demo's recipe; 200 clients follow its events, and another process sends 100
requests a second for a minute, one after the other by a clock and not by the answers. A table tells
the time until each answer was read, by route. All of them share this machine's cores.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import httpx
import numpy as np

from services.gateway.client.client import JOBS
from tests.benchmarks.followers import followers, next_steps, submit
from tests.stack.conftest import start

PER_SECOND = 100
SECONDS = 60
ROUTES = {
    "the job": f"{JOBS}/{{job}}",
    "the list of jobs": JOBS,
    "20 events": f"{JOBS}/{{job}}/events",
    "20 samples": f"{JOBS}/{{job}}/samples",
    "the files": "/v1/files",
}


async def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        stack = start(Path(folder) / "stack")
        try:
            stack.wait_until_up()
            job_id = submit(stack)
            await next_steps(stack, job_id, 3)
            async with followers(stack, job_id):
                given = (stack.facts["url"], stack.facts["api_key"], job_id)
                command = (sys.executable, "-m", "tests.benchmarks.requests", *given)
                sender = await asyncio.create_subprocess_exec(*command, stdout=-1)
                out, _ = await sender.communicate()
        finally:
            stack.supervisor.terminate()
            stack.supervisor.wait(60)
    show(json.loads(out))


def show(seconds: dict[str, list[float]]) -> None:
    """Print the times of each route, and of all together."""
    print(f"{'what':20} {'requests':>8} {'median':>8} {'95 %':>8} {'99 %':>8} {'longest':>8}")
    together = [each for taken in seconds.values() for each in taken]
    for name, taken in {**seconds, "all": together}.items():
        numbers = np.quantile(taken, [0.5, 0.95, 0.99, 1.0]) * 1000
        print(f"{name:20} {len(taken):8} " + " ".join(f"{number:5.0f} ms" for number in numbers))


async def send(url: str, key: str, job_id: str) -> dict[str, list[float]]:
    """Send the requests; returns the seconds that each took, by what it asks for."""
    taken: defaultdict[str, list[float]] = defaultdict(list)
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=50, keepalive_expiry=2)  # before the gateway closes them
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits) as http:

        async def ask(name: str, path: str) -> None:
            began = time.perf_counter()
            reply = await http.get(path.format(job=job_id))
            taken[name].append(time.perf_counter() - began)
            reply.raise_for_status()

        began, asking = time.perf_counter(), []
        for number in range(PER_SECOND * SECONDS):
            await asyncio.sleep(began + number / PER_SECOND - time.perf_counter())
            name = list(ROUTES)[number % len(ROUTES)]
            asking.append(asyncio.create_task(ask(name, ROUTES[name])))
        await asyncio.gather(*asking)
    return dict(taken)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(asyncio.run(send(*sys.argv[1:]))))
    else:
        asyncio.run(main())
