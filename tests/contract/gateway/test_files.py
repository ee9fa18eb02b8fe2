"""Files and result files as OpenAI's SDK knows them, and data as OpenAI has it."""

from __future__ import annotations

import csv
import json
import time
from typing import Any

import httpx
import openai
import pytest
from protocol.exchange import Exchange

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.gateway.files.store import FileStore
from services.gateway.jobs.service import JobService
from tests.contract.gateway.stack import (
    JOBS,
    RECIPE,
    Stack,
    a_body,
    a_job,
    an_event,
    assert_refused,
    record_events,
    reinforcement,
    take_up,
    tell,
    upload,
)

pytestmark = pytest.mark.redis


def tasks(name: str, count: int = 1) -> bytes:
    lines = [{"id": f"{name}-{n}", "prompt": "1+1=?", "answer": "2"} for n in range(count)]
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def a_file(sdk: openai.OpenAI, name: str, **options: Any) -> str:
    return sdk.files.create(file=(name, tasks(name)), purpose="fine-tune", **options).id


def store_of(stack: Stack) -> FileStore:
    return FileStore(stack.data_dir / "files")


def end_now(stack: Stack, file_id: str) -> None:
    """As if the time of a file were over."""
    path = stack.data_dir / "files" / f"{file_id}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expires_at": int(time.time())}))


def expire(stack: Stack) -> None:
    async def work(exchange: Exchange) -> None:
        values = {"WEIR_REDIS_URL": stack.server.url, "WEIR_DATA_DIR": str(stack.data_dir)}
        deployment = Deployment.from_environment(values | {"WEIR_PORT": "1"})
        service = Service("gateway", deployment, exchange)
        await JobService(service, store_of(stack)).expire_files()

    stack.exchange(work)


# ---------------------------------------------------------------------- files


def test_the_sdk_lists_files_by_order_purpose_and_page(sdk: openai.OpenAI) -> None:
    mine = {a_file(sdk, f"listed-{number}") for number in range(3)}
    newest = [file.id for file in sdk.files.list(limit=1)]
    oldest = [file.id for file in sdk.files.list(order="asc", purpose="fine-tune", limit=2)]
    assert newest == oldest[::-1]
    assert mine <= set(newest)
    assert sdk.files.list(after=newest[0], limit=1).data[0].id == newest[1]
    assert sdk.files.list(purpose="batch").data == []
    with pytest.raises(openai.BadRequestError, match="after"):
        sdk.files.list(after="file-none")


