"""Jobs over REST, with the real gateway process and a real Valkey server.

Invalid bodies are in tests/unit/gateway; here are refusals that need the deployment.
"""

from __future__ import annotations

import json
import re
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
    changed,
    record_events,
    reinforcement,
    submit_job,
    take_up,
    train,
    upload,
    wait_until_ready,
)
from weir.client import WeirClient

pytestmark = pytest.mark.redis
UNREADABLE_RECIPE = '{"new_table": {}}'


def upload_named(http: httpx.Client, name: str) -> str:
    return upload(http, GOOD_LINE.replace('"a"', f'"{name}"')).json()["id"]


def submit_jobs(http: httpx.Client, count: int, **changes: Any) -> list[str]:
    return [submit_job(http, **changes) for _ in range(count)]


def damage(stack: Stack, job_id: str, fields: dict[Any, str]) -> None:
    with stack.server.client() as client:
        client.hset(streams.job_key(job_id), mapping=fields)


def messages(page: httpx.Response) -> list[str]:
    return [event["message"] for event in page.json()["data"]]


# ---------------------------------------------------------------------- submissions


def test_a_job_stores_the_recipe_with_the_folder_and_the_file_ids(
    stack: Stack, http: httpx.Client
) -> None:
    held_out = upload(http, GOOD_LINE).json()["id"]
    settings = {"eval_interval": 2, "eval_samples": 3, "batch_size": 4, "n_epochs": "auto"}
    method = reinforcement(hyperparameters=settings)
    folder = str(stack.models / "tiny")
    job = a_job(http, validation_file=held_out, suffix="mine", method=method, model=folder)
    record = stack.exchange(lambda exchange: exchange.job(job["id"]))
    assert record is not None
    assert record.recipe.model.path == folder
    assert record.recipe.tasks.train == job["training_file"]
    assert record.recipe.tasks.held_out == job["validation_file"] == held_out
    assert job["model"] == "tiny"
    assert job["user_provided_suffix"] == "mine"
    assert job["hyperparameters"] == settings | {"n_epochs": 1}
    assert job["weir"]["recipe"]["training"]["steps"] == job["weir"]["steps"] == 3


CRITIC = {"critic": {"path": "absent"}, "algorithm": {"advantage": "gae"}}
OTHER = {"evaluation": {"others": {"hard": {"held_out": "file-0"}}}}
BAD: dict[str, dict[str, Any]] = {
    "model": {"model": "absent"},
    "recipe.critic.path": {"recipe": RECIPE | CRITIC},
    "training_file": {"training_file": "file-0"},
    "validation_file": {"validation_file": "file-0"},
    "recipe.evaluation.others.hard.held_out": {
        "recipe": RECIPE | OTHER,
        "validation_file": "{file}",
    },
    r"metadata.\ud83d": {"metadata": {"\ud83d": "a"}},
    "recipe.model.max_context": {
        "model": "short",
        "recipe": changed(RECIPE, "model.max_context", 64),
    },
}


@pytest.mark.parametrize("param", BAD)
def test_a_job_that_this_deployment_cannot_run_is_refused_by_its_field(
    http: httpx.Client, param: str
) -> None:
    body = json.dumps(a_body(http, **BAD[param]))
    body = body.replace("{file}", upload(http, GOOD_LINE).json()["id"])
    reply = http.post(JOBS, content=body, headers={"Content-Type": "application/json"})
    assert_refused(reply, 400, param)


