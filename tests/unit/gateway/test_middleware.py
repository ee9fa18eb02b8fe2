"""What every request passes: the log, and failures that nobody expected; keys; limits of bodies."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
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
from services.gateway.api import middleware
from services.gateway.api.middleware import (
    MAX_JSON_BYTES,
    Bounded,
    Guarded,
    Measured,
    parse_keys,
    with_environment_key,
)
from services.gateway.errors import Problem, respond

pytestmark = pytest.mark.anyio


@pytest.fixture
def lines() -> Iterator[Any]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("gateway"))
    logger = logging.getLogger("services.gateway.api.middleware")
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
        (OSError(errno.EROFS, "Read-only file system", "/secret/path"), 507, "disk_broken"),
        (OSError(errno.EIO, "Input/output error", "/secret/path"), 507, "disk_broken"),
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
    keys = with_environment_key(parse_keys(KEYS), "environment-key")
    digest = hashlib.sha256(b"key of s-1").hexdigest()

    async def has_session_key(*sent: str) -> bool:
        return sent == ("s-1", digest)

    guarded = Guarded(PlainTextResponse("in"), keys, has_session_key)
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
        ("POST", "/rollout/s-1", 401),
        ("POST", "/rollout/s-1%00/v1/completions", 401),
        ("POST", "/v1/rollout/s-1/v1/completions", 401),
    ],
)
async def test_a_sessions_key_makes_its_calls_alone(method: str, path: str, status: int) -> None:
    assert (await at_the_door("key of s-1", method, path)).status_code == status


async def test_no_key_is_made_from_what_the_deployment_keeps() -> None:
    for entry in KEYS:
        digest = entry.rpartition(":")[2].encode()
        forged = hmac.new(digest, b"s-1", hashlib.sha256).hexdigest()
        path = "/rollout/s-1/v1/completions"
        assert (await at_the_door(forged, "POST", path)).status_code == 401


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/rollout/s-1", {"PUT", "GET", "DELETE"}),
        ("/rollout/s-1/", set[str]()),
        ("/rollout/s-1/v1/completions", set[str]()),
        ("/rollout/", set[str]()),
    ],
)
async def test_an_environments_key_is_for_sessions_alone(path: str, allowed: set[str]) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "MADE-UP"):
        reply = await at_the_door("environment-key", method, path)
        assert reply.status_code == (200 if method in allowed else 403), method
        if method not in {*allowed, "HEAD"}:
            assert reply.json()["error"]["code"] == "insufficient_role"
            assert "this one has environment" in reply.json()["detail"]


def test_an_environments_key_is_no_other_key() -> None:
    with pytest.raises(DeploymentError, match="WEIR_ENVIRONMENT_KEY"):
        with_environment_key(parse_keys(KEYS), "admin-key")
    assert with_environment_key(parse_keys(KEYS), "") == parse_keys(KEYS)


# ---------------------------------------------------------------------- bodies


async def sent_to_an_echo(
    path: str, body: AsyncIterator[bytes], coding: str = "identity"
) -> httpx.Response:
    """What comes through of a body."""

    async def echo(request: Request) -> Response:
        return Response(await request.body())

    app = Starlette(routes=[Route(path, echo, methods=["POST"])])
    app.add_exception_handler(Problem, lambda _, problem: respond(problem))  # type: ignore[arg-type]
    bounded = Bounded(app, max_file_bytes=2**21)
    return await asked(bounded, path, "POST", content=body, headers={"Content-Encoding": coding})


async def echoed(path: str, *pieces: bytes, coding: str = "identity") -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        for each in pieces:
            yield each

    return await sent_to_an_echo(path, body(), coding)


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


async def test_a_body_that_hardly_comes_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "_WINDOW_S", 0.2)

    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.001)

    reply = await sent_to_an_echo("/v1/any", drip())
    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "timeout")


async def test_a_body_has_its_time_anew_for_each_part_that_is_large_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of this test goes on with each part alone."""
    now = [0.0]
    monkeypatch.setattr(middleware, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def parts(size: int, gap_s: float = 20.0) -> AsyncIterator[bytes]:
        for _ in range(5):
            now[0] += gap_s
            await asyncio.sleep(0)  # where a wait of no time ends
            yield b"x" * size

    assert (await sent_to_an_echo("/v1/any", parts(2**16))).status_code == 200
    assert (await sent_to_an_echo("/v1/any", parts(2**14))).status_code == 408
    assert (await sent_to_an_echo("/v1/any", parts(2**16, 1000.0))).status_code == 408
