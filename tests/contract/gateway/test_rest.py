"""The REST surface, with the real gateway process, a real Valkey server, and the OpenAI SDK."""

from __future__ import annotations

import json
import secrets
import signal
import threading
import time

import httpx
import pytest

from tests.contract.gateway.stack import (
    GOOD_LINE,
    JOBS,
    KEY,
    RECIPE,
    Stack,
    a_body,
    a_job,
    assert_refused,
    changed,
    record_events,
    reinforcement,
    take_up,
    upload,
    wait_until_ready,
)

pytestmark = pytest.mark.redis


# ---------------------------------------------------------------------- files


def test_an_upload_may_be_repeated_without_effect(stack: Stack, http: httpx.Client) -> None:
    first = upload(http).json()
    before = stack.left()
    assert upload(http).json() == first
    assert stack.left() == before
    assert first["tasks"] == 8


def test_files_are_listed_fetched_and_deleted(stack: Stack, http: httpx.Client) -> None:
    content = '{"id": "été", "prompt": "1+1=?", "answer": "2"}\n\n'
    file = upload(http, content.encode()).json()
    assert file in http.get("/v1/files").json()["data"]
    assert http.get(f"/v1/files/{file['id']}").json() == file
    assert http.get(f"/v1/files/{file['id']}/content").text == content
    assert http.delete(f"/v1/files/{file['id']}").json()["deleted"] is True
    assert_refused(http.get(f"/v1/files/{file['id']}"), 404, "id")
    assert not list((stack.data_dir / "files").glob(f"{file['id']}*"))


def test_a_file_that_a_job_needs_stays(http: httpx.Client) -> None:
    content = GOOD_LINE.replace('"a"', '"needed"')
    file_id = upload(http, content).json()["id"]
    job = a_job(http, training_file=file_id)
    reply = http.delete(f"/v1/files/{file_id}")
    assert_refused(reply, 409, "file_id")
    assert reply.headers["x-should-retry"] == "false"
    http.post(f"{JOBS}/{job['id']}/cancel")
    assert http.delete(f"/v1/files/{file_id}").status_code == 200


# ---------------------------------------------------------------------- jobs


def test_a_job_stores_the_recipe_with_the_folder_and_the_file_ids(
    stack: Stack, http: httpx.Client
) -> None:
    recipe = changed(RECIPE, "tasks", {"train": "train.jsonl", "held_out": "held_out.jsonl"})
    held_out = upload(http, GOOD_LINE).json()["id"]
    settings = {"eval_interval": 2, "eval_samples": 3, "batch_size": 4, "n_epochs": "auto"}
    job = a_job(
        http,
        recipe=recipe,
        validation_file=held_out,
        suffix="mine",
        method=reinforcement(hyperparameters=settings),
    )
    record = stack.exchange(lambda exchange: exchange.job(job["id"]))
    assert record is not None
    assert record.recipe.model.path == str(stack.models / "tiny")
    assert record.recipe.tasks.train == job["training_file"]
    assert record.recipe.tasks.held_out == job["validation_file"] == held_out
    assert record.recipe.evaluation is not None
    assert (record.recipe.evaluation.every, record.recipe.evaluation.samples) == (2, 3)
    assert job["model"] == "tiny"
    assert job["user_provided_suffix"] == "mine"
    asked = {"batch_size": 4, "n_epochs": 1, "eval_interval": 2, "eval_samples": 3}
    assert job["hyperparameters"] == asked
    assert job["weir"]["recipe"]["training"]["steps"] == job["weir"]["steps"] == 3


def test_epochs_become_steps(http: httpx.Client) -> None:
    recipe = json.loads(json.dumps(RECIPE))
    del recipe["training"]
    settings = {"n_epochs": 3, "batch_size": 5}
    job = a_job(http, recipe=recipe, method=reinforcement(hyperparameters=settings))
    assert job["weir"]["steps"] == 5  # 3 epochs of 8 tasks, 5 at a time


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
    replies: list[httpx.Response] = []

    def submit() -> None:
        replies.append(http.post(JOBS, json=body, headers=headers))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.json()["id"] for reply in replies}) == 1


def test_a_retry_of_the_openai_sdk_finds_the_job_of_the_first_try(http: httpx.Client) -> None:
    body = a_body(http, metadata={"try": secrets.token_hex(4)})
    first = http.post(JOBS, json=body).json()["id"]
    retry = http.post(JOBS, json=body, headers={"x-stainless-retry-count": "1"}).json()["id"]
    again = http.post(JOBS, json=body, headers={"x-stainless-retry-count": "0"}).json()["id"]
    assert retry == first
    assert again != first


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


