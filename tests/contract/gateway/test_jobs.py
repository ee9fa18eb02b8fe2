"""Jobs over REST, with the real gateway process and a real Valkey server.

Invalid bodies are in tests/unit/gateway; here are refusals that need the deployment.
"""

import json
import secrets
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from protocol import __version__, streams
from protocol.exchange import Exchange
from protocol.messages import JobState
from protocol.recipe_files import merge_tables

from tests.contract.gateway.stack import (
    GOOD_LINE,
    JOBS,
    KEY,
    RECIPE,
    Client,
    Stack,
    a_body,
    a_checkpoint,
    a_job,
    a_job_in,
    assert_refused,
    record_events,
    reinforcement,
    submit_job,
    take_up,
    train,
    upload,
    wait_until_ready,
)

pytestmark = pytest.mark.redis
UNREADABLE_RECIPE = '{"new_table": {}}'


def upload_named(http: Client, name: str) -> str:
    return upload(http, GOOD_LINE.replace('"a"', f'"{name}"')).json()["id"]


def damage(stack: Stack, job_id: str, fields: dict[Any, str]) -> None:
    with stack.server.client() as client:
        client.hset(streams.job_key(job_id), mapping=fields)


def messages(page: Any) -> list[str]:
    return [event["message"] for event in page["data"]]


# ---------------------------------------------------------------------- submissions


def test_a_job_stores_the_recipe_with_the_folder_and_the_file_ids(
    stack: Stack, http: Client
) -> None:
    held_out = upload(http, GOOD_LINE).json()["id"]
    settings = {"eval_interval": 2, "eval_samples": 3, "batch_size": 4, "n_epochs": "auto"}
    method = reinforcement(hyperparameters=settings)
    folder = str(stack.models / "tiny")
    job = a_job(
        http,
        validation_file=held_out,
        suffix="mine",
        method=method,
        model=folder,
    )
    recipe = stack.record(job["id"]).recipe
    assert recipe.model.path == folder
    assert recipe.tasks.train == job["training_file"]
    assert recipe.tasks.held_out == job["validation_file"] == held_out
    assert job == job | {
        "model": "tiny",
        "user_provided_suffix": "mine",
        "hyperparameters": settings | {"n_epochs": 1},
    }
    assert job["weir"]["recipe"]["training"]["steps"] == job["weir"]["steps"] == 3


def test_a_job_tells_what_each_service_has_used_and_the_gateway_counts_itself(
    stack: Stack, http: Client
) -> None:
    tables = {"machine": {"price_per_gpu_hour": 1.5}, "training": {"budget_gpu_hours": 9}}
    job_id = submit_job(http, recipe=merge_tables(RECIPE, tables))
    train(stack, job_id)
    stack.exchange(lambda exchange: exchange.add_cost(job_id, {"core_seconds:rollout": 1000.0}))
    learner = {"core_seconds:learner": 2000.0, "gpu_seconds:learner": 7200.0}
    stack.exchange(lambda exchange: exchange.add_cost(job_id, learner))

    def used() -> dict[str, float]:
        return http.get(f"{JOBS}/{job_id}").json()["weir"]["bill"]["core_seconds"]

    async def end(exchange: Exchange) -> None:
        await exchange.update_job(job_id, 1, state=JobState.SUCCEEDED)
        await exchange.writer.delete(streams.ACTIVE, streams.BILLED)

    deadline = time.monotonic() + 60
    try:
        while not used().get("gateway"):
            assert time.monotonic() < deadline, used()
            time.sleep(0.1)
    finally:
        stack.exchange(end)
    zeros = {"gateway": 0, "supervisor": 0}
    assert used() | zeros == {"rollout": 1000, "learner": 2000, **zeros}
    bill = http.get(f"{JOBS}/{job_id}").json()["weir"]["bill"]
    assert (bill["gpu_hours"], bill["price"], bill["budget_gpu_hours"]) == (2, 3, 9)


def test_a_job_that_could_fill_redis_is_refused(stack: Stack, http: Client) -> None:
    def limit(num_bytes: int) -> None:
        stack.exchange(lambda exchange: exchange.writer.config_set("maxmemory", num_bytes))

    training = {"steps": 3, "groups_per_step": 4096}
    body = a_body(http, recipe=RECIPE | {"training": training})
    # The job needs (1 + 1) x 4096 x 4 responses x 64 tokens x 16 bytes.
    limit(32 * 2**20)
    try:
        reply = http.post(JOBS, json=body)
    finally:
        limit(0)
    assert_refused(reply, 400, "recipe.rollout")


# ---------------------------------------------------------------------- retries


