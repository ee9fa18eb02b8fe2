"""Random bodies to every route that takes one: no answer may be a 5xx.

No job may be queued but by a POST that says so; afterwards every service must be able to read every
record and every file, and a client to list them. Every body derives from the seed and its number.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import httpx
import openai
from protocol.exchange import Exchange
from protocol.frames import decode, encode
from protocol.messages import ActiveJob, GradedGroup, JobRecord
from protocol.tasks import read_tasks

from tests.builders import a_graded_group, a_group, a_request
from tests.contract.gateway.stack import JOBS, KEY, Stack, a_job, upload
from tests.fuzz import hostile

TRIALS = "/v1/fine_tuning/alpha/graders/run"  # which a grader must be there for
_AT_ONCE = 8
_SHOWN = 300  # bytes of a body


@dataclass
class Found:
    """What the gateway answered, and what it must not have."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    queued: set[str] = field(default_factory=set)


def try_bodies(stack: Stack, seed: int, numbers: range) -> Found:
    """Post to every route but that of trials, and read all that there is."""
    known = stack.left()[0]
    with stack.http() as http:
        found = Found(queued=known | {(job := a_job(http))["id"]})
        file_id = upload(http).json()["id"]
        upload_id = http.post("/v1/uploads", json=hostile.UPLOAD).json()["id"]
        paths = http.get("/openapi.json").json()["paths"]
    routes = [path for path, operations in paths.items() if "post" in operations]
    routes = [JOBS, *(path for path in routes if path != TRIALS)]
    ids = {"job_id": job["id"], "upload_id": upload_id}
    asyncio.run(_post_all(stack, found, seed, numbers, routes, file_id, ids))
    if (left := stack.left()[0]) != found.queued:
        found.faults.append(f"queued by a POST that did not say so: {left - found.queued}")
    _read_everything(stack)
    return found


def try_trials(stack: Stack, seed: int, numbers: range) -> Found:
    """Post trials to a gateway beside which a grader runs."""
    found = Found()
    asyncio.run(_post_all(stack, found, seed, numbers, [TRIALS], "", {}))
    return found


async def _post_all(
    stack: Stack,
    found: Found,
    seed: int,
    numbers: range,
    routes: Sequence[str],
    file_id: str,
    ids: dict[str, str],
) -> None:
    waiting = iter(numbers)

    async def post_some(http: httpx.AsyncClient) -> None:
        for number in waiting:
            draw = Random(f"{seed}:{number}")
            route = draw.choice(routes)
            body, headers = hostile.request(route, draw, file_id)
            other = draw.choice((None, None, "%00", "x", "%ED%A0%80"))
            path = route.format(**{name: other or ids[name] for name in ids})
            try:
                reply = await http.post(path, content=body, headers=headers)
                if reply.status_code == 503:  # a busy machine's disk: it asks to repeat this
                    reply = await http.post(path, content=body, headers=headers)
            except httpx.HTTPError as error:
                found.faults.append(f"{number}: {route}: {error!r}: {body[:_SHOWN]!r}")
                continue
            found.statuses[reply.status_code] += 1
            if reply.status_code >= 500 or "verifier_failed" in reply.text:
                found.faults.append(f"{number}: {route}: {reply.text}: {body[:_SHOWN]!r}")
            elif route == JOBS and reply.status_code == 200:
                found.queued.add(reply.json()["id"])

    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as http:
        await asyncio.gather(*(post_some(http) for _ in range(_AT_ONCE)))


def _read_everything(stack: Stack) -> None:
    """As the other services do, and as a client that lists it."""

    async def read_jobs(exchange: Exchange) -> None:
        records = await exchange.find_jobs(None, 10**6, {})
        # Other tests leave records that cannot be read.
        for record in (each for each in records or () if isinstance(each, JobRecord)):
            active = ActiveJob(job_id=record.id, attempt=1, recipe=record.recipe)
            ActiveJob.model_validate_json(active.model_dump_json())

    stack.exchange(read_jobs)
    for path in (stack.data_dir / "files").glob("*.jsonl"):
        for task in read_tasks(path):
            decode(GradedGroup, encode(a_graded_group(a_group(a_request(task=task)))))
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=KEY) as sdk:
        assert list(sdk.fine_tuning.jobs.list(limit=100))
        assert list(sdk.files.list(limit=1000))
