"""Models over REST: base models, trained models, and fetching them."""

import json
import os
import resource
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from protocol import streams

from tests.contract.gateway.stack import (
    CONFIG,
    JOBS,
    KEY,
    Client,
    Stack,
    a_body,
    a_checkpoint,
    a_job_in,
    a_model,
    assert_refused,
    end_of,
    know,
    start_weir,
    submit_job,
    take_up,
    weir,
)
from weir.client import WeirClient

pytestmark = pytest.mark.redis
MIB = 2**20
WEIGHTS = "model.safetensors"


def a_trained_job(stack: Stack, http: Client, size: int = 10) -> tuple[str, Path]:
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
    take_up(
        stack,
        job_id,
        state="succeeded",
        result={"model": str(folder)},
    )
    return job_id, folder


def content(folder: Path) -> dict[str, bytes]:
    names = ("config.json", "empty.txt", WEIGHTS)
    return {name: (folder / name).read_bytes() for name in names}


def own_weights(stack: Stack, job_id: str) -> Path:
    """Those that a job starts from, in its own folder."""
    model = Path(stack.record(job_id).recipe.model.path)
    assert model.is_relative_to(stack.job_folder(job_id))
    assert (model / "config.json").is_file()
    return model / WEIGHTS


# ---------------------------------------------------------------------- the list


def test_the_openai_sdk_pages_checkpoints_newest_first_with_what_their_steps_told(
    stack: Stack, http: Client, sdk: openai.OpenAI
) -> None:
    job_id = submit_job(http)
    for step in (2, 4, 10):
        a_checkpoint(
            stack,
            job_id,
            step,
            loss=step / 2,
            reward=0.25,
            grad_norm=None,
        )
    (stack.job_folder(job_id) / "checkpoints/.unfinished-1-step-000012").mkdir()
    assert not http.read(f"{JOBS}/{job_id}/checkpoints?limit=3")["has_more"]
    checkpoints = list(sdk.fine_tuning.jobs.checkpoints.list(job_id, limit=1))
    assert [checkpoint.step_number for checkpoint in checkpoints] == [10, 4, 2]
    assert checkpoints[0].fine_tuning_job_id == job_id
    assert checkpoints[0].metrics.to_dict() == {
        "step": 10,
        "train_loss": 5.0,
        "reward": 0.25,
        "grad_norm": None,
    }


# ---------------------------------------------------------------------- starting from another job


def test_a_job_that_starts_from_a_checkpoint_keeps_it_when_the_other_job_does_not(
    stack: Stack, http: Client
) -> None:
    job_id = submit_job(http)
    checkpoint = a_checkpoint(stack, job_id, 4)
    fork = submit_job(http, model=f"ftckpt-{job_id}-4")
    weights = own_weights(stack, fork)
    assert weights.samefile(checkpoint / "model" / WEIGHTS), "it takes no room of its own"
    shutil.rmtree(checkpoint)
    assert weights.read_text() == "weights of step 4"


def test_a_job_without_a_model_is_refused_with_the_checkpoints_that_it_has(
    stack: Stack, http: Client
) -> None:
    job_id = submit_job(http)
    assert_refused(
        http.post(JOBS, json=a_body(http, model=job_id)),
        400,
        "model",
    )
    for step in (2, 4):
        a_checkpoint(stack, job_id, step)
    for name in (job_id, f"ftckpt-{job_id}-3"):
        reply = http.post(JOBS, json=a_body(http, model=name))
        assert_refused(reply, 400, "model")
        assert f"ftckpt-{job_id}-4 and ftckpt-{job_id}-2" in reply.json()["detail"]


# ---------------------------------------------------------------------- deleting


def test_a_trained_model_is_deleted_and_jobs_that_start_from_it_keep_theirs(
    stack: Stack, http: Client, sdk: openai.OpenAI
) -> None:
    job_id, folder = a_trained_job(stack, http)
    weights = (folder / WEIGHTS).read_bytes()
    fork = submit_job(http, model=job_id)
    (folder.parent / "beside").unlink()
    assert sdk.models.delete(job_id).to_dict() == {
        "id": job_id,
        "object": "model",
        "deleted": True,
    }
    assert list(folder.parent.iterdir()) == []
    url = f"/v1/models/{job_id}"
    for reply in (
        http.get(url),
        http.delete(url),
        http.get(f"{JOBS}/{job_id}/model"),
    ):
        assert_refused(reply, 404, "id")
    assert own_weights(stack, fork).read_bytes() == weights


