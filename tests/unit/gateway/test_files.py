"""Task files: the store, the check, and the form of an upload."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from protocol.tasks import TaskFileError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.chassis.pool import Pool
from services.gateway import errors
from services.gateway.api.files import receive_file
from services.gateway.core.files.check import MESSAGES, check_file
from services.gateway.core.files.store import FileStore, StoredFile, clean_filename, copy_with_id
from tests.tables import table
from tests.unit.gateway.refusing import refused

pytestmark = pytest.mark.anyio
TASK = b'{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'
GOOD = {"purpose": "fine-tune"}
HOUR = GOOD | {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
FILE = ("file", TASK)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path, max_bytes=1000)


def put(store: FileStore, name: str, **changes: Any) -> StoredFile:
    with store.scratch() as folder:
        upload = folder / "upload"
        upload.write_bytes(TASK)
        with upload.open("rb") as file:
            file_id = copy_with_id(file, name, folder / "copy")
        stored = StoredFile(id=file_id, bytes=len(TASK), created_at=1, filename=name, tasks=1)
        return store.keep(folder / "copy", stored.model_copy(update=changes))


def test_a_damaged_description_hides_its_file_until_that_is_uploaded_again(
    store: FileStore,
) -> None:
    damaged = put(store, "damaged.jsonl")
    intact = put(store, "intact.jsonl")
    (store.folder / f"{damaged.id}.json").write_text("")
    assert store.all() == [intact]
    assert store.find(damaged.id) is None
    assert put(store, "damaged.jsonl").id == damaged.id
    assert {stored.id for stored in store.all()} == {damaged.id, intact.id}


def test_a_repeated_upload_extends_the_lifetime(store: FileStore) -> None:
    for sent, expected in ((100, 100), (50, 100), (200, 200), (None, None), (300, None)):
        assert put(store, "a", expires_at=sent).expires_at == expected
    assert len(store.all()) == 1
    assert store.expired() == []


def test_an_expired_file_is_deleted_unless_it_is_uploaded_again(store: FileStore) -> None:
    now = int(time.time())
    past = put(store, "past", expires_at=now)
    repeated = put(store, "repeated", expires_at=now)
    future = put(store, "future", expires_at=now + 1000)
    expired = store.expired()
    assert sorted(expired) == sorted([past.id, repeated.id])
    put(store, "repeated", expires_at=now + 1000)
    for file_id in (*expired, future.id):
        store.delete_expired(file_id)
    assert {stored.id for stored in store.all()} == {repeated.id, future.id}


def test_the_scratch_folders_of_a_killed_gateway_are_removed(store: FileStore) -> None:
    stored = put(store, "a")
    (store.folder / ".upload-killed").mkdir()
    store.remove_leftovers()
    assert not list(store.folder.glob(".upload-*"))
    assert store.all() == [stored]


@pytest.mark.parametrize("remaining", [None, TASK[:5]])
def test_lost_content_is_404_until_it_is_uploaded_again(
    store: FileStore, remaining: bytes | None
) -> None:
    stored = put(store, "lost.jsonl")
    store.path(stored.id).unlink()
    if remaining is not None:
        store.path(stored.id).write_bytes(remaining)
    with refused(404, "content_lost"):
        store.content(stored.id)
    assert put(store, "lost.jsonl") == stored
    assert store.content(stored.id).read_bytes() == TASK


@table(
    """
    sent             | name
    ../../etc/passwd | passwd
    .                | tasks.jsonl
    a/..             | tasks.jsonl
""",
    ("C:\\data\\a\0b\r\n.jsonl", "ab.jsonl"),
    ("é" * 300 + ".jsonl", "é" * 124 + ".jsonl"),
    ("\ud800", "tasks.jsonl"),
)
def test_a_filename_is_the_printable_end_of_a_path(sent: str, name: str) -> None:
    assert clean_filename(sent) == name


async def test_a_check_counts_tasks_and_columns_within_its_cpu_time(tmp_path: Path) -> None:
    path = tmp_path / "tasks"
    chat = {"id": "b", "messages": [{"role": "user", "content": "1"}], "metadata": {"level": 1}}
    path.write_bytes(TASK + json.dumps(chat | {"solution": "1"}).encode())
    large = tmp_path / "large"
    large.write_bytes(b"".join(TASK.replace(b'"a"', b'"%d"' % n) for n in range(20_000)))
    async with Pool(1) as pool:
        with pytest.raises(TaskFileError, match="split the file"):
            await check_file(pool, large, cpu_limit_s=0.01)
        contents = await check_file(pool, path)
    assert contents.tasks == 2
    assert contents.columns == {"prompt": 1, "answer": 1, "level": 1, "solution": 1, MESSAGES: 1}


async def upload(store: FileStore, *files: tuple[str, bytes], **fields: str) -> httpx.Response:
    jobs: Any = SimpleNamespace(files=store)

    async def receive(request: Request) -> Response:
        return JSONResponse((await receive_file(request, jobs)).model_dump())

    app: Any = Starlette(routes=[Route("/", receive, methods=["POST"])])
    errors.install(app)
    parts = [(name, ("../t.jsonl", content)) for name, content in files]
    transport = httpx.ASGITransport(app)
    async with store.check_pool, httpx.AsyncClient(transport=transport) as client:
        return await client.post("http://gateway/", files=parts, data=fields)


async def test_an_upload_is_stored_under_its_name_until_it_expires(store: FileStore) -> None:
    stored = StoredFile.model_validate((await upload(store, FILE, **HOUR)).json())
    assert (stored.filename, stored.tasks, stored.bytes) == ("t.jsonl", 1, len(TASK))
    assert stored.expires_at == stored.created_at + 3600
    assert store.content(stored.id).read_bytes() == TASK


@table(
    """
    param                | fields                                                     | files
    purpose              | {}                                                         | ["file"]
    purpose              | {"purpose": "batch"}                                       | ["file"]
    expires_after.anchor | {"purpose": "fine-tune", "expires_after[seconds]": "4000"} | ["file"]
    purposes             | {"purpose": "fine-tune", "purposes": "x"}                  | ["file"]
    file                 | {"purpose": "fine-tune"}                                   | []
    file                 | {"purpose": "fine-tune", "file": "text"}                   | []
    file                 | {"purpose": "fine-tune"}                                   | ["data"]
    body | {"purpose": "fine-tune"} | ["file", "file"]
    """,
    ("expires_after.seconds", HOUR | {"expires_after[seconds]": "3599"}, ["file"]),
    ("body", {"purpose": "x" * 2000}, ["file"]),
    ("body", {str(number): "x" for number in range(9)}, ["file"]),
)
async def test_a_bad_form_is_refused_by_its_field_and_leaves_no_file(
    store: FileStore, param: str, fields: dict[str, str], files: list[str]
) -> None:
    reply = await upload(store, *((name, TASK) for name in files), **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize(("content", "status"), [(b"x" * 1001, 413), (b"x", 400)])
async def test_a_file_that_is_large_or_has_no_tasks_is_refused(
    store: FileStore, content: bytes, status: int
) -> None:
    reply = await upload(store, ("file", content), **GOOD)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, "file")
    assert list(store.folder.iterdir()) == []