def test_the_same_key_and_body_make_one_job_and_another_body_is_refused(
    stack: Stack, http: Client
) -> None:
    body = a_body(http)
    key = {"Idempotency-Key": secrets.token_hex(4)}

    def submit(scheme: str) -> str:
        headers = {**key, "Authorization": f"{scheme} {KEY}"}
        return http.post(JOBS, json=body, headers=headers).json()["id"]

    with ThreadPoolExecutor(8) as threads:
        (job_id,) = set(threads.map(submit, 8 * ["Bearer", "bearer ", "BEARER"]))
    assert_refused(
        http.post(JOBS, json=body | {"seed": 1}, headers=key),
        422,
        "Idempotency-Key",
    )
    with stack.http("other-key") as colleague:
        assert colleague.post(JOBS, json=body, headers=key).json()["id"] != job_id


def test_a_retry_of_the_openai_sdk_finds_the_job_of_the_first_try(http: Client) -> None:
    body = a_body(http, metadata={"try": secrets.token_hex(4)})

    def submit(retry_count: int) -> str:
        headers = {"x-stainless-retry-count": str(retry_count)}
        return http.post(JOBS, json=body, headers=headers).json()["id"]

    first = submit(0)
    assert submit(1) == first
    second = submit(0)
    assert second != first
    for job_id in (first, second):
        http.post(f"{JOBS}/{job_id}/cancel")
    assert submit(1) not in {first, second}


def test_the_key_of_a_forgotten_job_makes_no_job_over_its_files(stack: Stack, http: Client) -> None:
    body = a_body(http)
    key = {"Idempotency-Key": secrets.token_hex(4)}
    job_id = http.post(JOBS, json=body, headers=key).json()["id"]
    checkpoint = a_checkpoint(stack, job_id, 2)
    http.post(f"{JOBS}/{job_id}/cancel")
    assert stack.exchange(lambda exchange: exchange.forget_job(job_id))
    reply = http.post(JOBS, json=body, headers=key)
    assert_refused(reply, 409, "Idempotency-Key")
    assert job_id in reply.json()["detail"]
    assert checkpoint.exists()
    assert http.delete(f"{JOBS}/{job_id}").is_success
    assert http.post(JOBS, json=body, headers=key).json()["id"] == job_id


# ---------------------------------------------------------------------- requests to jobs


def test_only_a_failed_job_runs_again_after_its_end(stack: Stack, http: Client) -> None:
    failed = a_job_in(
        stack,
        "failed",
        step=2,
        error="the judge is away",
        finished_at=5.5,
    )
    succeeded = a_job_in(stack, "succeeded")
    cancelled = a_job_in(stack, "cancelled", requested="cancel")
    cancelling = a_job_in(stack, "running")
    for _ in range(2):
        assert http.post(f"{JOBS}/{cancelling}/cancel").json()["status"] == "cancelling"
        job = http.post(f"{JOBS}/{failed}/resume").json()
        assert job["status"] == "queued"
        assert job["error"] is None
        assert job["finished_at"] is None
        assert job["weir"]["step"] == 2
        assert job["weir"]["requested"] == "run"
    for job_id in (succeeded, cancelled, cancelling):
        assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "id")


def test_a_job_with_a_spent_budget_is_resumed_with_a_larger_one(stack: Stack, http: Client) -> None:
    job_id = submit_job(http, recipe=merge_tables(RECIPE, {"training": {"budget_gpu_hours": 2}}))
    take_up(stack, job_id, state="failed", error="no memory")
    used = {"gpu_seconds:learner": 3 * 3600}
    stack.exchange(lambda exchange: exchange.add_cost(job_id, used))
    resume = f"{JOBS}/{job_id}/resume"
    for body in ({}, {"budget_gpu_hours": 3}):
        assert_refused(http.post(resume, json=body), 409, "budget_gpu_hours")
    assert_refused(http.post(resume, json={"budget_gpu_hours": 0}), 400, "budget_gpu_hours")
    assert http.post(resume, json={"budget_gpu_hours": 4}).json()["status"] == "queued"
    assert http.read(f"{JOBS}/{job_id}")["weir"]["bill"]["budget_gpu_hours"] == 4


def test_a_failed_job_without_its_tasks_is_not_resumed(stack: Stack, http: Client) -> None:
    file_id = upload_named(http, "gone")
    job_id = submit_job(http, training_file=file_id)
    take_up(stack, job_id, state="failed", error="no memory")
    assert http.delete(f"/v1/files/{file_id}").is_success
    assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "training_file")
    assert http.read(f"{JOBS}/{job_id}")["status"] == "failed"


