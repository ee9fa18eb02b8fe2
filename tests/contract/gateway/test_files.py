"""Files and result files as OpenAI's SDK knows them, and data as OpenAI has it."""

import json
import socket
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest

from services.gateway.core.files.store import FileStore
from tests.contract.gateway.stack import (
    EXACT,
    JOBS,
    KEY,
    RECIPE,
    Client,
    Stack,
    a_body,
    a_job,
    a_job_in,
    an_event,
    assert_refused,
    record_events,
    reinforcement,
    submit_job,
    take_up,
    tell,
    upload,
    wait_until,
)

pytestmark = pytest.mark.redis


def a_file(http: Client, name: str) -> str:
    line = {"id": name, "prompt": "1+1=?", "answer": "2"}
    return upload(http, json.dumps(line)).json()["id"]


def file_store(stack: Stack) -> FileStore:
    return FileStore(stack.data_dir / "files")


# ---------------------------------------------------------------------- files


def test_files_are_listed_by_order_purpose_and_page(http: Client) -> None:
    mine = {a_file(http, f"listed-{number}") for number in range(3)}

    def find(**params: Any) -> list[str]:
        return [file["id"] for file in http.read("/v1/files", **params)["data"]]

    newest = find(limit=2)
    assert mine > set(newest)
    assert find(after=newest[0], limit=1) == newest[1:]
    assert find(order="asc", purpose="fine-tune", limit=10_000)[-2:] == newest[::-1]
    assert find(purpose="batch") == []


def test_an_expired_file_goes_once_no_unfinished_job_needs_it(stack: Stack, http: Client) -> None:
    idle, trained, held_out, lasting = (a_file(http, name) for name in "abcd")
    evaluated = RECIPE | {"evaluation": {"samples": 1}}
    job = a_job(http, training_file=trained, validation_file=held_out, recipe=evaluated)
    for file_id in (idle, trained, held_out):
        path = stack.data_dir / "files" / f"{file_id}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"expires_at": 1}))
    stack.as_gateway(lambda jobs: jobs.expire_files())
    assert not list((stack.data_dir / "files").glob(f"{idle}*"))
    assert file_store(stack).content(trained).exists()
    assert file_store(stack).content(held_out).exists()
    http.post(f"{JOBS}/{job['id']}/cancel")
    stack.as_gateway(lambda jobs: jobs.expire_files())
    file_ids = {file.id for file in file_store(stack).all()}
    assert lasting in file_ids
    assert not {trained, held_out} & file_ids


def test_files_of_sources_stay_while_a_job_needs_them_and_their_tasks_are_counted(
    stack: Stack, http: Client
) -> None:
    first, second = (a_file(http, name) for name in "ab")
    sources = [{"name": "first", "train": first}, {"name": "second", "train": second}]
    tables = RECIPE | {"tasks": {"sources": sources, "curriculum": {"hard": 0.2}}}
    body = a_body(http, recipe=tables)
    del body["training_file"]
    job = http.post(JOBS, json=body).json()
    tasks = job["weir"]["recipe"]["tasks"]
    assert [source["train"] for source in tasks["sources"]] == [first, second]
    assert (job["training_file"], tasks["curriculum"]["hard"]) == ("", 0.2)
    sizes = [http.get(f"/v1/files/{file_id}").json()["tasks"] for file_id in (first, second)]
    assert stack.record(job["id"]).num_tasks == sum(sizes)
    for file_id in (first, second):
        assert_refused(http.delete(f"/v1/files/{file_id}"), 409, "file_id")


def test_a_file_whose_content_was_lost_makes_no_job(stack: Stack, http: Client) -> None:
    file_id = a_file(http, "lost")
    file_store(stack).path(file_id).unlink()
    assert_refused(http.get(f"/v1/files/{file_id}/content"), 404, "id")
    assert_refused(
        http.post(JOBS, json=a_body(http, training_file=file_id)),
        400,
        "training_file",
    )


# ---------------------------------------------------------------------- data as OpenAI has it


def openai_data(**columns: Any) -> str:
    roles = {"developer": "Be brief.", "user": "1+1?"}
    messages = [{"role": role, "content": content} for role, content in roles.items()]
    return json.dumps({"messages": messages, **columns})


def graded(name: str) -> dict[str, Any]:
    return reinforcement(grader=EXACT | {"reference": f"{{{{item.{name}}}}}"})