def test_an_ended_job_tells_its_model_or_its_error(stack: Stack, http: httpx.Client) -> None:
    good, bad = a_job(http)["id"], a_job(http)["id"]
    result = {"model": "/data/jobs/x/final", "trained_tokens": 12}
    take_up(stack, good, state="succeeded", result=result, finished_at=5.5)
    take_up(stack, bad, state="failed", error="the judge is away")
    job = http.get(f"{JOBS}/{good}").json()
    assert job["fine_tuned_model"] == good
    assert job["weir"]["result"]["model"] == "/data/jobs/x/final"
    assert (job["trained_tokens"], job["finished_at"], job["error"]) == (12, 5, None)
    job = http.get(f"{JOBS}/{bad}").json()
    assert job["error"] == {"code": "job_failed", "message": "the judge is away", "param": None}
    assert job["fine_tuned_model"] is None


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


def read_stream(http: httpx.Client, job_id: str, last_id: str | None = None) -> list[str]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    url = f"{JOBS}/{job_id}/events?stream=true"
    with http.stream("GET", url, headers=headers) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        return [line for line in reply.iter_lines() if line and not line.startswith(":")]


def test_the_event_stream_ends_with_done_after_every_event(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = a_job(http)["id"]
    record_events(stack, job_id, range(2))

    def finish() -> None:
        time.sleep(1)
        record_events(stack, job_id, range(2, 4))
        take_up(stack, job_id, state="succeeded")

    learner = threading.Thread(target=finish)
    learner.start()
    lines = read_stream(http, job_id)
    learner.join()
    assert lines[-1] == "data: [DONE]"
    messages = [json.loads(line[6:])["message"] for line in lines[1:-1:2]]
    assert messages == ["m0", "m1", "m2", "m3"]
    ids = [line.removeprefix("id: ") for line in lines[0:-1:2]]
    assert [json.loads(line[6:])["id"] for line in lines[1:-1:2]] == ids
    rest = read_stream(http, job_id, last_id=ids[1])
    assert rest == lines[4:]


@pytest.mark.parametrize(
    ("order", "pages"),
    [
        (None, [["m4", "m3"], ["m2", "m1"], ["m0"]]),
        ("desc", [["m4", "m3"], ["m2", "m1"], ["m0"]]),
        ("asc", [["m0", "m1"], ["m2", "m3"], ["m4"]]),
    ],
)
def test_events_page_by_the_last_id(
    stack: Stack, http: httpx.Client, order: str | None, pages: list[list[str]]
) -> None:
    job_id = a_job(http)["id"]
    record_events(stack, job_id, range(5))
    seen, after = [], None
    while True:
        given = {"limit": "2", "after": after, "order": order}
        params = {name: value for name, value in given.items() if value is not None}
        page = http.get(f"{JOBS}/{job_id}/events", params=params).json()
        seen.append([item["message"] for item in page["data"]])
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert seen == pages


def test_nothing_comes_before_the_first_place(http: httpx.Client) -> None:
    job_id = a_job(http)["id"]
    reply = http.get(f"{JOBS}/{job_id}/events", params={"after": "0-0"})
    assert (reply.status_code, reply.json()["data"]) == (200, [])


def test_a_slash_at_the_end_leads_nowhere(http: httpx.Client) -> None:
    assert_refused(http.get("/v1/files/", headers={"Host": "evil.example"}), 404, None)


def test_events_refuse_a_place_that_is_none(http: httpx.Client) -> None:
    job_id = a_job(http)["id"]
    url = f"{JOBS}/{job_id}/events"
    for place in ("yesterday", f"{10**19}-0", "\N{ARABIC-INDIC DIGIT ONE}-0"):
        assert_refused(http.get(url, params={"after": place}), 400, "after")
    headers = {"Last-Event-ID": "$"}
    reply = http.get(url, params={"stream": "true"}, headers=headers)
    assert_refused(reply, 400, "Last-Event-ID")
    assert_refused(http.get(url, params={"limit": 0}), 400, "limit")
    assert_refused(http.get(url, params={"order": "sideways"}), 400, "order")
    assert_refused(http.get(f"{JOBS}/ftjob-none/events?stream=true"), 404, "id")


# ---------------------------------------------------------------------- Redis goes away


def test_a_silent_redis_is_a_quick_503_and_then_all_is_well_again(
    stack: Stack, http: httpx.Client
) -> None:
    body, headers = a_body(http), {"Idempotency-Key": secrets.token_hex(4)}
    job_id = a_job(http)["id"]
    assert stack.server.process is not None
    stack.server.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        replies = [http.get(f"{JOBS}/{job_id}"), http.post(JOBS, json=body, headers=headers)]
        assert time.monotonic() - began < 15
        assert httpx.get(f"{stack.url}/healthz").status_code == 200
    finally:
        stack.server.process.send_signal(signal.SIGCONT)
    for reply in replies:
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "2"
        assert reply.json()["error"]["type"] == "server_error"
    assert http.get(f"{JOBS}/{job_id}").status_code == 200
    assert http.post(JOBS, json=body, headers=headers).status_code == 200
    wait_until_ready(stack.url)
