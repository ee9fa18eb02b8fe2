"""A trained model comes out over REST, whole, and nothing else does."""

from __future__ import annotations

import http.client
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.gateway.stack import (
    JOBS,
    KEY,
    Stack,
    a_job,
    assert_refused,
    know,
    take_up,
    weir,
)
from weir.client import WeirClient, WeirError

pytestmark = pytest.mark.redis

MIB = 2**20
WEIGHTS = "model.safetensors"


def a_trained_job(stack: Stack, http: httpx.Client, size: int = 3 * MIB) -> tuple[str, Path]:
    """A job that has succeeded, and its model: two files, and much beside them."""
    job_id = a_job(http)["id"]
    folder = stack.data_dir / "jobs" / job_id / "model"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "deep").write_text("secret")
    (folder.parent / "beside").write_text("secret")
    (folder / "config.json").write_text('{"a": 1}')
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


# ------------------------------------------------------------------------------------- the routes


def test_only_the_files_of_the_model_are_listed_and_each_can_be_had_in_parts(
    stack: Stack, http: httpx.Client
) -> None:
    job_id, folder = a_trained_job(stack, http)
    listed = http.get(f"{JOBS}/{job_id}/model").json()["data"]
    assert {file["name"]: file["bytes"] for file in listed} == {
        name: len(data) for name, data in content(folder).items()
    }
    reply = http.get(f"{JOBS}/{job_id}/model/{WEIGHTS}")
    assert reply.content == (folder / WEIGHTS).read_bytes()
    ranged = {"Range": "bytes=100-", "If-Range": reply.headers["etag"]}
    rest = http.get(f"{JOBS}/{job_id}/model/{WEIGHTS}", headers=ranged)
    assert (rest.status_code, rest.content) == (206, reply.content[100:])


@pytest.mark.parametrize(
    "name",
    [
        *("..", "../beside", "..%2fbeside", "%2e%2e%2fbeside", "%2fetc%2fpasswd"),
        *("out", "also-config", "pipe", "inner", "inner%2fdeep", "config.json%00", "absent"),
    ],
)
def test_no_other_name_reaches_a_file(stack: Stack, http: httpx.Client, name: str) -> None:
    job_id, _ = a_trained_job(stack, http, size=10)
    status, body = get_verbatim(stack, f"{JOBS}/{job_id}/model/{name}")
    assert status == 404
    assert b"secret" not in body


def get_verbatim(stack: Stack, path: str) -> tuple[int, bytes]:
    """What is answered to a path that no client has put in order."""
    host, port = stack.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host)
    connection.putheader("Authorization", f"Bearer {KEY}")
    connection.endheaders()
    reply = connection.getresponse()
    return reply.status, reply.read()