def test_data_and_templates_of_openai_make_a_job(http: Client) -> None:
    data = openai_data(reference_answer="2", source={"book": "Euklid"})
    file_id = upload(http, data).json()["id"]
    for name in ("reference_answer", "source.book", "answer", "metadata"):
        a_job(http, model="chat", training_file=file_id, method=graded(name))


def test_a_column_that_tasks_lack_is_refused_at_submission(http: Client) -> None:
    lacks = upload(http, openai_data(complies="no")).json()["id"]
    evaluated = {"recipe": RECIPE | {"evaluation": {"samples": 1}}, "validation_file": lacks}
    train = {"training_file": lacks}
    for name, changes in (
        ("reference", train | {"method": graded("reference")}),
        ("messages", train | {"method": graded("messages")}),
        ("answer", train),
        ("answer", evaluated),
    ):
        reply = http.post(JOBS, json=a_body(http, **changes))
        field = "training_file" if "training_file" in changes else "validation_file"
        assert_refused(reply, 400, field)
        assert reply.json()["error"]["code"] == "missing_column"
        assert repr(name) in reply.json()["detail"]


# ---------------------------------------------------------------------- results

STEPS: list[dict[str, Any]] = [
    {"kind": "evaluation", "step": 0, "evaluation": {"step": 0, "accuracy": 0.25}},
    {
        "kind": "step",
        "step": 1,
        "reward": 0.5,
        "loss": 1e-7,
        "phase_seconds": {"train": 1.0},
    },
    {"kind": "step", "step": 2, "reward": 0.75, "kl": None},
    {"kind": "evaluation", "step": 2, "evaluation": {"step": 2, "accuracy": 0.5}},
    {"kind": "pretrain", "pretrain_step": 1, "loss": 9.0},
]
METRICS = """\
step,evaluation_accuracy,reward,loss
0,0.25,,
1,,0.5,1e-07
2,0.5,0.75,
"""


def test_an_ended_jobs_result_file_has_a_row_for_each_step(
    stack: Stack, http: Client, sdk: openai.OpenAI
) -> None:
    job_id = submit_job(http)
    assert sdk.fine_tuning.jobs.retrieve(job_id).result_files == []
    assert http.get(f"/v1/files/file-{job_id}").status_code == 404
    record_events(stack, job_id, range(1))
    tell(
        stack,
        *(an_event(job_id, number, data=data) for number, data in enumerate(STEPS, 1)),
    )
    take_up(stack, job_id, state="succeeded", step=2, finished_at=1_800_000_000.0)
    (file_id,) = sdk.fine_tuning.jobs.retrieve(job_id).result_files
    assert sdk.files.content(file_id).text.replace("\r", "") == METRICS
    file = sdk.files.retrieve(file_id).to_dict()
    assert file == file | {
        "bytes": len(sdk.files.content(file_id).read()),
        "created_at": 1_800_000_000,
        "filename": "step_metrics.csv",
        "purpose": "fine-tune-results",
    }


def test_a_result_file_goes_with_its_job_and_not_before(stack: Stack, http: Client) -> None:
    job_id = a_job_in(stack, "failed", step=1)
    url = f"/v1/files/file-{job_id}"
    assert http.get(f"{url}/content").text == "step\n"
    assert_refused(http.delete(url), 409, "file_id")
    assert_refused(http.delete(f"/v1/files/file-ftjob-{24 * '0'}"), 404, "id")
    assert http.delete(f"{JOBS}/{job_id}").is_success
    for reply in (http.get(url), http.get(f"{url}/content")):
        assert reply.status_code == 404


def test_slow_uploads_of_one_key_take_nothing_from_another(stack: Stack, http: Client) -> None:
    """Four of them never get further than their heads."""
    head = f"POST /v1/files HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n"
    head += "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 999\r\n\r\n"
    url = httpx.URL(stack.url)
    with ExitStack() as connections:
        for _ in range(4):
            connection = socket.create_connection((url.host, url.port), timeout=60)
            connections.enter_context(connection).sendall(head.encode())
        wait_until(lambda: upload(http).status_code == 429)
        refused = upload(http)
        assert_refused(refused, 429, None)
        assert refused.headers["Retry-After"] == "2"
        assert http.get("/v1/files").is_success
        with stack.http("other-key") as another:
            assert upload(another).is_success
    wait_until(lambda: upload(http).is_success)