def test_jobs_are_found_by_their_labels_page_by_page(http: Client) -> None:
    team = f'é "{secrets.token_hex(4)}\\'
    runs = [submit_job(http, metadata={"team": team, "run": run}) for run in "123"]
    submit_job(http, metadata={"team": team + "s"})
    submit_job(http, metadata={team: "team"})
    for params, expected, has_more in (
        ({"limit": 2}, runs[:0:-1], True),
        ({"limit": 3}, runs[::-1], False),
        ({"limit": 2, "after": runs[1]}, runs[:1], False),
        ({"metadata[run]": "2"}, [runs[1]], False),
    ):
        page = http.read(JOBS, **{"metadata[team]": team}, **params)
        assert [job["id"] for job in page["data"]] == expected
        assert page["has_more"] is has_more


def test_filters_find_jobs_and_cancel_and_delete_all_of_them(stack: Stack, http: Client) -> None:
    name = f"Été {secrets.token_hex(4)}"
    recipe = RECIPE | {"name": name}
    ended, paused, running, queued = (submit_job(http, recipe=recipe) for _ in range(4))
    other = submit_job(http, metadata={"like": name}, model="chat")
    take_up(stack, ended, state="failed")
    take_up(stack, paused, state="paused", requested="pause")
    take_up(stack, running, state="running", requested="cancel")

    def check(expected: list[str], method: str = "GET", path: str = "", **params: Any) -> None:
        reply = http.request(method, JOBS + path, params=params)
        assert [job["id"] for job in reply.json()["data"]] == expected, reply.text

    check([other, queued, running, paused, ended], find=name.upper())
    check([other], find=name.lower(), model="chat")
    check([running], find=running)
    check([queued, running, paused, ended], name=name)
    check([running], name=name, status="cancelling")
    check([paused, ended], name=name, status=["failed", "paused", "running"])
    check([], name=name, model="chat")
    check([], "POST", "/cancel", name=name, status="succeeded")
    check([queued, paused], "POST", "/cancel", name=name)
    take_up(stack, running, state="cancelled")
    check([ended], "DELETE", name=name, status=["failed", "queued"])
    check([queued, running, paused], "DELETE", name=name)
    check([other], find=name)
    for method, path in (("POST", "/cancel"), ("DELETE", "")):
        assert_refused(http.request(method, JOBS + path), 400, "status")


# ---------------------------------------------------------------------- deletions


def test_a_deleted_job_leaves_nothing(stack: Stack, http: Client) -> None:
    job_id = a_job_in(stack, "succeeded")
    record_events(stack, job_id, range(2))
    job_dir = a_checkpoint(stack, job_id, 2).parents[1]
    deleted = http.delete(f"{JOBS}/{job_id}").json()
    assert deleted == {"id": job_id, "object": "fine_tuning.job", "deleted": True}
    for method in ("GET", "DELETE"):
        assert_refused(http.request(method, f"{JOBS}/{job_id}"), 404, "id")
    assert job_id not in {job["id"] for job in http.read(JOBS)["data"]}
    assert not job_dir.exists()
    names = {stream.key(job_id) for stream in streams.WORK_STREAMS}
    names.add(f"{streams.job_key(job_id)}:attempt_token")
    with stack.server.client() as client:
        keys: list[Any] = client.keys(f"*{job_id}*")
        assert {key.decode() for key in keys} <= names


def test_a_job_that_has_not_ended_is_not_deleted(stack: Stack, http: Client) -> None:
    running = a_job_in(stack, "running")
    unreadable = submit_job(http)
    checkpoint = a_checkpoint(stack, unreadable, 2)
    damage(stack, unreadable, {"recipe": UNREADABLE_RECIPE})
    for job_id in (running, unreadable):
        reply = http.delete(f"{JOBS}/{job_id}")
        assert_refused(reply, 409, "id")
        assert reply.headers["x-should-retry"] == "false"
    assert checkpoint.exists()
    http.post(f"{JOBS}/{unreadable}/cancel")
    assert http.delete(f"{JOBS}/{unreadable}").json()["deleted"]


def test_a_file_of_an_unfinished_job_is_not_deleted(stack: Stack, http: Client) -> None:
    file_id = upload_named(http, "kept")
    a_job(http, recipe=RECIPE | {"name": file_id})  # only its name is the id
    assert http.delete(f"/v1/files/{file_id}").is_success
    assert_refused(http.get(f"/v1/files/{file_id}"), 404, "id")
    file_id = upload_named(http, "kept")
    unreadable = json.dumps({"tasks": {"train": file_id}, "new_table": {}})
    for damaged_fields in ({}, {"recipe": unreadable}):
        job_id = submit_job(http, validation_file=file_id)
        damage(stack, job_id, {"attempt": "0", **damaged_fields})
        assert_refused(http.delete(f"/v1/files/{file_id}"), 409, "file_id")
        http.post(f"{JOBS}/{job_id}/cancel")
    assert http.delete(f"/v1/files/{file_id}").is_success


