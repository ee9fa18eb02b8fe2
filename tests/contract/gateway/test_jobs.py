"""Jobs over REST, with the real gateway process and a real Valkey server.

Which bodies are wrong is a matter of tests/unit/gateway; here are those that need the deployment.
"""

from __future__ import annotations

import json
import re
import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from protocol import __version__, streams

from tests.contract.gateway.stack import (
    EXACT,
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
    take_up,
    upload,
    wait_until_ready,
)
from weir.client import WeirClient

pytestmark = pytest.mark.redis


def a_file(http: httpx.Client, name: str) -> str:
    """A file of this test's own."""
    return upload(http, GOOD_LINE.replace('"a"', f'"{name}"')).json()["id"]


def damage(stack: Stack, job_id: str, fields: dict[Any, str]) -> None:
    with stack.server.client() as client:
        client.hset(streams.job_key(job_id), mapping=fields)


# ---------------------------------------------------------------------- submitted


def test_a_job_stores_the_recipe_with_the_folder_and_the_file_ids(
    stack: Stack, http: httpx.Client
) -> None:
    held_out = upload(http, GOOD_LINE).json()["id"]
    settings = {"eval_interval": 2, "eval_samples": 3, "batch_size": 4, "n_epochs": "auto"}
    method = reinforcement(hyperparameters=settings)
    folder = str(stack.models / "tiny")  # by which the model is not listed
    job = a_job(http, validation_file=held_out, suffix="mine", method=method, model=folder)
    record = stack.exchange(lambda exchange: exchange.job(job["id"]))
    assert record is not None
    assert record.recipe.model.path == str(stack.models / "tiny")
    assert record.recipe.tasks.train == job["training_file"]
    assert record.recipe.tasks.held_out == job["validation_file"] == held_out
    assert (job["model"], job["user_provided_suffix"]) == ("tiny", "mine")
    assert job["hyperparameters"] == settings | {"n_epochs": 1}
    assert job["weir"]["recipe"]["training"]["steps"] == job["weir"]["steps"] == 3


def test_openais_data_needs_nothing_else_on_a_model_without_a_chat_template(
    http: httpx.Client,
) -> None:
    asked = [{"role": "user", "content": "1+1=?"}]
    file = upload(http, json.dumps({"messages": asked, "reference_answer": "2"}) + "\n").json()
    grader = EXACT | {"reference": "{{item.reference_answer}}"}
    body = {"model": "tiny", "training_file": file["id"], "method": reinforcement(grader=grader)}
    reply = http.post(JOBS, json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["weir"]["recipe"]["model"]["prompt_template"] == "{prompt}"


CRITIC = {"critic": {"path": "absent"}, "algorithm": {"advantage": "gae"}}
OTHER = {"evaluation": {"others": {"hard": {"held_out": "file-0"}}}}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such model": ({"model": "absent"}, "model"),
    "no such critic": ({"recipe": RECIPE | CRITIC}, "recipe.critic.path"),
    "no such training file": ({"training_file": "file-0"}, "training_file"),
    "no such validation file": ({"validation_file": "file-0"}, "validation_file"),
    "no such other file": (
        {"recipe": RECIPE | OTHER, "validation_file": "{file}"},
        "recipe.evaluation.others.hard.held_out",
    ),
    "half a character": ({"metadata": {"\ud83d": "a"}}, r"metadata.\ud83d"),
    "a context beyond the model's": (
        {"model": "short", "recipe": changed(RECIPE, "model.max_context", 64)},
        "recipe.model.max_context",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_job_that_this_deployment_cannot_work_on_is_refused_by_its_field(
    http: httpx.Client, case: str
) -> None:
    changes, param = BAD[case]
    body = json.dumps(a_body(http, **changes))
    body = body.replace("{file}", upload(http, GOOD_LINE).json()["id"])
    reply = http.post(JOBS, content=body, headers={"Content-Type": "application/json"})
    assert_refused(reply, 400, param)


@pytest.mark.parametrize("content", [b"{not json", b"a=b"])
def test_a_body_that_is_no_json_object_is_refused(http: httpx.Client, content: bytes) -> None:
    assert_refused(http.post(JOBS, content=content), 400, "body")


def test_a_job_that_could_fill_redis_is_refused(stack: Stack, http: httpx.Client) -> None:
    def limit(value: int) -> None:
        stack.exchange(lambda exchange: exchange.writer.config_set("maxmemory", value))

    body = a_body(http, recipe=changed(RECIPE, "training.groups_per_step", 4096))
    limit(32 * 2**20)  # (1 + 1) x 4096 x 4 responses x 64 tokens x 16 bytes are as many
    try:
        reply = http.post(JOBS, json=body)
    finally:
        limit(0)
    assert_refused(reply, 400, "recipe.rollout")
    assert "33,554,432 bytes" in reply.json()["detail"]


# ---------------------------------------------------------------------- submitted again


def test_the_same_key_and_body_make_one_job_and_another_body_is_refused(
    stack: Stack, http: httpx.Client
) -> None:
    body, headers = a_body(http), {"Idempotency-Key": secrets.token_hex(4)}
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: http.post(JOBS, json=body, headers=headers), range(8)))
    for spelt in ("bearer ", "BEARER"):
        own = {**headers, "Authorization": f"{spelt} {KEY}"}
        replies.append(http.post(JOBS, json=body, headers=own))
    (first,) = {reply.json()["id"] for reply in replies}
    assert_refused(
        http.post(JOBS, json=body | {"seed": 1}, headers=headers), 422, "Idempotency-Key"
    )
    with stack.http("other-key") as colleague:
        assert colleague.post(JOBS, json=body, headers=headers).json()["id"] != first


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


