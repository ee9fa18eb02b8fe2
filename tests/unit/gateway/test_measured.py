"""What fails in a request without being expected: its answer, and what the log says."""

from __future__ import annotations

import errno
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from services.chassis.logs import REQUEST_ID, JsonFormatter
from services.gateway.middleware.measured import Measured

pytestmark = pytest.mark.anyio


@pytest.fixture
def lines() -> Iterator[Any]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("gateway"))
    logger = logging.getLogger("services.gateway.middleware")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def ask(app: Any) -> httpx.Response:
    transport = httpx.ASGITransport(Measured(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return await client.get("/", headers={"X-Request-Id": "mine"})


async def test_a_full_disk_is_a_507_with_the_remedy() -> None:
    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/secret/path")

    reply = await ask(full)
    assert (reply.status_code, reply.json()["error"]["code"]) == (507, "disk_full")
    assert "WEIR_DATA_DIR" in reply.text
    assert "/secret/path" not in reply.text


async def test_what_nobody_expected_is_a_500_whose_id_finds_the_traceback(lines: Any) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("of /secret/path")

    reply = await ask(broken)
    assert (reply.status_code, reply.headers["X-Request-Id"]) == (500, "mine")
    assert reply.json()["error"]["code"] == "internal_error"
    assert "/secret/path" not in reply.text
    failure, request = lines()
    assert failure["request_id"] == request["request_id"] == "mine"
    assert "ZeroDivisionError: of /secret/path" in failure["traceback"]
    assert request["status"] == 500
    assert REQUEST_ID.get() is None


async def test_a_client_that_has_gone_is_no_failure(lines: Any) -> None:
    async def left(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    app = Measured(left)
    scope = {"type": "http", "method": "POST", "path": "/" + "x" * 9999, "headers": []}

    async def never() -> Any:
        raise AssertionError

    async def refuse(message: Any) -> None:
        raise AssertionError(message)

    await app(scope, never, refuse)
    (line,) = lines()
    assert (line["message"], line["status"]) == ("request", None)
    assert len(line["path"]) == 256


async def test_requests_that_come_too_often_do_not_fill_the_log(lines: Any) -> None:
    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 429, "headers": []})
        await send({"type": "http.response.body"})

    await ask(full)
    assert lines() == []