def test_the_model_of_a_forgotten_job_is_fetched_and_the_job_deleted(
    stack: Stack, http: Client
) -> None:
    job_id, folder = a_trained_job(stack, http)
    assert stack.exchange(lambda exchange: exchange.forget_job(job_id))
    assert http.get(f"/v1/models/{job_id}").is_success
    assert len(http.read(f"{JOBS}/{job_id}/model")["data"]) == 3
    assert http.get(f"{JOBS}/{job_id}/model/config.json").text == CONFIG
    assert http.delete(f"{JOBS}/{job_id}").json()["deleted"]
    assert not folder.parent.exists()
    assert_refused(http.get(f"{JOBS}/{job_id}/model"), 404, "id")
    assert_refused(http.delete(f"{JOBS}/{job_id}"), 404, "id")


def test_only_a_model_of_an_ended_job_is_deleted(stack: Stack, http: Client) -> None:
    running = a_job_in(stack, "running")
    a_model(stack.job_folder(running) / "model")  # a moment before it has succeeded
    a_checkpoint(stack, running, 2)
    assert_refused(http.delete(f"/v1/models/{running}"), 409, "id")
    assert_refused(http.delete(f"/v1/models/ftckpt-{running}-2"), 403, "id")


# ---------------------------------------------------------------------- the files of a model


def test_only_the_files_of_the_model_are_listed_and_each_can_be_had_in_parts(
    stack: Stack, http: Client
) -> None:
    job_id, folder = a_trained_job(stack, http, size=3 * MIB)
    listed = http.read(f"{JOBS}/{job_id}/model")["data"]
    sizes = {name: len(data) for name, data in content(folder).items()}
    assert {file["name"]: file["bytes"] for file in listed} == sizes
    reply = http.get(f"{JOBS}/{job_id}/model/{WEIGHTS}")
    assert reply.content == (folder / WEIGHTS).read_bytes()
    ranged = {"Range": "bytes=100-", "If-Range": reply.headers["etag"]}
    part = http.get(f"{JOBS}/{job_id}/model/{WEIGHTS}", headers=ranged)
    assert part.status_code == 206
    assert part.content == reply.content[100:]


def test_no_other_name_reaches_a_file(stack: Stack, http: Client) -> None:
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
        # A path that httpx does not normalize.
        target = f"{JOBS}/{job_id}/model/{name}".encode()
        reply = http.get("/none", extensions={"target": target})
        assert reply.status_code == 404, name
        assert "secret" not in reply.text


def test_a_record_cannot_name_a_folder_that_is_not_its_own(stack: Stack, http: Client) -> None:
    another = a_trained_job(stack, http)[1]
    job_id = a_job_in(stack, "succeeded")
    job = stack.job_folder(job_id)
    a_model(job / "model")
    (job / "away").symlink_to(another)
    names = ("", "away", "model/..", "model/config.json", "gone")
    for folder in (
        "/etc",
        "",
        3,
        str(another),
        *(str(job / name) for name in names),
    ):
        with stack.server.client() as client:
            client.hset(
                streams.job_key(job_id),
                "result",
                json.dumps({"model": folder}),
            )
        for route in ("model", "model/config.json"):
            assert_refused(http.get(f"{JOBS}/{job_id}/{route}"), 404, "id")


@pytest.mark.parametrize(
    ("state", "status", "reason"),
    [
        ("queued", 409, "queued at step 0"),
        ("failed", 404, "the judge is away"),
        ("succeeded", 404, "without"),
    ],
)
def test_a_job_without_a_model_says_why(
    stack: Stack, http: Client, state: str, status: int, reason: str
) -> None:
    job_id = a_job_in(stack, state, error="the judge is away")
    for route in ("model", f"model/{WEIGHTS}"):
        reply = http.get(f"{JOBS}/{job_id}/{route}")
        assert_refused(reply, status, "id")
        assert reason in reply.json()["detail"]