def test_a_key_whose_job_was_forgotten_makes_no_other_job_over_what_that_one_has_left(
    stack: Stack, http: httpx.Client
) -> None:
    body, headers = a_body(http), {"Idempotency-Key": secrets.token_hex(4)}
    job_id = http.post(JOBS, json=body, headers=headers).json()["id"]
    checkpoint = a_checkpoint(stack, job_id, 2)
    http.post(f"{JOBS}/{job_id}/cancel")
    assert stack.exchange(lambda exchange: exchange.forget_job(job_id))
    refused = http.post(JOBS, json=body, headers=headers)
    assert_refused(refused, 409, "Idempotency-Key")
    assert job_id in refused.json()["detail"]
    assert checkpoint.exists()
    assert http.delete(f"{JOBS}/{job_id}").status_code == 200
    assert http.post(JOBS, json=body, headers=headers).json()["id"] == job_id


# ---------------------------------------------------------------------- asked


def test_a_running_job_is_cancelling_until_the_learner_says_so(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="running", step=2)
    for _ in range(2):
        assert http.post(f"{JOBS}/{job_id}/cancel").json()["status"] == "cancelling"
    assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "id")
    take_up(stack, job_id, state="cancelled")
    job = http.get(f"{JOBS}/{job_id}").json()
    assert (job["status"], job["weir"]["step"]) == ("cancelled", 2)


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
    file = a_file(http, "gone")
    job_id = a_job(http, training_file=file)["id"]
    take_up(stack, job_id, state="failed", error="no memory")
    assert http.delete(f"/v1/files/{file}").status_code == 200
    assert_refused(http.post(f"{JOBS}/{job_id}/resume"), 400, "training_file")
    assert http.get(f"{JOBS}/{job_id}").json()["status"] == "failed"


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


def test_jobs_are_found_by_status_name_model_or_any_text_and_all_of_them_cancelled_and_deleted(
    stack: Stack, http: httpx.Client
) -> None:
    name = f"Été {secrets.token_hex(4)}"
    recipe = RECIPE | {"name": name}
    ended, rests, runs, waits = (a_job(http, recipe=recipe)["id"] for _ in range(4))
    other = a_job(http, metadata={"like": name}, model="chat")["id"]
    take_up(stack, ended, state="failed")
    take_up(stack, rests, state="paused", requested="pause")
    take_up(stack, runs, state="running", requested="cancel")

    def found(query: dict[str, Any], method: str = "GET", path: str = "") -> list[str]:
        reply = http.request(method, JOBS + path, params=query)
        assert reply.status_code == 200, reply.text
        return [job["id"] for job in reply.json()["data"]]

    for text in (name, name.upper(), name.lower()):
        assert found({"find": text}) == [other, waits, runs, rests, ended]
    assert found({"find": runs}) == [runs]
    for query, ids in (
        ({"status": "cancelling"}, [runs]),
        ({"status": ["failed", "paused", "running"]}, [rests, ended]),
        ({"model": "chat"}, []),
        ({}, [waits, runs, rests, ended]),
    ):
        assert found({"name": name} | query) == ids, query
    assert found({"find": name, "model": "chat"}) == [other]
    assert found({"name": name, "status": "succeeded"}, "POST", "/cancel") == []
    assert found({"name": name}, "POST", "/cancel") == [waits, rests]
    take_up(stack, runs, state="cancelled")
    assert found({"name": name, "status": ["failed", "queued"]}, "DELETE") == [ended]
    assert found({"name": name}, "DELETE") == [waits, runs, rests]
    assert found({"find": name}) == [other]
    for method, path in (("POST", "/cancel"), ("DELETE", "")):
        assert_refused(http.request(method, JOBS + path), 400, "status")