def test_an_expired_file_goes_once_no_unfinished_job_needs_it(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    idle, trained, held_out, lasting = (a_file(sdk, name) for name in "abcd")
    job = a_job(
        http,
        training_file=trained,
        validation_file=held_out,
        recipe=RECIPE | {"evaluation": {"samples": 1}},
    )
    for file_id in (idle, trained, held_out):
        end_now(stack, file_id)
    expire(stack)
    assert store_of(stack).find(idle) is None
    assert not list((stack.data_dir / "files").glob(f"{idle}*"))
    assert sdk.files.retrieve(trained).id == trained
    assert sdk.files.content(held_out).read() == tasks("c")
    http.post(f"{JOBS}/{job['id']}/cancel")
    expire(stack)
    left = {file.id for file in sdk.files.list()}
    assert lasting in left
    assert not {trained, held_out} & left


def test_a_file_whose_content_was_lost_makes_no_job(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    file_id = a_file(sdk, "lost")
    store_of(stack).path(file_id).unlink()
    assert_refused(http.get(f"/v1/files/{file_id}/content"), 404, "id")
    reply = http.post(JOBS, json=a_body(http, training_file=file_id))
    assert_refused(reply, 400, "training_file")


# ---------------------------------------------------------------------- data as OpenAI has it


def openai_data(**columns: Any) -> str:
    line = {"messages": [{"role": "developer", "content": "Be brief."}], **columns}
    line["messages"] = [*line["messages"], {"role": "user", "content": "1+1?"}]
    return json.dumps(line)


def graded(name: str) -> dict[str, Any]:
    grader = {"type": "string_check", "name": "a", "operation": "eq"}
    texts = {"input": "{{sample.output_text}}", "reference": f"{{{{item.{name}}}}}"}
    return reinforcement(grader=grader | texts)


def test_data_and_templates_of_openai_make_a_job(http: httpx.Client) -> None:
    data = openai_data(reference_answer="2", source={"book": "Euklid"})
    file_id = upload(http, data).json()["id"]
    for name in ("reference_answer", "source.book", "answer", "metadata"):
        job = a_job(http, model="chat", training_file=file_id, method=graded(name))
        http.post(f"{JOBS}/{job['id']}/cancel")


def test_a_column_that_tasks_lack_is_refused_at_submission(http: httpx.Client) -> None:
    lacks = upload(http, openai_data(complies="no")).json()["id"]
    for name, changes in {
        "reference": {"method": graded("reference")},
        "messages": {"method": graded("messages")},
        "answer": {},
    }.items():
        reply = http.post(JOBS, json=a_body(http, training_file=lacks, **changes))
        assert_refused(reply, 400, "training_file")
        assert reply.json()["error"]["code"] == "missing_column"
        assert repr(name) in reply.json()["detail"]
    evaluated = {"recipe": RECIPE | {"evaluation": {"samples": 1}}, "validation_file": lacks}
    assert_refused(http.post(JOBS, json=a_body(http, **evaluated)), 400, "validation_file")


# ---------------------------------------------------------------------- results

TOLD: list[dict[str, Any]] = [
    {"step": 0, "evaluation": {"step": 0, "accuracy": 0.25}},
    {"step": 1, "reward": 0.5, "loss": 1e-7, "phase_seconds": {"train": 1.0}, "mode": "a,b"},
    {"step": 2, "reward": 0.75, "kl": None},
    {"step": 2, "evaluation": {"step": 2, "accuracy": 0.5}},
    {"pretrain_step": 1, "loss": 9.0},
    {"evaluation": {}},
]


def test_an_ended_jobs_result_file_has_a_row_for_each_step(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    job_id = a_job(http)["id"]
    assert sdk.fine_tuning.jobs.retrieve(job_id).result_files == []
    assert http.get(f"/v1/files/file-{job_id}").status_code == 404
    record_events(stack, job_id, range(1))
    for number, data in enumerate(TOLD, start=1):
        tell(stack, an_event(job_id, number, type="metrics", data=data))
    take_up(stack, job_id, state="succeeded", step=2, finished_at=1_800_000_000.0)
    (file_id,) = sdk.fine_tuning.jobs.retrieve(job_id).result_files
    content = sdk.files.content(file_id).read()
    assert list(csv.DictReader(content.decode().splitlines())) == [
        {"step": "0", "evaluation_accuracy": "0.25", "reward": "", "loss": ""},
        {"step": "1", "evaluation_accuracy": "", "reward": "0.5", "loss": "1e-07"},
        {"step": "2", "evaluation_accuracy": "0.5", "reward": "0.75", "loss": ""},
    ]
    file = sdk.files.retrieve(file_id)
    assert (file.bytes, file.created_at) == (len(content), 1_800_000_000)
    assert (file.filename, file.purpose) == ("step_metrics.csv", "fine-tune-results")


def test_a_result_file_goes_with_its_job_and_not_before(stack: Stack, http: httpx.Client) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="failed", step=1)
    url = f"/v1/files/file-{job_id}"
    assert http.get(f"{url}/content").text == "step\n"
    assert_refused(http.delete(url), 409, "file_id")
    assert_refused(http.delete(f"/v1/files/file-ftjob-{24 * '0'}"), 404, "id")
    assert http.delete(f"{JOBS}/{job_id}").status_code == 200
    for reply in (http.get(url), http.get(f"{url}/content")):
        assert reply.status_code == 404
