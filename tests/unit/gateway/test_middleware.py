"""What every request passes: the log, and failures that nobody expected; keys; limits of bodies."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from services.chassis.deployment import DeploymentError
from services.chassis.logs import REQUEST_ID, JsonFormatter
from services.gateway.errors import Problem, respond
from services.gateway.middleware import (
    MAX_JSON_BYTES,
    Bounded,
    Guarded,
    Measured,
    parse_keys,
    session_key,
)

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


async def asked(app: Any, url: str = "/", method: str = "GET", **options: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return await client.request(method, url, **options)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/secret/path"), 507, "disk_full"),
        (ZeroDivisionError("of /secret/path"), 500, "internal_error"),
    ],
)
async def test_a_failure_is_told_without_its_words_and_its_id_finds_the_traceback(
    lines: Any, error: Exception, status: int, code: str
) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    reply = await asked(Measured(broken), headers={"X-Request-Id": "mine"})
    assert (reply.status_code, reply.headers["X-Request-Id"]) == (status, "mine")
    assert reply.json()["error"]["code"] == code
    assert "/secret/path" not in reply.text
    failure, request = lines()
    assert failure["request_id"] == request["request_id"] == "mine"
    assert "/secret/path" in failure["traceback"]
    assert request["status"] == status
    assert REQUEST_ID.get() is None


async def test_a_client_that_has_gone_is_no_failure(lines: Any) -> None:
    async def left(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    async def never(*_: Any) -> Any:
        raise AssertionError

    scope = {"type": "http", "method": "POST", "path": "/" + "x" * 9999, "headers": []}
    await Measured(left)(scope, never, never)
    (line,) = lines()
    assert (line["message"], line["status"]) == ("request", None)
    assert len(line["path"]) == 256


# ---------------------------------------------------------------------- keys


def an_entry(name: str, role: str, key: str) -> str:
    return f"{name}:{role}:sha256:{hashlib.sha256(key.encode()).hexdigest()}"


KEYS = [an_entry(f"{role}er", role, f"{role}-key") for role in ("read", "write", "admin")]


async def at_the_door(key: str | None, method: str = "GET", path: str = "/v1") -> httpx.Response:
    """What a guarded application answers that lets everything in."""
    headers = {b"Authorization": f"Bearer {key}".encode()} if key else {}
    guarded = Guarded(PlainTextResponse("in"), parse_keys(KEYS))
    return await asked(guarded, path, method, headers=headers)


def test_an_entry_is_a_hash_with_a_name_and_a_role_or_a_plain_key_of_an_admin() -> None:
    hashed, plain = parse_keys([an_entry("alice@here", "read", "secret"), "plain-key"])
    assert (hashed.name, hashed.role) == ("alice@here", "read")
    assert (plain.name, plain.role) == ("key-2", "admin")
    assert hashed.digest == hashlib.sha256(b"secret").hexdigest()
    assert "plain-key" not in repr(plain)


@pytest.mark.parametrize(
    "entry",
    [
        "alice:read:secret",
        "alice:owner:sha256:" + "0" * 64,
        "alice:read:sha256:" + "0" * 63,
        ":read:sha256:" + "0" * 64,
    ],
)
def test_an_entry_that_is_neither_is_refused_by_its_place_and_not_shown(entry: str) -> None:
    with pytest.raises(DeploymentError, match="entry 2") as caught:
        parse_keys(["plain", entry])
    assert entry not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("read", {"GET", "HEAD"}),
        ("write", {"GET", "HEAD", "POST"}),
        ("admin", {"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "MADE-UP"}),
    ],
)
async def test_a_key_may_do_what_its_role_says(role: str, allowed: set[str]) -> None:
    for method in ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "MADE-UP"):
        reply = await at_the_door(f"{role}-key", method)
        assert reply.status_code == (200 if method in allowed else 403), method
        if method not in allowed:
            needed = "write" if method == "POST" else "admin"
            assert reply.json()["error"]["code"] == "insufficient_role"
            assert f"role {needed}" in reply.json()["detail"]


async def test_only_what_is_below_v1_needs_a_key_and_no_part_of_one_opens() -> None:
    for path, status in {"/": 200, "/healthz": 200, "/v1": 401, "/v1/files": 401}.items():
        assert (await at_the_door(None, path=path)).status_code == status
    for given in ("read-ke", "read-keys", KEYS[0], KEYS[0][-64:], "é"):
        assert (await at_the_door(given)).status_code == 401, given
    assert (await at_the_door("read-key ")).status_code == 200  # blanks are no part of a key


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/rollout/s-1/v1/completions", 200),
        ("DELETE", "/rollout/s-1/v1/completions", 403),
        ("GET", "/rollout/s-1/", 401),
        ("GET", "/rollout/s-1", 401),
        ("GET", "/rollout/s-2/v1/models", 401),
        ("GET", "/v1/rollout/s-1/v1/models", 401),
    ],
)
async def test_a_sessions_key_opens_its_calls_alone(method: str, path: str, status: int) -> None:
    reader, _, admin = parse_keys(KEYS)
    assert (await at_the_door(session_key(admin, "s-1"), method, path)).status_code == status
    assert (await at_the_door(session_key(reader, "s-1"), method, path)).status_code == 401


# ---------------------------------------------------------------------- bodies


async def echoed(path: str, *pieces: bytes, coding: str = "identity") -> httpx.Response:
    """What comes through of a body."""

    async def echo(request: Request) -> Response:
        return Response(await request.body())

    async def body() -> AsyncIterator[bytes]:
        for each in pieces:
            yield each

    app = Starlette(routes=[Route(path, echo, methods=["POST"])])
    app.add_exception_handler(Problem, lambda _, problem: respond(problem))  # type: ignore[arg-type]
    bounded = Bounded(app, max_file_bytes=2**21)
    return await asked(bounded, path, "POST", content=body(), headers={"Content-Encoding": coding})


@pytest.mark.parametrize(
    ("path", "limit", "param"),
    [("/v1/any", MAX_JSON_BYTES, "body"), ("/v1/files", 2**21 + 2**16, "file")],
)
async def test_a_body_that_is_too_large_is_a_413_and_not_read_to_its_end(
    path: str, limit: int, param: str
) -> None:
    assert len((await echoed(path, b"x" * (limit - 1), b"x")).content) == limit
    reply = await echoed(path, b"x" * limit, b"x")
    assert (reply.status_code, reply.json()["error"]["param"]) == (413, param)


async def test_a_compressed_body_is_a_415() -> None:
    assert (await echoed("/v1/any", b"x", coding="gzip")).status_code == 415