def test_a_job_tells_what_each_service_has_used_and_the_gateway_counts_itself(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = submit_job(http)
    train(stack, job_id)
    stack.exchange(lambda exchange: exchange.add_cost("rollout", 1000.0))
    stack.exchange(lambda exchange: exchange.add_cost("learner", 2000.0, 4.0))

    def used() -> dict[str, float]:
        return http.get(f"{JOBS}/{job_id}").json()["weir"]["core_seconds"]

    deadline = time.monotonic() + 60
    while not used().get("gateway"):
        assert time.monotonic() < deadline, used()
        time.sleep(0.1)
    assert used() | {"gateway": 0} == {"rollout": 1000, "learner": 2000, "gateway": 0}
    cost = http.get(f"{JOBS}/{job_id}").json()["weir"]
    assert cost["gpu_seconds"] == {"learner": 4}


@pytest.mark.parametrize("content", [b"{not json", b"a=b"])
def test_a_body_must_be_a_json_object(http: httpx.Client, content: bytes) -> None:
    assert_refused(http.post(JOBS, content=content), 400, "body")


def test_a_job_that_could_fill_redis_is_refused(stack: Stack, http: httpx.Client) -> None:
    def limit(num_bytes: int) -> None:
        stack.exchange(lambda exchange: exchange.writer.config_set("maxmemory", num_bytes))

    body = a_body(http, recipe=changed(RECIPE, "training.groups_per_step", 4096))
    # The job needs (1 + 1) x 4096 x 4 responses x 64 tokens x 16 bytes.
    limit(32 * 2**20)
    try:
        reply = http.post(JOBS, json=body)
    finally:
        limit(0)
    assert_refused(reply, 400, "recipe.rollout")


# ---------------------------------------------------------------------- retries


def test_the_same_key_and_body_make_one_job_and_another_body_is_refused(
    stack: Stack, http: httpx.Client
) -> None:
    body = a_body(http)
    key = {"Idempotency-Key": secrets.token_hex(4)}
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: http.post(JOBS, json=body, headers=key), range(8)))
    for scheme in ("bearer ", "BEARER"):
        headers = {**key, "Authorization": f"{scheme} {KEY}"}
        replies.append(http.post(JOBS, json=body, headers=headers))
    (job_id,) = {reply.json()["id"] for reply in replies}
    reply = http.post(JOBS, json=body | {"seed": 1}, headers=key)
    assert_refused(reply, 422, "Idempotency-Key")
    with stack.http("other-key") as colleague:
        assert colleague.post(JOBS, json=body, headers=key).json()["id"] != job_id


def test_a_retry_of_the_openai_sdk_finds_the_job_of_the_first_try(http: httpx.Client) -> None:
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


def test_the_key_of_a_forgotten_job_makes_no_job_over_its_files(
    stack: Stack, http: httpx.Client
) -> None:
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


def test_only_a_failed_job_runs_again_after_its_end(stack: Stack, http: httpx.Client) -> None:
    failed, succeeded, cancelled, cancelling = submit_jobs(http, 4)
    take_up(stack, failed, state="failed", step=2, error="the judge is away", finished_at=5.5)
    take_up(stack, succeeded, state="succeeded")
    take_up(stack, cancelled, state="cancelled", requested="cancel")
    take_up(stack, cancelling, state="running")
    for _ in range(2):
        job = http.post(f"{JOBS}/{cancelling}/cancel").json()
        assert job["status"] == "cancelling"
    for _ in range(2):
        job = http.post(f"{JOBS}/{failed}/resume").json()
        assert job["status"] == "queued"
        assert job["error"] is None
        assert job["finished_at"] is None
        assert job["weir"]["step"] == 2
        assert job["weir"]["requested"] == "run"
    for job_id in (succeeded, cancelled, cancelling):
        assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "id")


def test_a_failed_job_without_its_tasks_is_not_resumed(stack: Stack, http: httpx.Client) -> None:
    file_id = upload_named(http, "gone")
    job_id = submit_job(http, training_file=file_id)
    take_up(stack, job_id, state="failed", error="no memory")
    assert http.delete(f"/v1/files/{file_id}").is_success
    assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "training_file")
    assert http.get(f"{JOBS}/{job_id}").json()["status"] == "failed"


def test_jobs_are_found_by_their_labels_page_by_page(http: httpx.Client) -> None:
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
        page = http.get(JOBS, params={"metadata[team]": team, **params}).json()
        assert [job["id"] for job in page["data"]] == expected
        assert page["has_more"] is has_more


