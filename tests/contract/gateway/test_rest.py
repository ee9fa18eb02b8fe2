"""The REST surface, with the real gateway process, a real Valkey server, and the OpenAI SDK."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.contract.gateway.stack import (
    GOOD_LINE,
    JOBS,
    KEY,
    Stack,
    a_body,
    a_job,
    assert_refused,
    record_events,
    reinforcement,
    take_up,
    upload,
    wait_until_ready,
)

pytestmark = pytest.mark.redis


# ---------------------------------------------------------------------- jobs


def test_a_job_stores_the_recipe_with_the_folder_and_the_file_ids(
    stack: Stack, http: httpx.Client
) -> None:
    held_out = upload(http, GOOD_LINE).json()["id"]
    settings = {"eval_interval": 2, "eval_samples": 3, "batch_size": 4, "n_epochs": "auto"}
    method = reinforcement(hyperparameters=settings)
    job = a_job(http, validation_file=held_out, suffix="mine", method=method)
    record = stack.exchange(lambda exchange: exchange.job(job["id"]))
    assert record is not None
    assert record.recipe.model.path == str(stack.models / "tiny")
    assert record.recipe.tasks.train == job["training_file"]
    assert record.recipe.tasks.held_out == job["validation_file"] == held_out
    assert (job["model"], job["user_provided_suffix"]) == ("tiny", "mine")
    assert job["hyperparameters"] == settings | {"n_epochs": 1}
    assert job["weir"]["recipe"]["training"]["steps"] == job["weir"]["steps"] == 3


def test_the_same_key_and_body_make_one_job_and_another_body_is_refused(
    stack: Stack, http: httpx.Client
) -> None:
    body, headers = a_body(http), {"Idempotency-Key": "monday"}
    first = http.post(JOBS, json=body, headers=headers).json()
    before = stack.left()
    for spelt in ("Bearer", "bearer ", "BEARER"):
        again = http.post(JOBS, json=body, headers={**headers, "Authorization": f"{spelt} {KEY}"})
        assert again.json()["id"] == first["id"]
    reply = http.post(JOBS, json=body | {"seed": 1}, headers=headers)
    assert_refused(reply, 422, "Idempotency-Key")
    assert stack.left() == before
    with stack.http("other-key") as colleague:
        assert colleague.post(JOBS, json=body, headers=headers).json()["id"] != first["id"]


def test_many_at_once_with_one_key_make_one_job(stack: Stack, http: httpx.Client) -> None:
    body, headers = a_body(http), {"Idempotency-Key": secrets.token_hex(4)}
    with ThreadPoolExecutor(8) as threads:
        replies = threads.map(lambda _: http.post(JOBS, json=body, headers=headers), range(8))
        assert len({reply.json()["id"] for reply in replies}) == 1


def test_a_retry_of_the_openai_sdk_finds_the_job_of_the_first_try(http: httpx.Client) -> None:
    body = a_body(http, metadata={"try": secrets.token_hex(4)})

    def submitted(count: int) -> str:
        headers = {"x-stainless-retry-count": str(count)}
        return http.post(JOBS, json=body, headers=headers).json()["id"]

    first = submitted(0)
    assert submitted(1) == first
    again = submitted(0)
    assert again != first
    for job_id in (first, again):
        http.post(f"{JOBS}/{job_id}/cancel")
    assert submitted(1) not in {first, again}


def test_a_running_job_is_cancelling_until_the_learner_says_so(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="running", step=2)
    assert http.post(f"{JOBS}/{job_id}/cancel").json()["status"] == "cancelling"
    assert http.post(f"{JOBS}/{job_id}/cancel").json()["status"] == "cancelling"
    assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "id")
    take_up(stack, job_id, state="cancelled")
    job = http.get(f"{JOBS}/{job_id}").json()
    assert (job["status"], job["weir"]["step"]) == ("cancelled", 2)
    assert_refused(http.post(f"{JOBS}/{job_id}/pause"), 400, "id")


def test_a_failed_job_is_resumed_and_an_ended_one_is_not(stack: Stack, http: httpx.Client) -> None:
    failed, succeeded, cancelled = (a_job(http)["id"] for _ in range(3))
    take_up(stack, failed, state="failed", step=2, error="the judge is away", finished_at=5.5)
    take_up(stack, succeeded, state="succeeded")
    take_up(stack, cancelled, state="cancelled", requested="cancel")
    for _ in range(2):
        job = http.post(f"{JOBS}/{failed}/resume").json()
        assert (job["status"], job["error"], job["finished_at"]) == ("queued", None, None)
        assert (job["weir"]["step"], job["weir"]["requested"]) == (2, "run")
    for job_id in (succeeded, cancelled):
        assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "id")


def test_a_failed_job_whose_tasks_are_gone_is_not_resumed(stack: Stack, http: httpx.Client) -> None:
    file = upload(http, GOOD_LINE.replace('"a"', '"gone"')).json()["id"]
    job_id = a_job(http, training_file=file)["id"]
    take_up(stack, job_id, state="failed", error="no memory")
    assert http.delete(f"/v1/files/{file}").status_code == 200
    assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "training_file")
    assert http.get(f"{JOBS}/{job_id}").json()["status"] == "failed"


# ---------------------------------------------------------------------- events


def lines_of(reply: httpx.Response) -> Iterator[str]:
    """The lines of a stream, but for signs of life."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    return (line for line in reply.iter_lines() if line and not line.startswith(":"))


def test_the_event_stream_ends_with_done_after_every_event_and_goes_on_after_the_last_id(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = a_job(http)["id"]
    record_events(stack, job_id, range(2))
    url = f"{JOBS}/{job_id}/events?stream=true"
    with http.stream("GET", url) as reply:
        coming = lines_of(reply)
        lines = [next(coming) for _ in range(4)]
        record_events(stack, job_id, range(2, 4))
        take_up(stack, job_id, state="succeeded")
        lines += coming
    assert lines.pop() == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [event["message"] for event in events] == ["m0", "m1", "m2", "m3"]
    assert [f"id: {event['id']}" for event in events] == lines[::2]
    with http.stream("GET", url, headers={"Last-Event-ID": events[1]["id"]}) as reply:
        assert list(lines_of(reply)) == [*lines[4:], "data: [DONE]"]


def test_events_refuse_a_place_that_is_none(http: httpx.Client) -> None:
    job_id = a_job(http)["id"]
    url = f"{JOBS}/{job_id}/events"
    assert http.get(url, params={"after": "0-0"}).json()["data"] == []
    for name, value in (("after", "yesterday"), ("limit", 0), ("order", "sideways")):
        assert_refused(http.get(url, params={name: value}), 400, name)
    reply = http.get(url, params={"stream": "true"}, headers={"Last-Event-ID": "$"})
    assert_refused(reply, 400, "Last-Event-ID")
    assert_refused(http.get(f"{JOBS}/ftjob-none/events?stream=true"), 404, "id")


# ---------------------------------------------------------------------- Redis goes away


def test_a_silent_redis_is_a_503_and_then_all_is_well_again(
    stack: Stack, http: httpx.Client
) -> None:
    body = a_body(http)
    assert stack.server.process is not None
    stack.server.process.send_signal(signal.SIGSTOP)
    try:
        reply = http.post(JOBS, json=body)
        assert http.get("/healthz").status_code == 200
    finally:
        stack.server.process.send_signal(signal.SIGCONT)
    assert_refused(reply, 503, None)
    assert reply.headers["retry-after"] == "2"
    assert reply.json()["error"]["type"] == "server_error"
    wait_until_ready(stack.url)
    assert http.post(JOBS, json=body).status_code == 200