# ---------------------------------------------------------------------- events


def stream_lines(reply: httpx.Response) -> Iterator[str]:
    """Yield the lines of a stream without keep-alives."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    return (line for line in reply.iter_lines() if line and not line.startswith(":"))


def test_the_event_stream_has_every_event_and_continues_after_the_last_id(
    stack: Stack, http: Client
) -> None:
    job_id = submit_job(http)
    record_events(stack, job_id, range(2))
    url = f"{JOBS}/{job_id}/events?stream=true"
    with http.stream("GET", url) as reply:
        remaining = stream_lines(reply)
        lines = [next(remaining) for _ in range(4)]
        record_events(stack, job_id, range(2, 4))
        take_up(stack, job_id, state="succeeded")
        lines += remaining
    assert lines.pop() == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [event["message"] for event in events] == ["m0", "m1", "m2", "m3"]
    assert [f"id: {event['id']}" for event in events] == lines[::2]
    with http.stream(
        "GET",
        url,
        headers={"Last-Event-ID": events[1]["id"]},
    ) as reply:
        assert list(stream_lines(reply)) == [*lines[4:], "data: [DONE]"]


def test_events_begin_after_a_place_that_exists(http: Client) -> None:
    url = f"{JOBS}/{submit_job(http)}/events"
    assert messages(http.read(url, after="0-0")) == []
    reply = http.get(f"{url}?stream=true", headers={"Last-Event-ID": "$"})
    assert_refused(reply, 400, "Last-Event-ID")
    assert_refused(http.get(f"{JOBS}/ftjob-none/events?stream=true"), 404, "id")


def test_unreadable_events_hide_no_others(stack: Stack, http: Client) -> None:
    job_id = submit_job(http)
    record_events(stack, job_id, range(1))
    with stack.server.client() as client:
        for _ in range(250):
            client.xadd(streams.EVENTS.key(job_id), {"header": "garbage"})
    record_events(stack, job_id, range(1, 30))
    names = [f"m{number}" for number in range(30)]
    for order, expected in (("asc", names), ("desc", names[::-1])):
        for limit in (29, 30):
            page = http.read(f"{JOBS}/{job_id}/events", order=order, limit=limit)
            assert messages(page) == expected[:limit]
            assert page["has_more"] == (limit == 29)


# ---------------------------------------------------------------------- unreadable records


@pytest.mark.parametrize(
    "fields",
    [{"recipe": UNREADABLE_RECIPE}, {"created_at": "yesterday"}, {b"\xff": "1"}],
    ids=["another release's field", "no JSON", "a field that is not text"],
)
def test_a_job_with_an_unreadable_record_is_listed_and_can_only_be_cancelled(
    stack: Stack, http: Client, sdk: openai.OpenAI, fields: dict[Any, str]
) -> None:
    good = submit_job(http)
    bad = a_job_in(stack, "running")
    damage(stack, bad, fields)
    first, second = sdk.fine_tuning.jobs.list(limit=2).data
    assert (first.id, first.status) == (bad, "failed")
    assert (second.id, second.status) == (good, "queued")
    assert first.error is not None
    assert bad in first.error.message
    assert __version__ in first.error.message
    url = f"{JOBS}/{bad}"
    assert http.read(url) == http.read(JOBS, limit=1)["data"][0]
    assert http.get(f"{url}/events?stream=true").text.endswith("data: [DONE]\n\n")
    for path in ("events", "checkpoints"):
        assert http.read(f"{url}/{path}")["data"] == []
    for action in ("pause", "resume"):
        assert_refused(http.post(f"{url}/{action}"), 409, "id")
    assert_refused(http.get(f"{url}/model"), 409, "id")
    assert http.post(f"{url}/cancel").json()["status"] == "cancelled"
    assert http.read(url)["status"] == "cancelled"


def test_a_silent_redis_is_a_503_until_it_responds_again(stack: Stack, http: Client) -> None:
    body = a_body(http)
    assert stack.server.process is not None
    stack.server.process.send_signal(signal.SIGSTOP)
    try:
        reply = http.post(JOBS, json=body)
        assert http.get("/healthz").is_success
    finally:
        stack.server.process.send_signal(signal.SIGCONT)
    assert_refused(reply, 503, None)
    assert reply.headers["retry-after"] == "2"
    assert reply.json()["error"]["type"] == "server_error"
    wait_until_ready(stack.url)
    assert http.post(JOBS, json=body).is_success
