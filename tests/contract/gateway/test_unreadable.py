"""A record that cannot be read concerns its own job and no other."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import openai
import pytest
from protocol import __version__, streams

from tests.contract.gateway.stack import (
    JOBS,
    TASKS,
    Stack,
    a_job,
    assert_refused,
    record_events,
    take_up,
    upload,
)

pytestmark = pytest.mark.redis

DAMAGES = {
    "another release's field": {"recipe": '{"new_table": {}}'},
    "no JSON": {"created_at": "yesterday"},
    "a field that is not text": {b"\xff": "1"},
}


@pytest.fixture
def broken(stack: Stack, http: httpx.Client) -> str:
    """A running job whose record another release has written."""
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="running")
    damage(stack, job_id, {"recipe": '{"new_table": {}}'})
    return job_id


def damage(stack: Stack, job_id: str, fields: dict[Any, str]) -> None:
    with stack.server.client() as client:
        client.hset(streams.job_key(job_id), mapping=fields)


@pytest.mark.parametrize("how", DAMAGES)
def test_the_list_shows_it_beside_the_others_and_says_what_is_wrong(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI, how: str
) -> None:
    good, bad = a_job(http)["id"], a_job(http)["id"]
    damage(stack, bad, DAMAGES[how])
    first, second = sdk.fine_tuning.jobs.list(limit=2).data
    assert (first.id, second.id, second.status) == (bad, good, "queued")
    assert (first.object, first.status) == ("fine_tuning.job", "failed")
    assert first.error is not None
    assert bad in first.error.message
    assert __version__ in first.error.message
    assert http.get(f"{JOBS}/{bad}").json() == http.get(JOBS, params={"limit": 1}).json()["data"][0]


def test_a_cancel_takes_it_out_and_nothing_else_is_done_with_it(
    http: httpx.Client, broken: str
) -> None:
    for request in ("pause", "resume"):
        assert_refused(http.post(f"{JOBS}/{broken}/{request}"), 409, "id")
    assert_refused(http.get(f"{JOBS}/{broken}/model"), 409, "id")
    assert http.post(f"{JOBS}/{broken}/cancel").json()["status"] == "cancelled"
    assert http.get(f"{JOBS}/{broken}").json()["status"] == "cancelled"


def test_its_events_are_shown_to_their_end(stack: Stack, http: httpx.Client, broken: str) -> None:
    record_events(stack, broken, range(2))
    url = f"{JOBS}/{broken}/events"
    assert [event["message"] for event in http.get(url).json()["data"]] == ["m1", "m0"]
    assert http.get(url, params={"stream": "true"}).text.endswith("data: [DONE]\n\n")
    assert http.get(f"{JOBS}/{broken}/checkpoints").json()["data"] == []


@pytest.mark.usefixtures("broken")
def test_events_that_cannot_be_read_hide_none_of_the_others(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = a_job(http)["id"]
    record_events(stack, job_id, range(1))
    with stack.server.client() as client, client.pipeline() as pipe:
        for _ in range(250):
            pipe.xadd(streams.EVENTS.key(job_id), {"header": "garbage"})
        pipe.execute()
    record_events(stack, job_id, range(1, 30))
    take_up(stack, job_id, state="succeeded")
    told = [f"m{number}" for number in range(30)]
    for order, expected in (("asc", told), ("desc", told[::-1])):
        for limit in (29, 30):
            params: Any = {"order": order, "limit": limit}
            page = http.get(f"{JOBS}/{job_id}/events", params=params).json()
            assert [event["message"] for event in page["data"]] == expected[:limit]
            assert page["has_more"] == (limit == 29)
    stream = http.get(f"{JOBS}/{job_id}/events", params={"stream": "true"}).text
    assert re.findall(r'"message": "(m\d+)"', stream) == told
    assert stream.endswith("data: [DONE]\n\n")


def test_its_files_are_kept(stack: Stack, http: httpx.Client) -> None:
    file = upload(http, TASKS.replace("t0", "kept")).json()["id"]
    job_id = a_job(http, training_file=file)["id"]
    damage(stack, job_id, {"recipe": json.dumps({"tasks": {"train": file}, "new_table": {}})})
    assert_refused(http.delete(f"/v1/files/{file}"), 409, "file_id")
    http.post(f"{JOBS}/{job_id}/cancel")
    assert http.delete(f"/v1/files/{file}").status_code == 200
