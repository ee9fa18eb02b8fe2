"""Uploads in parts that several requests want something of at once."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from starlette.requests import Request

from services.gateway.errors import Problem
from services.gateway.files.check import Contents, TaskCheck
from services.gateway.files.intake import Intake
from services.gateway.files.shelf import FileShelf
from services.gateway.files.uploads import Completion, NewUpload, Uploads

pytestmark = pytest.mark.anyio
CONTENT = b'{"id": "a", "prompt": "1+1=?", "answer": "2"}\n'


class HeldCheck(TaskCheck):
    """A check that takes as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end = asyncio.Semaphore(0), asyncio.Event()

    async def contents(self, path: Path) -> Contents:
        """What is in the file, told late."""
        self.begun.release()
        await self.may_end.wait()
        return await super().contents(path)


def a_waiting_request() -> Request:
    return Request({"type": "http"}, asyncio.get_running_loop().create_future)


async def one_part(uploads: Uploads, content: bytes = CONTENT) -> tuple[str, Completion]:
    upload = await uploads.create(
        NewUpload(bytes=len(content), filename="t", mime_type="text/jsonl", purpose="fine-tune")
    )
    name = f"part_{'0' * 24}"
    (uploads.intake.shelf.folder / "uploads" / upload.id / name).write_bytes(content)
    return upload.id, Completion(part_ids=[name])


async def test_two_completions_of_an_upload_have_one_answer(tmp_path: Path) -> None:
    check = HeldCheck()
    uploads = Uploads(Intake(FileShelf(tmp_path), check))
    upload_id, completion = await one_part(uploads)
    completing = [
        asyncio.create_task(uploads.complete(upload_id, completion, a_waiting_request()))
        for _ in range(2)
    ]
    for _ in completing:
        await check.begun.acquire()
    check.may_end.set()
    first, second = await asyncio.gather(*completing)
    assert first == second
    assert first.status == "completed"


async def test_of_an_upload_that_is_cancelled_while_it_is_checked_no_file_stays(
    tmp_path: Path,
) -> None:
    check = HeldCheck()
    uploads = Uploads(Intake(FileShelf(tmp_path), check))
    upload_id, completion = await one_part(uploads)
    completing = asyncio.create_task(uploads.complete(upload_id, completion, a_waiting_request()))
    await check.begun.acquire()
    await uploads.cancel(upload_id)
    check.may_end.set()
    with pytest.raises(Problem, match="is cancelled"):
        await completing
    assert uploads.intake.shelf.all() == []


async def test_an_upload_that_nobody_has_touched_for_ten_minutes_makes_room(
    tmp_path: Path,
) -> None:
    uploads = Uploads(Intake(FileShelf(tmp_path)))
    first, second, *_ = [(await one_part(uploads))[0] for _ in range(16)]
    with pytest.raises(Problem, match="16 uploads"):
        await one_part(uploads)
    for age, upload_id in ((601, first), (700, second)):
        then = time.time() - age
        os.utime(tmp_path / "uploads" / upload_id, (then, then))
    newest, _ = await one_part(uploads)
    with pytest.raises(Problem, match="no upload"):
        await uploads.cancel(second)
    for upload_id in (first, newest):
        assert (await uploads.cancel(upload_id)).status == "cancelled"


async def test_uploads_expire(tmp_path: Path) -> None:
    uploads = Uploads(Intake(FileShelf(tmp_path)))
    first, _ = [(await one_part(uploads))[0] for _ in range(2)]
    record = tmp_path / "uploads" / first / "upload.json"
    told = json.loads(record.read_text())
    told["upload"]["expires_at"] = 1
    record.write_text(json.dumps(told))
    with pytest.raises(Problem, match="expired"):
        await uploads.cancel(first)
    await uploads.expire()
    assert len(list((tmp_path / "uploads").iterdir())) == 1
