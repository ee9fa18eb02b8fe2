"""Task files: how they come in, what is checked in them, and what the store keeps."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from protocol.tasks import TaskFileError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.gateway import errors
from services.gateway.core.files.check import TaskCheck
from services.gateway.core.files.store import (
    FileStore,
    StoredFile,
    Uploads,
    copy_with_id,
    file_name,
)
from services.gateway.errors import Problem

HOUR = {
    "purpose": "fine-tune",
    "expires_after[anchor]": "created_at",
    "expires_after[seconds]": "3600",
}
TASK = b'{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'


# ---------------------------------------------------------------------- the store


def put(store: FileStore, name: str, **changes: Any) -> StoredFile:
    with store.scratch() as folder:
        (folder / "sent").write_bytes(TASK)
        with (folder / "sent").open("rb") as sent:
            file_id = copy_with_id(sent, name, folder / "part")
        stored = StoredFile(id=file_id, bytes=len(TASK), created_at=1, filename=name, tasks=1)
        return store.keep(folder / "part", stored.model_copy(update=changes))


def test_a_file_whose_description_was_lost_is_not_listed_until_it_is_uploaded_again(
    tmp_path: Path,
) -> None:
    store = FileStore(tmp_path)
    lost, kept = put(store, "lost.jsonl"), put(store, "kept.jsonl")
    assert {stored.id for stored in store.all()} == {lost.id, kept.id}
    (tmp_path / f"{lost.id}.json").write_text("")
    assert store.all() == [kept]
    assert store.find(lost.id) is None
    assert put(store, "lost.jsonl").id == lost.id
    assert {stored.id for stored in store.all()} == {lost.id, kept.id}


def test_of_two_uploads_of_a_file_the_longer_one_counts(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for ends, later in ((100, 100), (50, 100), (200, 200), (None, None), (300, None)):
        assert put(store, "a", expires_at=ends).expires_at == later
    assert len(store.all()) == 1
    assert store.expired() == []


def test_files_expire_at_their_time_unless_they_are_uploaded_again(tmp_path: Path) -> None:
    store, now = FileStore(tmp_path), int(time.time())
    past, again = (put(store, name, expires_at=now) for name in ("past", "again"))
    later = put(store, "later", expires_at=now + 1000)
    expired = store.expired()
    assert sorted(expired) == sorted([past.id, again.id])
    again = put(store, "again", expires_at=now + 1000)
    for file_id in (*expired, later.id):
        store.delete_expired(file_id)
    assert {stored.id for stored in store.all()} == {again.id, later.id}


def test_what_a_killed_gateway_left_goes(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    kept = put(store, "kept")
    (tmp_path / ".upload-killed").mkdir()
    store.remove_leftovers()
    assert not list(tmp_path.glob(".upload-*"))
    assert store.all() == [kept]


@pytest.mark.parametrize("left", [None, TASK[:5]])
def test_a_file_whose_content_was_lost_is_told_as_such_until_it_is_uploaded_again(
    tmp_path: Path, left: bytes | None
) -> None:
    store = FileStore(tmp_path)
    lost = put(store, "lost.jsonl")
    store.path(lost.id).unlink()
    if left is not None:
        store.path(lost.id).write_bytes(left)
    with pytest.raises(Problem) as caught:
        store.content(lost.id)
    assert (caught.value.status_code, caught.value.code) == (404, "content_lost")
    assert put(store, "lost.jsonl") == lost
    assert store.content(lost.id).read_bytes() == TASK


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\data\\a\0b\r\n.jsonl", "ab.jsonl"),
        ("é" * 300 + ".jsonl", "é" * 124 + ".jsonl"),
        ("\ud800", "tasks.jsonl"),
        (".", "tasks.jsonl"),
        ("a/..", "tasks.jsonl"),
    ],
)
def test_a_name_is_what_can_be_shown_of_it(sent: str, name: str) -> None:
    assert file_name(sent) == name


# ---------------------------------------------------------------------- the check


@pytest.mark.anyio
async def test_a_check_counts_tasks_and_their_columns(tmp_path: Path) -> None:
    second = json.loads(TASK) | {"id": "b", "solution": "1", "metadata": {"level": 1}}
    (tmp_path / "t").write_bytes(TASK + json.dumps(second).encode())
    contents = await TaskCheck().contents(tmp_path / "t")
    assert contents.tasks == 2
    assert contents.columns == {"prompt": 2, "answer": 2, "level": 1, "solution": 1}


@pytest.mark.anyio
async def test_a_check_that_takes_too_long_is_given_up_and_makes_room(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # who reads it waits for ever
    (tmp_path / "t").write_bytes(TASK)
    check = TaskCheck(longest_s=0.2)
    endless = [check.contents(tmp_path / "pipe") for _ in range(4)]
    async with asyncio.timeout(60):
        found = await asyncio.gather(*endless, return_exceptions=True)
    assert [type(each) for each in found] == [TaskFileError] * 4
    check = TaskCheck()
    assert (await check.contents(tmp_path / "t")).tasks == 1


# ---------------------------------------------------------------------- the form


async def upload(folder: Path, *files: tuple[str, bytes], **fields: str) -> httpx.Response:
    store = FileStore(folder, max_bytes=1000)

    async def receive(request: Request) -> Response:
        return JSONResponse((await Uploads(store).receive(request)).model_dump())

    app: Any = Starlette(routes=[Route("/", receive, methods=["POST"])])
    errors.install(app)
    sent = [(name, ("../t.jsonl", content)) for name, content in files]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://here"
    ) as client:
        return await client.post("/", files=sent, data=fields)


@pytest.mark.anyio
async def test_a_file_is_kept_under_its_name_until_it_expires(tmp_path: Path) -> None:
    stored = StoredFile.model_validate((await upload(tmp_path, ("file", TASK), **HOUR)).json())
    assert (stored.filename, stored.tasks, stored.bytes) == ("t.jsonl", 1, len(TASK))
    assert stored.expires_at == stored.created_at + 3600
    assert FileStore(tmp_path).content(stored.id).read_bytes() == TASK


GOOD = {"purpose": "fine-tune"}
FILE = ("file", TASK)
BAD_FORMS: dict[str, tuple[list[tuple[str, bytes]], dict[str, str], str]] = {
    "no purpose": ([FILE], {}, "purpose"),
    "another purpose": ([FILE], {"purpose": "batch"}, "purpose"),
    "no anchor": ([FILE], GOOD | {"expires_after[seconds]": "4000"}, "expires_after.anchor"),
    "too short": ([FILE], HOUR | {"expires_after[seconds]": "3599"}, "expires_after.seconds"),
    "an unknown field": ([FILE], GOOD | {"purposes": "x"}, "purposes"),
    "no file": ([], GOOD, "file"),
    "a text for a file": ([], GOOD | {"file": "text"}, "file"),
    "a file of another name": ([("data", TASK)], GOOD, "file"),
    "two files": ([FILE] * 2, GOOD, "body"),
    "a long field": ([FILE], {"purpose": "x" * 2000}, "body"),
    "many fields": ([FILE], {str(number): "x" for number in range(9)}, "body"),
    "a large file": ([("file", b"x" * 1001)], GOOD, "file"),
    "no tasks": ([("file", b"x")], GOOD, "file"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("case", BAD_FORMS)
async def test_a_bad_form_is_refused_naming_the_field_and_leaves_nothing(
    tmp_path: Path, case: str
) -> None:
    files, fields, param = BAD_FORMS[case]
    reply = await upload(tmp_path, *files, **fields)
    assert reply.status_code == (413 if case == "a large file" else 400)
    assert reply.json()["error"]["param"] == param
    assert list(tmp_path.iterdir()) == []