def test_filters_find_jobs_and_cancel_and_delete_all_of_them(
    stack: Stack, http: httpx.Client
) -> None:
    name = f"Été {secrets.token_hex(4)}"
    ended, paused, running, queued = submit_jobs(http, 4, recipe=RECIPE | {"name": name})
    other = submit_job(http, metadata={"like": name}, model="chat")
    take_up(stack, ended, state="failed")
    take_up(stack, paused, state="paused", requested="pause")
    take_up(stack, running, state="running", requested="cancel")

    def find(method: str = "GET", path: str = "", **params: Any) -> list[str]:
        reply = http.request(method, JOBS + path, params=params)
        assert reply.status_code == 200, reply.text
        return [job["id"] for job in reply.json()["data"]]

    assert find(find=name.upper()) == [other, queued, running, paused, ended]
    assert find(find=name.lower(), model="chat") == [other]
    assert find(find=running) == [running]
    assert find(name=name) == [queued, running, paused, ended]
    assert find(name=name, status="cancelling") == [running]
    assert find(name=name, status=["failed", "paused", "running"]) == [paused, ended]
    assert find(name=name, model="chat") == []
    assert find("POST", "/cancel", name=name, status="succeeded") == []
    assert find("POST", "/cancel", name=name) == [queued, paused]
    take_up(stack, running, state="cancelled")
    assert find("DELETE", name=name, status=["failed", "queued"]) == [ended]
    assert find("DELETE", name=name) == [queued, running, paused]
    assert find(find=name) == [other]
    for method, path in (("POST", "/cancel"), ("DELETE", "")):
        assert_refused(http.request(method, JOBS + path), 400, "status")


# ---------------------------------------------------------------------- deletions


def test_a_deleted_job_leaves_nothing(stack: Stack, http: httpx.Client) -> None:
    job_id = submit_job(http)
    take_up(stack, job_id, state="succeeded")
    record_events(stack, job_id, range(2))
    job_dir = a_checkpoint(stack, job_id, 2).parents[1]
    with WeirClient(stack.url, KEY) as weir:
        assert weir.delete(job_id) == {"id": job_id, "object": "fine_tuning.job", "deleted": True}
    for reply in (http.get(f"{JOBS}/{job_id}"), http.delete(f"{JOBS}/{job_id}")):
        assert_refused(reply, 404, "id")
    assert job_id not in {job["id"] for job in http.get(JOBS).json()["data"]}
    assert not job_dir.exists()
    allowed = {stream.key(job_id).encode() for stream in streams.WORK_STREAMS}
    allowed.add(f"{streams.job_key(job_id)}:attempt_token".encode())
    with stack.server.client() as client:
        assert set(client.keys(f"*{job_id}*")) <= allowed


def test_a_job_that_has_not_ended_is_not_deleted(stack: Stack, http: httpx.Client) -> None:
    running, unreadable = submit_jobs(http, 2)
    checkpoint = a_checkpoint(stack, unreadable, 2)
    take_up(stack, running, state="running")
    damage(stack, unreadable, {"recipe": UNREADABLE_RECIPE})
    for job_id in (running, unreadable):
        reply = http.delete(f"{JOBS}/{job_id}")
        assert_refused(reply, 409, "id")
        assert reply.headers["x-should-retry"] == "false"
    assert checkpoint.exists()
    http.post(f"{JOBS}/{unreadable}/cancel")
    assert http.delete(f"{JOBS}/{unreadable}").json()["deleted"]


def test_a_file_of_an_unfinished_job_is_not_deleted(stack: Stack, http: httpx.Client) -> None:
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
    stack: Stack, http: httpx.Client
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
    with http.stream("GET", url, headers={"Last-Event-ID": events[1]["id"]}) as reply:
        assert list(stream_lines(reply)) == [*lines[4:], "data: [DONE]"]


