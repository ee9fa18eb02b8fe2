"""Jobs that have ended: deleted, bounded, searched; and submissions that come again much later."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
from protocol import streams
from protocol.exchange import Exchange
from protocol.exchange.jobs import JOB_INDEX
from protocol.messages import JobState, Requested

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.gateway.files.store import FileStore
from services.gateway.jobs.folders import put_aside
from services.gateway.jobs.service import JobService
from services.gateway.watch.fleet import tidy_forever
from tests.builders import a_job_record, an_event
from tests.contract.gateway.stack import (
    GOOD_LINE,
    JOBS,
    KEY,
    RECIPE,
    Stack,
    a_body,
    a_checkpoint,
    a_job,
    assert_refused,
    record_events,
    take_up,
    upload,
)
from tests.contract.valkey_server import Server
from weir.client import WeirClient, WeirError

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


# ---------------------------------------------------------------------- deleted


def test_a_job_that_has_ended_is_deleted_with_all_that_is_left_of_it(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="succeeded")
    record_events(stack, job_id, range(2))
    folder = stack.data_dir / "jobs" / job_id
    (folder / "checkpoints/step-000002").mkdir(parents=True)
    (folder / "model").mkdir()
    with WeirClient(stack.url, KEY) as weir:
        assert weir.delete(job_id) == {"id": job_id, "object": "fine_tuning.job", "deleted": True}
        with pytest.raises(WeirError, match="no job"):
            weir.delete(job_id)
    assert_refused(http.get(f"{JOBS}/{job_id}"), 404, "id")
    assert job_id not in {job["id"] for job in http.get(JOBS).json()["data"]}
    assert not folder.exists()
    with stack.server.client() as client:
        assert set(client.keys(f"*{job_id}*")) <= {
            stream.key(job_id).encode() for stream in streams.WORK_STREAMS
        } | {f"{streams.job_key(job_id)}:attempt_token".encode()}


def test_a_job_is_deleted_once_it_has_ended_and_loses_nothing_before(
    stack: Stack, http: httpx.Client
) -> None:
    running, broken = a_job(http)["id"], a_job(http)["id"]
    kept = stack.data_dir / "jobs" / broken / "samples"
    kept.mkdir(parents=True)
    take_up(stack, running, state="running")
    with stack.server.client() as client:
        client.hset(streams.job_key(broken), "recipe", '{"new_table": {}}')
    for job_id in (running, broken):
        reply = http.delete(f"{JOBS}/{job_id}")
        assert_refused(reply, 409, "id")
        assert reply.headers["x-should-retry"] == "false"
    assert kept.exists()
    http.post(f"{JOBS}/{broken}/cancel")
    assert http.delete(f"{JOBS}/{broken}").json()["deleted"]
    assert_refused(http.delete(f"{JOBS}/{broken}"), 404, "id")


def test_a_file_is_kept_for_a_job_that_waits_and_not_for_one_that_only_names_it(
    http: httpx.Client,
) -> None:
    def uploaded() -> str:
        return upload(http, GOOD_LINE.replace('"a"', '"kept"')).json()["id"]

    file = uploaded()
    a_job(http, recipe=RECIPE | {"name": file})
    assert http.delete(f"/v1/files/{file}").status_code == 200
    assert_refused(http.get(f"/v1/files/{file}"), 404, "id")
    file = uploaded()
    used = a_job(http, validation_file=file)["id"]
    assert_refused(http.delete(f"/v1/files/{file}"), 409, "file_id")
    http.post(f"{JOBS}/{used}/cancel")
    assert http.delete(f"/v1/files/{file}").status_code == 200


# ---------------------------------------------------------------------- bounded


async def test_the_oldest_jobs_that_have_ended_are_forgotten_and_no_other(
    server: Server, exchange: Exchange
) -> None:
    for number in range(6):
        job_id = f"job-{number}"
        await exchange.submit(a_job_record(job_id, created_at=float(number)))
        for count in range(50):
            await exchange.record_event(an_event(f"{count}", job_id=job_id, message="m" * 1000))
        if number != 1:
            await exchange.request_state(job_id, Requested.CANCEL)
    assert await exchange.forget_oldest(10**9) == []
    with server.client() as client:
        size: Any = client.memory_usage(streams.EVENTS.key("job-5"))
    assert await exchange.forget_oldest(int(3.5 * size)) == ["job-0", "job-2"]
    assert await exchange.job_ids() == ["job-5", "job-4", "job-3", "job-1"]
    with server.client() as client:
        assert client.keys("*job-0*") == []
    assert await exchange.forget_oldest(0) == ["job-3", "job-4", "job-5"]
    assert await exchange.job_ids() == ["job-1"]


async def test_what_a_gateway_had_no_time_to_remove_goes_later(
    server: Server, exchange: Exchange, tmp_path: Path
) -> None:
    job_dir = tmp_path / "jobs" / "job"
    (job_dir / "samples").mkdir(parents=True)
    put_aside(job_dir)
    values = {"WEIR_REDIS_URL": server.url, "WEIR_DATA_DIR": str(tmp_path), "WEIR_PORT": "0"}
    service = Service("gateway", Deployment.from_environment(values), exchange)
    jobs = JobService(service, FileStore(tmp_path / "files"))
    tidying = asyncio.create_task(tidy_forever(service, jobs))
    async with asyncio.timeout(60):
        while list((tmp_path / "jobs").iterdir()):
            await asyncio.sleep(0.01)
    service.stop()
    await tidying


# ---------------------------------------------------------------------- searched


def test_jobs_are_found_by_their_labels_page_by_page_however_they_are_written(
    http: httpx.Client,
) -> None:
    team = f'é "{secrets.token_hex(4)}\\'
    made = [a_job(http, metadata={"team": team, "run": str(n)})["id"] for n in range(3)]
    a_job(http, metadata={"team": team + "s"})
    a_job(http, metadata={team: "team"})
    query = {"metadata[team]": team, "limit": "2"}
    first = http.get(JOBS, params=query).json()
    assert ([job["id"] for job in first["data"]], first["has_more"]) == (made[:0:-1], True)
    assert not http.get(JOBS, params=query | {"limit": "3"}).json()["has_more"]
    second = http.get(JOBS, params=query | {"after": first["last_id"]}).json()
    assert ([job["id"] for job in second["data"]], second["has_more"]) == (made[:1], False)
    one = http.get(JOBS, params=query | {"metadata[run]": "1"}).json()
    assert [job["id"] for job in one["data"]] == [made[1]]
    assert_refused(http.get(JOBS, params={"after": "ftjob-none"}), 400, "after")


async def test_a_search_looks_at_all_jobs_a_thousand_at_a_time(
    server: Server, exchange: Exchange
) -> None:
    record = a_job_record().model_dump(mode="json")
    fields: dict[Any, Any] = {name: json.dumps(value) for name, value in record.items()}
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for number in range(2_500):
            job_id = f"job-{number:04}"
            values = fields | {"id": json.dumps(job_id)}
            if number in {0, 1_400, 2_499}:
                values["request"] = json.dumps({"metadata": {"team": "maths"}})
            pipe.hset(streams.job_key(job_id), mapping=values)
            pipe.zadd(JOB_INDEX, {job_id: number})
        pipe.execute()

    async def found(after: str | None, limit: int, team: str = "maths") -> list[str] | None:
        records = await exchange.find_jobs(after, limit, {"team": team})
        return None if records is None else [record.id for record in records]

    assert await found(None, 10) == ["job-2499", "job-1400", "job-0000"]
    assert await found("job-1400", 1) == ["job-0000"]
    assert await found(None, 10, "nobody") == []
    assert await found("nobody", 10) is None
    assert (await exchange.count_states())[JobState.QUEUED] == 2_500


# ---------------------------------------------------------------------- submitted again


def test_a_key_whose_job_was_forgotten_makes_no_other_job_over_what_that_one_has_left(
    stack: Stack, http: httpx.Client
) -> None:
    body, headers = a_body(http), {"Idempotency-Key": secrets.token_hex(4)}
    job_id = http.post(JOBS, json=body, headers=headers).json()["id"]
    checkpoint = a_checkpoint(stack, job_id, 2)
    assert http.post(JOBS, json=body, headers=headers).json()["id"] == job_id
    http.post(f"{JOBS}/{job_id}/cancel")
    assert stack.exchange(lambda exchange: exchange.forget_job(job_id))
    refused = http.post(JOBS, json=body, headers=headers)
    assert_refused(refused, 409, "Idempotency-Key")
    assert job_id in refused.json()["detail"]
    assert refused.headers["x-should-retry"] == "false"
    assert checkpoint.exists()
    assert http.delete(f"{JOBS}/{job_id}").status_code == 200
    assert http.post(JOBS, json=body, headers=headers).json()["id"] == job_id