@pytest.mark.parametrize(
    "named",
    [
        *("/etc", "{another}", "{job}", "{job}/away", "{job}/model/.."),
        *("{job}/model/config.json", "{job}/gone", "", 3),
    ],
)
def test_a_record_cannot_name_a_folder_that_is_not_its_own(
    stack: Stack, http: httpx.Client, named: str | int
) -> None:
    another = a_trained_job(stack, http, size=10)[1]
    job_id = a_job(http)["id"]
    job = stack.data_dir / "jobs" / job_id
    shutil.copytree(another, job / "model", ignore=shutil.ignore_patterns("pipe"))
    (job / "away").symlink_to(another)
    if isinstance(named, str):
        named = named.format(another=another, job=job)
    take_up(stack, job_id, state="succeeded", result={"model": named})
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
    stack: Stack,
    http: httpx.Client,
    values: dict[str, Any],
    status: int,
    reason: str,
    tmp_path: Path,
) -> None:
    job_id = a_job(http)["id"]
    if values:
        take_up(stack, job_id, **values)
    for route in ("model", f"model/{WEIGHTS}"):
        assert_refused(http.get(f"{JOBS}/{job_id}/{route}"), status, "id")
    with WeirClient(stack.url, KEY) as client, pytest.raises(WeirError, match=reason):
        client.fetch_model(job_id, tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ------------------------------------------------------------------------------------- the client


class Cuts(httpx.BaseTransport):
    """A line that breaks after so many bytes of the weights, and keeps what was asked for."""

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


class Cut(httpx.SyncByteStream):
    def __init__(self, inner: Any, after: int) -> None:
        self.inner, self.after = inner, after

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.inner:
            self.after -= len(chunk)
            if self.after < 0:
                raise httpx.ReadError("the line broke")
            yield chunk

    def close(self) -> None:
        self.inner.close()


def ranges(line: Cuts) -> list[int]:
    """Where each request for the weights began."""
    asked = [place for name, place in line.asked if name == WEIGHTS]
    return [int(place.removeprefix("bytes=").removesuffix("-")) if place else 0 for place in asked]


def test_a_fetch_goes_on_where_the_line_broke(
    stack: Stack, http: httpx.Client, tmp_path: Path
) -> None:
    job_id, folder = a_trained_job(stack, http)
    line, told = Cuts(MIB, 1, MIB), []
    with WeirClient(stack.url, KEY, transport=line, sleep=lambda _: None) as client:
        client.fetch_model(job_id, tmp_path, lambda *progress: told.append(progress))
    assert content(tmp_path) == content(folder)
    assert sorted(os.listdir(tmp_path)) == sorted(content(folder))
    first, second, third, fourth = ranges(line)
    assert 0 == first < second == third < fourth <= 2 * MIB
    total = sum(len(data) for data in content(folder).values())
    assert told[-1] == (WEIGHTS, total, total)
    assert [here for _, here, _ in told] == sorted(here for _, here, _ in told)
    line.asked.clear()
    with WeirClient(stack.url, KEY, transport=line) as client:
        client.fetch_model(job_id, tmp_path)
    assert [name for name, _ in line.asked] == ["model"], "what is done is not repeated"


class Replaces(Cuts):
    """A line behind which the weights are replaced once they have been listed."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        self.weights = weights

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(WEIGHTS):
            later = self.weights.stat().st_mtime + 2
            self.weights.write_bytes(secrets.token_bytes(3 * MIB))
            os.utime(self.weights, (later, later))
        return super().handle_request(request)


def test_weights_that_are_replaced_under_way_are_not_glued(
    stack: Stack, http: httpx.Client, tmp_path: Path
) -> None:
    job_id, folder = a_trained_job(stack, http)

    def press(_: str, here: int, __: int) -> None:
        if here >= 2 * MIB:
            raise KeyboardInterrupt

    with WeirClient(stack.url, KEY) as client, pytest.raises(KeyboardInterrupt):
        client.fetch_model(job_id, tmp_path, press)
    assert not (tmp_path / WEIGHTS).exists()
    line = Replaces(folder / WEIGHTS)
    with WeirClient(stack.url, KEY, transport=line) as client:
        client.fetch_model(job_id, tmp_path)
    assert ranges(line)[0] >= 2 * MIB - 100
    assert content(tmp_path) == content(folder)


def test_the_command_names_a_full_disk_and_goes_on_with_what_has_arrived(
    stack: Stack, http: httpx.Client, tmp_path: Path
) -> None:
    know(tmp_path, stack.url)
    job_id, folder = a_trained_job(stack, http)
    mine, full = tmp_path / "models/mine", 2 * MIB - 1000
    fetch = ("fetch", job_id, "models/mine")
    status, _, err = weir(tmp_path, *fetch, most_bytes=full)
    assert (status, "mine: File too large" in err) == (2, True), err
    assert [path.stat().st_size for path in mine.glob(f"{WEIGHTS}.*.part")] == [full]
    status, out, err = weir(tmp_path, *fetch)
    assert (status, out) == (0, f"the model of {job_id} is in {mine.resolve()}\n"), err
    assert content(mine) == content(folder)
