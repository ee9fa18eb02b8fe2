"""A job's result file: what its steps measured, as a CSV that the SDK reads like any file."""

from __future__ import annotations

import csv
from typing import Any

import httpx
import openai
import pytest

from tests.contract.gateway.stack import (
    JOBS,
    Stack,
    a_job,
    an_event,
    assert_refused,
    record_events,
    take_up,
    tell,
)

pytestmark = pytest.mark.redis
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