# ---------------------------------------------------------------------- fetched by the client


class Line(httpx.HTTPTransport):
    """It breaks after some bytes of the weights; behind it they may change before each request."""

    def __init__(self, *breaks: int, replaced: Path | None = None) -> None:
        super().__init__()
        self.breaks = [*breaks]
        self.replaced = replaced
        self.names: list[str] = []
        self.starts: list[int] = []  # where each request for the weights began

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        self.names.append(name)
        if name == WEIGHTS:
            place = request.headers.get("range", "bytes=0-")
            self.starts.append(int(place.removeprefix("bytes=").removesuffix("-")))
            if self.replaced:
                later = self.replaced.stat().st_mtime + 2
                self.replaced.write_bytes(secrets.token_bytes(3 * MIB))
                os.utime(self.replaced, (later, later))
        reply = super().handle_request(request)
        if name == WEIGHTS and self.breaks:
            stream: Any = reply.stream
            parts = break_after(stream, self.breaks.pop(0))
            return httpx.Response(reply.status_code, headers=reply.headers, content=parts)
        return reply


def break_after(parts: Iterable[bytes], num_bytes: int) -> Iterator[bytes]:
    for part in parts:
        num_bytes -= len(part)
        if num_bytes < 0:
            raise httpx.ReadError("the line broke")
        yield part


def test_a_fetch_goes_on_where_the_line_broke(stack: Stack, http: Client, tmp_path: Path) -> None:
    job_id, folder = a_trained_job(stack, http, size=3 * MIB)
    line = Line(MIB, 1, MIB)
    reports = list[tuple[str, int, int]]()
    with WeirClient(
        stack.url,
        KEY,
        transport=line,
        sleep=lambda _: None,
    ) as client:
        client.fetch_model(job_id, tmp_path, lambda *progress: reports.append(progress))
        assert content(tmp_path) == content(folder)
        assert sorted(os.listdir(tmp_path)) == sorted([".weir-model", *content(folder)])
        first, second, third, fourth = line.starts
        assert 0 == first < second == third < fourth <= 2 * MIB
        total = sum(map(len, content(folder).values()))
        assert reports[-1] == (WEIGHTS, total, total)
        sizes = [num_bytes for _, num_bytes, _ in reports]
        assert sizes == sorted(sizes)
        line.names.clear()
        client.fetch_model(job_id, tmp_path)
    assert line.names == ["model"], "finished files are not fetched again"


def test_weights_that_are_replaced_under_way_are_not_glued(
    stack: Stack, http: Client, tmp_path: Path
) -> None:
    job_id, folder = a_trained_job(stack, http, size=3 * MIB)

    def press(_: str, num_bytes: int, __: int) -> None:
        if num_bytes >= 2 * MIB:
            raise KeyboardInterrupt

    with WeirClient(stack.url, KEY) as client, pytest.raises(KeyboardInterrupt):
        client.fetch_model(job_id, tmp_path, press)
    assert not (tmp_path / WEIGHTS).exists()
    line = Line(replaced=folder / WEIGHTS)
    with WeirClient(stack.url, KEY, transport=line) as client:
        client.fetch_model(job_id, tmp_path)
    assert line.starts[0] >= 2 * MIB - 100
    assert content(tmp_path) == content(folder)


def test_the_command_names_a_full_disk_and_goes_on_with_what_has_arrived(
    stack: Stack, http: Client, tmp_path: Path
) -> None:
    know(tmp_path, stack.url)
    job_id, folder = a_trained_job(stack, http, size=3 * MIB)
    mine = tmp_path / "models/mine"
    full = 2 * MIB - 1000
    fetch = ("fetch", job_id, "models/mine")
    process = start_weir(tmp_path, *fetch)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (full, full))
    status, _, err = end_of(process)
    assert status == 2, err
    assert "mine: File too large" in err, err
    assert [path.stat().st_size for path in mine.glob(f"{WEIGHTS}.*.part")] == [full]
    status, out, err = weir(tmp_path, *fetch)
    assert status == 0, err
    assert out == f"the model of {job_id} is in {mine.resolve()}\n", err
    assert content(mine) == content(folder)