@pytest.fixture(scope="module")
def job_id(stack: Stack) -> str:
    with stack.http() as http:
        return submit_job(http)


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("", "after=ftjob-none"),
        ("", "frob=1"),
        ("/ftjob-none", "frob=1"),
        ("/ftjob-none/samples", "frob=1"),
        ("/{}/events", "after=yesterday"),
        ("/{}/events", "limit=0"),
        ("/{}/events", "order=sideways"),
        ("/{}/samples", "step=-1"),
        ("/{}/samples", "purpose=fun"),
        ("/{}/samples", "after=train:0/0"),
        ("/{}/samples", "limit=0"),
    ],
)
def test_a_wrong_query_is_refused_by_its_parameter(
    http: httpx.Client, job_id: str, path: str, query: str
) -> None:
    reply = http.get(f"{JOBS}{path.format(job_id)}?{query}")
    assert_refused(reply, 400, query.partition("=")[0])


def test_events_begin_after_a_place_that_exists(http: httpx.Client, job_id: str) -> None:
    url = f"{JOBS}/{job_id}/events"
    assert messages(http.get(f"{url}?after=0-0")) == []
    reply = http.get(f"{url}?stream=true", headers={"Last-Event-ID": "$"})
    assert_refused(reply, 400, "Last-Event-ID")
    assert_refused(http.get(f"{JOBS}/ftjob-none/events?stream=true"), 404, "id")


def test_unreadable_events_hide_no_others(stack: Stack, http: httpx.Client) -> None:
    job_id = submit_job(http)
    record_events(stack, job_id, range(1))
    with stack.server.client() as client, client.pipeline() as pipe:
        for _ in range(250):
            pipe.xadd(streams.EVENTS.key(job_id), {"header": "garbage"})
        pipe.execute()
    record_events(stack, job_id, range(1, 30))
    take_up(stack, job_id, state="succeeded")
    url = f"{JOBS}/{job_id}/events"
    names = [f"m{number}" for number in range(30)]
    for order, expected in (("asc", names), ("desc", names[::-1])):
        for limit in (29, 30):
            page = http.get(url, params={"order": order, "limit": limit})
            assert messages(page) == expected[:limit]
            assert page.json()["has_more"] == (limit == 29)
    stream = http.get(url, params={"stream": "true"}).text
    assert re.findall(r'"message": "(m\d+)"', stream) == names


# ---------------------------------------------------------------------- unreadable records


@pytest.mark.parametrize(
    "fields",
    [{"recipe": UNREADABLE_RECIPE}, {"created_at": "yesterday"}, {b"\xff": "1"}],
    ids=["another release's field", "no JSON", "a field that is not text"],
)
def test_a_job_with_an_unreadable_record_is_listed_and_can_only_be_cancelled(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI, fields: dict[Any, str]
) -> None:
    good, bad = submit_jobs(http, 2)
    take_up(stack, bad, state="running")
    record_events(stack, bad, range(2))
    damage(stack, bad, fields)
    first, second = sdk.fine_tuning.jobs.list(limit=2).data
    assert first.id == bad
    assert first.object == "fine_tuning.job"
    assert first.status == "failed"
    assert second.id == good
    assert second.status == "queued"
    assert first.error is not None
    assert bad in first.error.message
    assert __version__ in first.error.message
    url = f"{JOBS}/{bad}"
    assert http.get(url).json() == http.get(JOBS, params={"limit": 1}).json()["data"][0]
    assert messages(http.get(f"{url}/events")) == ["m1", "m0"]
    assert http.get(f"{url}/events?stream=true").text.endswith("data: [DONE]\n\n")
    assert http.get(f"{url}/checkpoints").json()["data"] == []
    for reply in (http.post(f"{url}/pause"), http.post(f"{url}/resume"), http.get(f"{url}/model")):
        assert_refused(reply, 409, "id")
    assert http.post(f"{url}/cancel").json()["status"] == "cancelled"
    assert http.get(url).json()["status"] == "cancelled"


def test_a_silent_redis_is_a_503_until_it_responds_again(stack: Stack, http: httpx.Client) -> None:
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
