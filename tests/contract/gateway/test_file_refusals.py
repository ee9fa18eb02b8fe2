"""What is refused of files: what is in them, how they are sent, and how large they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.gateway.app import create_app
from tests.contract.gateway.stack import (
    GOOD_LINE,
    KEY,
    TASKS,
    Stack,
    assert_refused,
    upload,
)

pytestmark = pytest.mark.redis


BAD_FILES = {
    "not JSON": (GOOD_LINE + "{oops\n", "line 2: not valid JSON"),
    "no answer": (GOOD_LINE + '{"id": "b", "prompt": "x"}\n', "line 2: answer: required"),
    "an unknown key": (
        '{"id": "b", "prompt": "x", "answer": "1", "anwser": "2"}\n',
        "line 1: anwser: unknown key",
    ),
    "an id twice": (GOOD_LINE + GOOD_LINE, "line 2: id: 'a' is taken by line 1"),
    "nothing in it": ("\n", "line 1: the file holds no task"),
    "not UTF-8": (
        GOOD_LINE.encode() + b'{"id": "\xff"}\n',
        "line 2: not UTF-8: byte 9 of the line is 0xff",
    ),
    "a number that is none": (
        '{"id": "b", "prompt": "x", "answer": "1", "metadata": {"level": [1, NaN]}}\n',
        "line 1: not valid JSON: NaN is not a finite number",
    ),
    "half a character": (
        '{"id": "b", "prompt": "x", "answer": "1", "metadata": {"k": "\\ud800"}}\n',
        "line 1: metadata.k: holds half a character",
    ),
    "brackets without end": ("[" * 100_000, "line 1: not valid JSON: nested too deeply"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_task_file_is_refused_naming_line_and_field(
    stack: Stack, http: httpx.Client, case: str
) -> None:
    content, message = BAD_FILES[case]
    before = stack.left()
    reply = upload(http, content)
    assert_refused(reply, 400, "file")
    assert message in reply.json()["detail"]
    assert stack.left() == before


@pytest.mark.parametrize(
    ("files", "data", "param"),
    [
        ({"file": ("t.jsonl", TASKS)}, {"purpose": "batch"}, "purpose"),
        ({"file": ("t.jsonl", TASKS)}, {"purpose": "fine-tune", "expires": "1"}, "expires"),
        ({"tasks": ("t.jsonl", TASKS)}, {"purpose": "fine-tune"}, "tasks"),
        ({}, {"purpose": "fine-tune"}, "file"),
    ],
)
def test_a_bad_upload_form_is_refused(
    stack: Stack, http: httpx.Client, files: Any, data: dict[str, str], param: str
) -> None:
    before = stack.left()
    assert_refused(http.post("/v1/files", files=files, data=data), 400, param)
    assert stack.left() == before


# A gateway in this process, for what only a test would set.
def small_gateway(stack: Stack, data_dir: Path, max_file_bytes: int) -> httpx.AsyncClient:
    environment = {
        "WEIR_REDIS_URL": stack.server.url,
        "WEIR_DATA_DIR": str(data_dir),
        "WEIR_PORT": "1",
        "WEIR_API_KEYS": KEY,
    }
    deployment = Deployment.from_environment(environment)
    unused: Any = None  # uploads never reach the exchange
    app = create_app(Service("gateway", deployment, unused), max_file_bytes=max_file_bytes)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://gateway",
        headers={"Authorization": f"Bearer {KEY}"},
    )


@pytest.mark.anyio
async def test_a_file_beyond_the_limit_is_refused_whether_it_says_its_size_or_not(
    stack: Stack, tmp_path: Path
) -> None:
    async with small_gateway(stack, tmp_path, max_file_bytes=2000) as client:
        form = {"files": {"file": ("t.jsonl", "x" * 2001)}, "data": {"purpose": "fine-tune"}}
        assert_refused(await client.post("/v1/files", **form), 413, "file")
        form["files"] = {"file": ("t.jsonl", "x" * 2**20)}
        assert_refused(await client.post("/v1/files", **form), 413, "file")
    assert list((tmp_path / "files").glob("*")) == []
