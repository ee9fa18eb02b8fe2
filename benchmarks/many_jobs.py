"""How fast the gateway is with many jobs: ``python -m benchmarks.many_jobs [JOBS]``.

A gateway on a Valkey of its own that holds so many jobs (10,000), most of which have ended. A table
tells how long requests take.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx
from protocol import streams

from tests.contract.gateway.stack import JOBS, TASKS, a_gateway, a_job, upload
from tests.contract.valkey_server import Server

QUEUED = 100  # of the jobs
TIMES = 9
_INDEX = f"{streams.PREFIX}job_index"


def main(count: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in ("server", "models/tiny"):
            (folder / path).mkdir(parents=True)
        for file in ("config.json", "model.safetensors"):
            (folder / "models/tiny" / file).write_text("{}")
        with (
            Server(folder / "server") as server,
            a_gateway(server, folder) as stack,
            stack.http() as http,
        ):
            http.timeout = httpx.Timeout(120)
            fill(http, server, count)
            measure(http)


def fill(http: httpx.Client, server: Server, count: int) -> None:
    """Copies of one job, all cancelled but for the newest."""
    source = a_job(http, metadata={"team": "maths"})["id"]
    with server.client() as client:
        record: Any = client.hgetall(streams.job_key(source))
        newest: Any = client.zscore(_INDEX, source)
        *_, entry = cast(Any, client.xrange(streams.JOBS.key()))
        pipe = client.pipeline(transaction=False)
        for number in range(1, count):
            job_id = f"ftjob-{number:024x}"
            state = "queued" if number <= QUEUED else "cancelled"
            fields = {b"id": json.dumps(job_id), b"state": json.dumps(state)}
            pipe.hset(streams.job_key(job_id), mapping=record | fields)
            pipe.zadd(_INDEX, {job_id: newest - number})
            if number <= QUEUED:
                header = entry[1][b"header"].decode().replace(source, job_id)
                pipe.xadd(streams.JOBS.key(), {"header": header})
        pipe.execute()


def measure(http: httpx.Client) -> None:
    """Time the requests one after the other."""
    unused = [upload(http, TASKS + "\n" * n).json()["id"] for n in range(1, TIMES + 1)]
    ended = [f"ftjob-{QUEUED + n:024x}" for n in range(1, TIMES + 1)]
    none = {"metadata[team]": "nobody"}
    rows: dict[str, Callable[[int], httpx.Response]] = {
        "list, 20 jobs": lambda _: http.get(JOBS),
        "list, 100 jobs": lambda _: http.get(JOBS, params={"limit": 100}),
        "a filter that finds none": lambda _: http.get(JOBS, params=none),
        "delete a file that is not used": lambda n: http.delete(f"/v1/files/{unused[n]}"),
        "delete a job": lambda n: http.delete(f"{JOBS}/{ended[n]}"),
    }
    print(f"{'request':44}{'median':>10}{'longest':>10}")
    for name, ask in rows.items():
        tell(name, [timed(ask, number) for number in range(TIMES)])


def timed(ask: Callable[[int], httpx.Response], number: int) -> float:
    """Seconds until the answer was here; nan if there is no such request."""
    began = time.perf_counter()
    reply = ask(number)
    return time.perf_counter() - began if reply.status_code == 200 else float("nan")


def tell(name: str, seconds: list[float]) -> None:
    """One row, in milliseconds."""
    median, longest = statistics.median(seconds), max(seconds)
    print(f"{name:44}{1000 * median:7.1f} ms{1000 * longest:7.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
