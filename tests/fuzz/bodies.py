"""Random bodies to every route that takes one: ``python -m tests.fuzz.bodies --count 20000``.

Against the real gateway on a real Valkey server, every tenth to a grader's trial, with a real
grader beside it. No answer may be a 5xx, and no job may be queued
but by a POST that says so; afterwards every service must be able to read every record and every
file, and the gateway to start anew and list them. ``--seed`` and ``--only`` repeat a body.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
from protocol.exchange import Exchange
from protocol.frames import decode, encode
from protocol.messages import ActiveJob, GradedGroup
from protocol.tasks import read_tasks

from tests.builders import a_graded_group, a_group, a_request
from tests.contract.gateway.stack import JOBS, KEY, Stack, a_gateway, a_grader, a_job, upload
from tests.contract.valkey_server import Server
from tests.fuzz import hostile

_TRIALS = "/v1/fine_tuning/alpha/graders/run"
_AT_ONCE = 8
_SHOWN = 300  # bytes of a body


@dataclass
class Found:
    """What the gateway answered, and what it must not have."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    queued: set[str] = field(default_factory=set)


def make_model(folder: Path) -> None:
    """The model "tiny" below ``folder``, as far as a gateway looks."""
    (folder / "models/tiny").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / "models/tiny" / name).write_text("{}")


def try_bodies(server: Server, folder: Path, seed: int, numbers: range) -> Found:
    """Post bodies to a gateway of its own, start it anew, and read all that there is."""
    make_model(folder)
    with a_gateway(server, folder) as stack:
        with stack.http() as http:
            found = Found(queued={(known := a_job(http))["id"]})
            file_id = upload(http).json()["id"]
            upload_id = http.post("/v1/uploads", json=hostile.UPLOAD).json()["id"]
            routes = [JOBS, JOBS, *(path for path in post_routes(http) if path != _TRIALS)]
        ids = {"job_id": known["id"], "upload_id": upload_id}
        asyncio.run(_post_all(stack, found, seed, numbers, routes, file_id, ids))
        if (left := stack.left()[0]) != found.queued:
            found.faults.append(f"queued by a POST that did not say so: {left - found.queued}")
    with a_gateway(server, folder) as stack:
        _read_everything(stack, found)
    return found


def try_trials(stack: Stack, seed: int, numbers: range) -> Found:
    """Post trials to a gateway beside which a grader runs."""
    found = Found()
    asyncio.run(_post_all(stack, found, seed, numbers, [_TRIALS], "", {}))
    return found


def post_routes(http: httpx.Client) -> list[str]:
    """Every path that takes a POST."""
    paths = http.get("/openapi.json").json()["paths"]
    return [path for path, operations in paths.items() if "post" in operations]


async def _post_all(
    stack: Stack,
    found: Found,
    seed: int,
    numbers: range,
    routes: list[str],
    file_id: str,
    ids: dict[str, str],
) -> None:
    """Consumes the numbers; every body derives from its number and the seed alone."""
    waiting = iter(numbers)

    async def post_some(http: httpx.AsyncClient) -> None:
        for number in waiting:
            draw = Random(f"{seed}:{number}")
            route = draw.choice(routes)
            body, headers = _request(route, draw, file_id)
            other = draw.choice((None, None, "%00", "x", "%ED%A0%80"))
            path = route.format(**{name: other or ids[name] for name in ids})
            try:
                reply = await http.post(path, content=body, headers=headers)
                if reply.status_code == 503:  # a busy machine's disk: it asks to repeat this
                    reply = await http.post(path, content=body, headers=headers)
            except httpx.HTTPError as error:
                found.faults.append(f"{number}: {route}: {error!r}: {body[:_SHOWN]!r}")
                continue
            found.statuses[route, reply.status_code] += 1
            if reply.status_code >= 500 or "verifier_failed" in reply.text:
                found.faults.append(f"{number}: {route}: {reply.text}: {body[:_SHOWN]!r}")
            elif route == JOBS and reply.status_code == 200:
                found.queued.add(reply.json()["id"])

    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as http:
        await asyncio.gather(*(post_some(http) for _ in range(_AT_ONCE)))


def _request(route: str, draw: Random, file_id: str) -> tuple[bytes, hostile.Headers]:
    if route == "/v1/files" or route.endswith("/parts"):
        return hostile.form(draw, "file" if route == "/v1/files" else "data")
    if route == "/v1/uploads":
        return hostile.text(hostile.UPLOAD, draw)
    if route == JOBS:
        body, headers = hostile.text(hostile.job(draw, file_id), draw)
        return body, headers | hostile.retry(draw)
    if route == _TRIALS:
        return hostile.text(hostile.trial(draw), draw)
    if "/graders/" in route:
        return hostile.text(hostile.grader(draw), draw)
    if route == "/v1/page/recipe":
        return hostile.text(hostile.recipe_text(draw), draw)
    return hostile.text({"a": [1, {"b": "c"}]}, draw)


def _read_everything(stack: Stack, found: Found) -> None:
    """As the other services do, and as a client that lists it."""

    async def read_jobs(exchange: Exchange) -> None:
        for job_id in await exchange.job_ids():
            record = await exchange.job(job_id)
            assert record is not None
            active = ActiveJob(job_id=job_id, attempt=1, recipe=record.recipe)
            ActiveJob.model_validate_json(active.model_dump_json())

    stack.exchange(read_jobs)
    for path in (stack.data_dir / "files").glob("*.jsonl"):
        for task in read_tasks(path):
            group = a_graded_group(a_group(a_request(task=task)))
            decode(GradedGroup, encode(group))
    with stack.http() as http:
        assert _ids(http, JOBS, 100) == found.queued
        _ids(http, "/v1/files", 1000)


def _ids(http: httpx.Client, path: str, limit: int) -> set[str]:
    ids: set[str] = set()
    after: dict[str, str] = {}
    while True:
        reply = http.get(path, params={"limit": limit, **after}, timeout=60)
        assert reply.status_code == 200, reply.text
        page = reply.json()
        ids |= {item["id"] for item in page["data"]}
        if not page["has_more"]:
            return ids
        after = {"after": page["last_id"]}


def main() -> None:
    """Try them, and print a table of the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this body alone")
    given = parser.parse_args()
    numbers = range(given.count) if given.only is None else range(given.only, given.only + 1)
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        found = try_bodies(server, Path(folder), given.seed, numbers)
        with a_gateway(server, Path(folder)) as stack, a_grader(stack):
            trials = try_trials(stack, given.seed, numbers[::10])
    found.statuses += trials.statuses
    found.faults += trials.faults
    for (route, status), times in sorted(found.statuses.items()):
        print(f"{times:6} x {status}  POST {route}")
    print(f"{len(found.queued)} jobs queued, {len(found.faults)} faults", *found.faults, sep="\n")
    raise SystemExit(bool(found.faults))


if __name__ == "__main__":
    main()
