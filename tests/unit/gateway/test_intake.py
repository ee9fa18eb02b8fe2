"""Uploads on their way in: checked in bounded memory, until the client leaves."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from services.gateway.errors import Problem
from services.gateway.files.check import TaskCheck
from services.gateway.files.form import Received, receive_form
from services.gateway.files.intake import Intake, unless_gone
from services.gateway.files.store import FileStore

pytestmark = pytest.mark.anyio
MIB = 2**20


def a_task(**changes: Any) -> bytes:
    return json.dumps({"id": "a", "prompt": "1+1=?", "answer": "2", **changes}).encode() + b"\n"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# ---------------------------------------------------------------------- the check


async def test_a_check_counts_tasks_and_their_columns(tmp_path: Path) -> None:
    lines = a_task(metadata={"level": 1}) + a_task(id="b", solution="1")
    contents = await TaskCheck().contents(write(tmp_path / "t", lines))
    assert contents.tasks == 2
    assert contents.columns == {"prompt": 2, "answer": 2, "level": 1, "solution": 1}


async def test_the_check_of_a_caller_who_has_left_ends_and_frees_its_place(tmp_path: Path) -> None:
    check, pipes = TaskCheck(), [tmp_path / name for name in ("one", "two")]
    for pipe in pipes:
        os.mkfifo(pipe)  # whoever reads it waits for ever
    checking = [asyncio.create_task(check.contents(pipe)) for pipe in pipes]
    writers = [await _opened_by_a_reader(pipe) for pipe in pipes]
    waiting = asyncio.create_task(check.contents(write(tmp_path / "t", a_task())))
    for task in checking:
        task.cancel()
    for writer in writers:
        await until(lambda writer=writer: _is_broken(writer))
        os.close(writer)
    assert (await waiting).tasks == 1


async def _opened_by_a_reader(pipe: Path) -> int:
    async with asyncio.timeout(60):
        while True:
            try:
                return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nobody reads yet
                    raise
                await asyncio.sleep(0.01)


def _is_broken(writer: int) -> bool:
    try:
        os.write(writer, b"\n")
    except BrokenPipeError:
        return True
    except BlockingIOError:
        pass
    return False


# ---------------------------------------------------------------------- the form


def a_request(*chunks: bytes, boundary: str = "z", then: Awaitable[Any] | None = None) -> Request:
    """A request of these chunks, whose client leaves after ``then``."""
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}
        if then is not None:
            await then
        return {"type": "http.disconnect"}

    kind = f"multipart/form-data; boundary={boundary}".encode()
    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind)]}
    return Request(scope, receive)


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    named = "" if filename is None else f'; filename="{filename}"'
    head = f'--z\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + content + b"\r\n"


async def received(path: Path, *chunks: bytes, max_bytes: int = MIB) -> Received:
    return await receive_form(a_request(*chunks), path, file_field="file", max_bytes=max_bytes)


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_form_is_read_however_it_is_cut(tmp_path: Path, size: int) -> None:
    content = b"\r\n--\r\n--y\r" * 20
    body = part("purpose", b"fine-tune") + part("file", content, "a/t.jsonl") + b"--z--\r\n"
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    form = await received(tmp_path / "t", *chunks)
    assert form.path.read_bytes() == content
    assert (form.filename, form.bytes) == ("t.jsonl", len(content))
    assert form.fields == {"purpose": "fine-tune"}


async def test_no_more_is_written_than_the_limit(tmp_path: Path) -> None:
    chunks = [part("file", b"x" * 100, "a")[:-2], *[b"x" * 100] * 100]
    with pytest.raises(Problem) as caught:
        await received(tmp_path / "t", *chunks, max_bytes=1000)
    assert caught.value.status_code == 413
    assert (tmp_path / "t").stat().st_size <= 1000


# ---------------------------------------------------------------------- both


async def test_what_a_client_that_has_left_has_sent_is_not_kept(tmp_path: Path) -> None:
    intake = Intake(FileStore(tmp_path))
    lines = b"".join(a_task(id=str(number)) for number in range(20_000))
    with intake.scratch() as folder:
        sent = Received(write(folder / "t", lines), "t.jsonl", len(lines))
        with pytest.raises(Problem, match="left"):
            await unless_gone(a_request(), intake.keep(sent, None))
    assert list(tmp_path.iterdir()) == []


async def test_of_many_uploads_at_once_some_are_told_to_wait(tmp_path: Path) -> None:
    intake = Intake(FileStore(tmp_path))
    under_way = [intake.scratch() for _ in range(16)]
    for upload in under_way:
        upload.__enter__()
    with pytest.raises(Problem, match="try again") as caught, intake.scratch():
        pass
    assert caught.value.status_code == 429
    assert caught.value.headers == {"Retry-After": "2"}
    under_way[0].__exit__(None, None, None)
    with intake.scratch():
        pass


BAD_FORMS = {
    "no form": (b"x", "body"),
    "no file": (part("purpose", b"fine-tune") + b"--z--\r\n", "file"),
    "two files": (part("file", b"x", "a") + part("file", b"x", "b") + b"--z--\r\n", "file"),
    "a file of another name": (part("data", b"x", "a") + b"--z--\r\n", "data"),
    "a long field": (part("purpose", b"x" * 2000) + b"--z--\r\n", "purpose"),
    "many fields": (part("purpose", b"x") * 9 + b"--z--\r\n", "body"),
}


@pytest.mark.parametrize("case", BAD_FORMS)
async def test_a_bad_form_is_refused_naming_the_field(tmp_path: Path, case: str) -> None:
    body, param = BAD_FORMS[case]
    with pytest.raises(Problem) as caught:
        await received(tmp_path / "t", body)
    assert (caught.value.status_code, caught.value.param) == (400, param)
