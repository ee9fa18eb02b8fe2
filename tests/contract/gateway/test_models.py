"""Models over REST: base models, trained models, and fetching them."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from protocol import streams

from tests.contract.gateway.stack import (
    JOBS,
    KEY,
    Stack,
    a_body,
    a_checkpoint,
    a_job,
    a_model,
    assert_refused,
    know,
    submit_job,
    take_up,
    weir,
)
from weir.client import WeirClient

pytestmark = pytest.mark.redis
ABSENT = "ftjob-" + 24 * "0"
MIB = 2**20
WEIGHTS = "model.safetensors"


def a_trained_job(stack: Stack, http: httpx.Client, size: int = 10) -> tuple[str, Path]:
    """A job that has succeeded, and its model: three files, and much beside them."""
    job_id = submit_job(http)
    folder = a_model(stack.job_folder(job_id) / "model")
    (folder / "inner").mkdir()
    (folder / "inner" / "deep").write_text("secret")
    (folder.parent / "beside").write_text("secret")
    (folder / "empty.txt").touch()
    (folder / WEIGHTS).write_bytes(secrets.token_bytes(size))
    (folder / "out").symlink_to(folder.parent / "beside")
    (folder / "also-config").symlink_to("config.json")
    os.mkfifo(folder / "pipe")
    take_up(stack, job_id, state="succeeded", result={"model": str(folder)})
    return job_id, folder


def content(folder: Path) -> dict[str, bytes]:
    names = ("config.json", "empty.txt", WEIGHTS)
    return {name: (folder / name).read_bytes() for name in names}


def own_model(stack: Stack, job_id: str) -> Path:
    """The folder that a job starts from."""
    record = stack.exchange(lambda exchange: exchange.job(job_id))
    assert record is not None
    return Path(record.recipe.model.path)


# ---------------------------------------------------------------------- the list


def test_the_openai_sdk_lists_models_and_each_is_retrieved_and_can_be_trained(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    job_id = submit_job(http)
    a_model(stack.job_folder(job_id) / "model")
    a_checkpoint(stack, job_id, 2)
    listed = {model.id: model for model in sdk.models.list()}
    bases = {"tiny", "chat", "examples/arithmetic/base-model"}
    trained = {job_id, f"ftckpt-{job_id}-2"}
    assert listed.keys() >= bases | trained
    assert not listed.keys() & {"pickled", "no-config", "escape", "leak"}
    for name in bases | trained:
        assert listed[name].owned_by == ("weir" if name in trained else "system")
        assert sdk.models.retrieve(name) == listed[name]
        assert a_job(http, model=name)["model"] == name


@pytest.mark.parametrize(
    "name", ["absent", "leak", "pickled", "/etc", ABSENT, f"ftckpt-{ABSENT}-1"]
)
def test_a_model_that_no_job_can_start_from_is_not_there(http: httpx.Client, name: str) -> None:
    assert_refused(http.get(f"/v1/models/{name}"), 404, "id")
    assert_refused(http.delete(f"/v1/models/{name}"), 404, "id")


def test_the_openai_sdk_pages_checkpoints_newest_first_with_what_their_steps_told(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    job_id = submit_job(http)
    for step in (2, 4, 10):
        a_checkpoint(stack, job_id, step, loss=step / 2, reward=0.25, grad_norm=None)
    (stack.job_folder(job_id) / "checkpoints/.unfinished-1-step-000012").mkdir()
    assert not http.get(f"{JOBS}/{job_id}/checkpoints?limit=3").json()["has_more"]
    checkpoints = list(sdk.fine_tuning.jobs.checkpoints.list(job_id, limit=1))
    assert [checkpoint.step_number for checkpoint in checkpoints] == [10, 4, 2]
    metrics = checkpoints[0].metrics.to_dict()
    assert metrics == {"step": 10, "train_loss": 5.0, "reward": 0.25, "grad_norm": None}
    assert {checkpoint.fine_tuning_job_id for checkpoint in checkpoints} == {job_id}


# ---------------------------------------------------------------------- starting from another job


def test_a_job_that_starts_from_a_checkpoint_keeps_it_when_the_other_job_does_not(
    stack: Stack, http: httpx.Client
) -> None:
    job_id = submit_job(http)
    checkpoint = a_checkpoint(stack, job_id, 4)
    fork = submit_job(http, model=f"ftckpt-{job_id}-4")
    model = own_model(stack, fork)
    assert model.is_relative_to(stack.job_folder(fork))
    assert (model / WEIGHTS).samefile(checkpoint / "model" / WEIGHTS), "it takes no room of its own"
    shutil.rmtree(checkpoint)
    assert (model / WEIGHTS).read_text() == "weights of step 4"
    assert (model / "config.json").is_file()


@pytest.mark.parametrize(
    ("makes", "reason"), [((), "no checkpoint"), ((2, 4), "ftckpt-{job}-4 and ftckpt-{job}-2")]
)
def test_a_job_without_a_model_is_refused_with_the_checkpoints_that_it_has(
    stack: Stack, http: httpx.Client, makes: tuple[int, ...], reason: str
) -> None:
    job_id = submit_job(http)
    for step in makes:
        a_checkpoint(stack, job_id, step)
    for name in (job_id, f"ftckpt-{job_id}-3"):
        reply = http.post(JOBS, json=a_body(http, model=name))
        assert_refused(reply, 400, "model")
        assert reason.format(job=job_id) in reply.json()["detail"]


# ---------------------------------------------------------------------- deleting


def test_a_trained_model_is_deleted_and_jobs_that_start_from_it_keep_theirs(
    stack: Stack, http: httpx.Client, sdk: openai.OpenAI
) -> None:
    job_id, folder = a_trained_job(stack, http)
    weights = (folder / WEIGHTS).read_bytes()
    fork = submit_job(http, model=job_id)
    (folder.parent / "beside").unlink()
    deleted = sdk.models.delete(job_id)
    assert deleted.id == job_id
    assert deleted.object == "model"
    assert deleted.deleted
    assert list(folder.parent.iterdir()) == []
    url = f"/v1/models/{job_id}"
    for reply in (http.get(url), http.delete(url), http.get(f"{JOBS}/{job_id}/model")):
        assert_refused(reply, 404, "id")
    assert (own_model(stack, fork) / WEIGHTS).read_bytes() == weights


def test_the_model_of_a_forgotten_job_is_fetched_and_the_job_deleted(
    stack: Stack, http: httpx.Client
) -> None:
    job_id, folder = a_trained_job(stack, http)
    assert stack.exchange(lambda exchange: exchange.forget_job(job_id))
    assert http.get(f"/v1/models/{job_id}").is_success
    assert len(http.get(f"{JOBS}/{job_id}/model").json()["data"]) == 3
    assert http.get(f"{JOBS}/{job_id}/model/config.json").text == "{}"
    assert http.delete(f"{JOBS}/{job_id}").json()["deleted"]
    assert not folder.parent.exists()
    assert_refused(http.get(f"{JOBS}/{job_id}/model"), 404, "id")
    assert_refused(http.delete(f"{JOBS}/{job_id}"), 404, "id")


def test_only_a_model_of_an_ended_job_is_deleted(stack: Stack, http: httpx.Client) -> None:
    running = submit_job(http)
    a_model(stack.job_folder(running) / "model")  # a moment before it has succeeded
    a_checkpoint(stack, running, 2)
    take_up(stack, running, state="running")
    assert_refused(http.delete(f"/v1/models/{running}"), 409, "id")
    for name in ("tiny", "examples/arithmetic/base-model", f"ftckpt-{running}-2"):
        assert_refused(http.delete(f"/v1/models/{name}"), 403, "id")
        assert http.get(f"/v1/models/{name}").is_success


# ---------------------------------------------------------------------- the files of a model


def test_only_the_files_of_the_model_are_listed_and_each_can_be_had_in_parts(
    stack: Stack, http: httpx.Client
) -> None:
    job_id, folder = a_trained_job(stack, http, size=3 * MIB)
    listed = http.get(f"{JOBS}/{job_id}/model").json()["data"]
    assert {file["name"]: file["bytes"] for file in listed} == {
        name: len(data) for name, data in content(folder).items()
    }
    reply = http.get(f"{JOBS}/{job_id}/model/{WEIGHTS}")
    assert reply.content == (folder / WEIGHTS).read_bytes()
    ranged = {"Range": "bytes=100-", "If-Range": reply.headers["etag"]}
    part = http.get(f"{JOBS}/{job_id}/model/{WEIGHTS}", headers=ranged)
    assert part.status_code == 206
    assert part.content == reply.content[100:]


def test_no_other_name_reaches_a_file(stack: Stack, http: httpx.Client) -> None:
    job_id, _ = a_trained_job(stack, http)
    for name in (
        "..",
        "../beside",
        "..%2fbeside",
        "%2e%2e%2fbeside",
        "%2fetc%2fpasswd",
        "out",
        "also-config",
        "pipe",
        "inner",
        "inner%2fdeep",
        "config.json%00",
        "absent",
    ):
        status, body = get_verbatim(stack, f"{JOBS}/{job_id}/model/{name}")
        assert status == 404, name
        assert b"secret" not in body


def get_verbatim(stack: Stack, path: str) -> tuple[int, bytes]:
    """Return the answer to a path that no client has normalized."""
    connection = http.client.HTTPConnection(stack.url.removeprefix("http://"), timeout=60)
    connection.putrequest("GET", path)
    connection.putheader("Authorization", f"Bearer {KEY}")
    connection.endheaders()
    reply = connection.getresponse()
    return reply.status, reply.read()


def test_a_record_cannot_name_a_folder_that_is_not_its_own(
    stack: Stack, http: httpx.Client
) -> None:
    another = a_trained_job(stack, http)[1]
    job_id = submit_job(http)
    job = stack.job_folder(job_id)
    a_model(job / "model")
    (job / "away").symlink_to(another)
    folders = (job, job / "away", job / "model/..", job / "model/config.json", job / "gone")
    take_up(stack, job_id, state="succeeded")
    for named in ("/etc", "", 3, str(another), *map(str, folders)):
        with stack.server.client() as client:
            client.hset(streams.job_key(job_id), "result", json.dumps({"model": named}))
        for route in ("model", "model/config.json"):
            assert_refused(http.get(f"{JOBS}/{job_id}/{route}"), 404, "id")


@pytest.mark.parametrize(
    ("values", "status", "reason"),
    [
        ({}, 409, "queued at step 0"),
        ({"state": "failed", "error": "the judge is away"}, 404, "the judge is away"),
        ({"state": "succeeded"}, 404, "without"),
    ],
)
def test_a_job_without_a_model_says_why(
    stack: Stack, http: httpx.Client, values: dict[str, Any], status: int, reason: str
) -> None:
    job_id = submit_job(http)
    if values:
        take_up(stack, job_id, **values)
    for route in ("model", f"model/{WEIGHTS}"):
        reply = http.get(f"{JOBS}/{job_id}/{route}")
        assert_refused(reply, status, "id")
        assert reason in reply.json()["detail"]


# ---------------------------------------------------------------------- fetched by the client


class Cuts(httpx.BaseTransport):
    """A transport that breaks after some bytes of the weights, and records the requests."""

    def __init__(self, *after: int) -> None:
        self.inner = httpx.HTTPTransport()
        self.after = list(after)
        self.asked: list[tuple[str, str | None]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        reply = self.inner.handle_request(request)
        name = request.url.path.rpartition("/")[2]
        self.asked.append((name, request.headers.get("range")))
        if name == WEIGHTS and self.after:
            reply.stream = Cut(reply.stream, self.after.pop(0))
        return reply

    def ranges(self) -> list[int]:
        """Where each request for the weights began."""
        places = [place or "" for name, place in self.asked if name == WEIGHTS]
        return [int(place.removeprefix("bytes=").removesuffix("-") or 0) for place in places]


class Cut(httpx.SyncByteStream):
    def __init__(self, inner: Any, after: int) -> None:
        self.inner = inner
        self.after = after

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.inner:
            self.after -= len(chunk)
            if self.after < 0:
                raise httpx.ReadError("the line broke")
            yield chunk

    def close(self) -> None:
        self.inner.close()


def test_a_fetch_goes_on_where_the_line_broke(
    stack: Stack, http: httpx.Client, tmp_path: Path
) -> None:
    job_id, folder = a_trained_job(stack, http, size=3 * MIB)
    line = Cuts(MIB, 1, MIB)
    reports = []
    with WeirClient(stack.url, KEY, transport=line, sleep=lambda _: None) as client:
        client.fetch_model(job_id, tmp_path, lambda *progress: reports.append(progress))
        assert content(tmp_path) == content(folder)
        assert sorted(os.listdir(tmp_path)) == sorted(content(folder))
        first, second, third, fourth = line.ranges()
        assert 0 == first < second == third < fourth <= 2 * MIB
        total = sum(len(data) for data in content(folder).values())
        assert reports[-1] == (WEIGHTS, total, total)
        sizes = [num_bytes for _, num_bytes, _ in reports]
        assert sizes == sorted(sizes)
        line.asked.clear()
        client.fetch_model(job_id, tmp_path)
    assert [name for name, _ in line.asked] == ["model"], "finished files are not fetched again"


class Replaces(Cuts):
    """A line behind which the weights are replaced once they have been listed."""

    weights: Path

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(WEIGHTS):
            later = self.weights.stat().st_mtime + 2
            self.weights.write_bytes(secrets.token_bytes(3 * MIB))
            os.utime(self.weights, (later, later))
        return super().handle_request(request)


def test_weights_that_are_replaced_under_way_are_not_glued(
    stack: Stack, http: httpx.Client, tmp_path: Path
) -> None:
    job_id, folder = a_trained_job(stack, http, size=3 * MIB)

    def press(_: str, num_bytes: int, __: int) -> None:
        if num_bytes >= 2 * MIB:
            raise KeyboardInterrupt

    with WeirClient(stack.url, KEY) as client, pytest.raises(KeyboardInterrupt):
        client.fetch_model(job_id, tmp_path, press)
    assert not (tmp_path / WEIGHTS).exists()
    line = Replaces()
    line.weights = folder / WEIGHTS
    with WeirClient(stack.url, KEY, transport=line) as client:
        client.fetch_model(job_id, tmp_path)
    assert line.ranges()[0] >= 2 * MIB - 100
    assert content(tmp_path) == content(folder)


def test_the_command_names_a_full_disk_and_goes_on_with_what_has_arrived(
    stack: Stack, http: httpx.Client, tmp_path: Path
) -> None:
    know(tmp_path, stack.url)
    job_id, folder = a_trained_job(stack, http, size=3 * MIB)
    mine = tmp_path / "models/mine"
    full = 2 * MIB - 1000
    fetch = ("fetch", job_id, "models/mine")
    status, _, err = weir(tmp_path, *fetch, max_bytes=full)
    assert status == 2, err
    assert "mine: File too large" in err, err
    assert [path.stat().st_size for path in mine.glob(f"{WEIGHTS}.*.part")] == [full]
    status, out, err = weir(tmp_path, *fetch)
    assert status == 0, err
    assert out == f"the model of {job_id} is in {mine.resolve()}\n", err
    assert content(mine) == content(folder)