@pytest.mark.parametrize("path", ["", "/ftjob-none", "/ftjob-none/samples"])
def test_a_query_with_an_unknown_name_is_refused(http: httpx.Client, path: str) -> None:
    assert_refused(http.get(JOBS + path, params={"frob": 1}), 400, "frob")


# ---------------------------------------------------------------------- deleted


def test_a_job_that_has_ended_is_deleted_with_all_that_is_left_of_it(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="succeeded")
    record_events(stack, job_id, range(2))
    folder = a_checkpoint(stack, job_id, 2).parents[1]
    with WeirClient(stack.url, KEY) as weir:
        assert weir.delete(job_id) == {"id": job_id, "object": "fine_tuning.job", "deleted": True}
    for reply in (http.get(f"{JOBS}/{job_id}"), http.delete(f"{JOBS}/{job_id}")):
        assert_refused(reply, 404, "id")
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
    kept = a_checkpoint(stack, broken, 2)
    take_up(stack, running, state="running")
    damage(stack, broken, {"recipe": '{"new_table": {}}'})
    for job_id in (running, broken):
        reply = http.delete(f"{JOBS}/{job_id}")
        assert_refused(reply, 409, "id")
        assert reply.headers["x-should-retry"] == "false"
    assert kept.exists()
    http.post(f"{JOBS}/{broken}/cancel")
    assert http.delete(f"{JOBS}/{broken}").json()["deleted"]


def test_a_file_is_kept_for_a_job_that_waits_and_not_for_one_that_only_names_it(
    stack: Stack, http: httpx.Client
) -> None:
    file = a_file(http, "kept")
    a_job(http, recipe=RECIPE | {"name": file})
    assert http.delete(f"/v1/files/{file}").status_code == 200
    assert_refused(http.get(f"/v1/files/{file}"), 404, "id")
    file = a_file(http, "kept")
    for harm in ({}, {"recipe": json.dumps({"tasks": {"train": file}, "new_table": {}})}):
        job_id = a_job(http, validation_file=file)["id"]
        damage(stack, job_id, {"attempt": "0", **harm})
        assert_refused(http.delete(f"/v1/files/{file}"), 409, "file_id")
        http.post(f"{JOBS}/{job_id}/cancel")
    assert http.delete(f"/v1/files/{file}").status_code == 200


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
    url = f"{JOBS}/{a_job(http)['id']}/events"
    assert http.get(url, params={"after": "0-0"}).json()["data"] == []
    for name, value in (("after", "yesterday"), ("limit", 0), ("order", "sideways")):
        assert_refused(http.get(url, params={name: value}), 400, name)
    reply = http.get(url, params={"stream": "true"}, headers={"Last-Event-ID": "$"})
    assert_refused(reply, 400, "Last-Event-ID")
    assert_refused(http.get(f"{JOBS}/ftjob-none/events?stream=true"), 404, "id")


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


# ---------------------------------------------------------------------- records that are broken


@pytest.mark.parametrize(
    "harm",
    [{"recipe": '{"new_table": {}}'}, {"created_at": "yesterday"}, {b"\xff": "1"}],
    ids=["another release's field", "no JSON", "a field that is not text"],
)
def test_a_record_that_cannot_be_read_is_listed_with_what_is_wrong_and_can_only_be_cancelled(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI, harm: dict[Any, str]
) -> None:
    good, bad = a_job(http)["id"], a_job(http)["id"]
    take_up(stack, bad, state="running")
    record_events(stack, bad, range(2))
    damage(stack, bad, harm)
    first, second = sdk.fine_tuning.jobs.list(limit=2).data
    assert (first.id, second.id, second.status) == (bad, good, "queued")
    assert (first.object, first.status) == ("fine_tuning.job", "failed")
    assert first.error is not None
    assert bad in first.error.message
    assert __version__ in first.error.message
    url = f"{JOBS}/{bad}"
    assert http.get(url).json() == http.get(JOBS, params={"limit": 1}).json()["data"][0]
    assert [event["message"] for event in http.get(f"{url}/events").json()["data"]] == ["m1", "m0"]
    assert http.get(f"{url}/events?stream=true").text.endswith("data: [DONE]\n\n")
    assert http.get(f"{url}/checkpoints").json()["data"] == []
    for reply in (http.post(f"{url}/pause"), http.post(f"{url}/resume"), http.get(f"{url}/model")):
        assert_refused(reply, 409, "id")
    assert http.post(f"{url}/cancel").json()["status"] == "cancelled"
    assert http.get(url).json()["status"] == "cancelled"


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
