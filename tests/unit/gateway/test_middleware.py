"""The middleware: the log, unexpected errors, keys, and limits of bodies."""

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
    MAX_FORM_BYTES,
    MAX_JSON_BYTES,
    PROGRESS_TIMEOUT_S,
    Authentication,
    BodyLimit,
    RequestLog,
    add_environment_key,
    parse_keys,
)
from services.gateway.errors import Problem, respond
from tests.tables import table

pytestmark = pytest.mark.anyio
METHODS = ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "MADE-UP")
MAX_FILE_BYTES = 2**21


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


async def request(app: Any, url: str = "/", method: str = "GET", **options: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
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
async def test_an_unexpected_error_is_only_in_the_log_where_the_request_id_finds_it(
    lines: Any, error: Exception, status: int, code: str
) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    reply = await request(RequestLog(broken), headers={"X-Request-Id": "mine"})
    assert reply.status_code == status
    assert reply.headers["X-Request-Id"] == "mine"
    assert reply.json()["error"]["code"] == code
    assert "/secret/path" not in reply.text
    failure, summary = lines()
    assert failure["request_id"] == summary["request_id"] == "mine"
    assert "/secret/path" in failure["traceback"]
    assert summary["status"] == status
    assert REQUEST_ID.get() is None


async def test_a_client_that_disconnects_is_no_failure(lines: Any) -> None:
    async def disconnect(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    async def never(*_: Any) -> Any:
        raise AssertionError

    scope = {"type": "http", "method": "POST", "path": "/" + "x" * 9999, "headers": []}
    await RequestLog(disconnect)(scope, never, never)
    (line,) = lines()
    assert line["message"] == "request"
    assert line["status"] is None
    assert len(line["path"]) == 256


# ---------------------------------------------------------------------- keys


def key_entry(name: str, role: str, key: str) -> str:
    return f"{name}:{role}:sha256:{hashlib.sha256(key.encode()).hexdigest()}"


KEYS = [key_entry(f"{role}er", role, f"{role}-key") for role in ("read", "write", "admin")]


async def request_status(key: str | None, method: str = "GET", path: str = "/v1") -> int:
    """Return the status of a request to an application that itself refuses none."""
    headers = {b"Authorization": f"Bearer {key}".encode()} if key else {}
    keys = add_environment_key(parse_keys(KEYS), "environment-key")
    digest = hashlib.sha256(b"key of s-1").hexdigest()

    async def has_session_key(*sent: str) -> bool:
        return sent == ("s-1", digest)

    app = Authentication(PlainTextResponse("in"), keys, has_session_key)
    reply = await request(app, path, method, headers=headers)
    if reply.status_code == 403 and method != "HEAD":
        assert reply.json()["error"]["code"] == "insufficient_role"
    return reply.status_code


def test_an_entry_is_a_hash_with_a_name_and_a_role_or_a_plain_key_of_an_admin() -> None:
    hashed, plain = parse_keys([key_entry("alice@here", "read", "secret"), "plain-key"])
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
def test_an_invalid_entry_is_refused_by_its_number_and_not_shown(entry: str) -> None:
    with pytest.raises(DeploymentError, match="entry 2") as caught:
        parse_keys(["plain", entry])
    assert entry not in str(caught.value)
    assert "secret" not in str(caught.value)


@table("""
    key             | path                        | allowed
    read-key        | /v1                         | GET HEAD
    write-key       | /v1                         | GET HEAD POST
    admin-key       | /v1                         | GET HEAD POST DELETE PUT PATCH MADE-UP
    environment-key | /rollout/s-1                | PUT GET DELETE
    environment-key | /rollout/s-1/               |
    environment-key | /rollout/s-1/v1/completions |
    environment-key | /rollout/                   |
""")
async def test_a_role_may_use_its_methods(key: str, path: str, allowed: str) -> None:
    for method in METHODS:
        status = 200 if method in allowed.split() else 403
        assert await request_status(key, method, path) == status, method


async def test_only_paths_below_v1_need_a_key_and_no_part_of_a_key_suffices() -> None:
    for path, status in {"/": 200, "/healthz": 200, "/v1": 401, "/v1/files": 401}.items():
        assert await request_status(None, path=path) == status
    for key in ("read-ke", "read-keys", KEYS[0], KEYS[0][-64:], "é"):
        assert await request_status(key) == 401, key
    assert await request_status("read-key ") == 200


@table("""
    method | path                           | status
    POST   | /rollout/s-1/v1/completions    | 200
    DELETE | /rollout/s-1/v1/completions    | 403
    GET    | /rollout/s-1/                  | 401
    POST   | /rollout/s-1                   | 401
    POST   | /rollout/s-1%00/v1/completions | 401
    POST   | /v1/rollout/s-1/v1/completions | 401
""")
async def test_the_key_of_a_session_only_makes_its_calls(
    method: str, path: str, status: int
) -> None:
    assert await request_status("key of s-1", method, path) == status


async def test_the_stored_digest_of_a_key_makes_no_session_key() -> None:
    for entry in KEYS:
        digest = entry.rpartition(":")[2].encode()
        forged = hmac.new(digest, b"s-1", hashlib.sha256).hexdigest()
        assert await request_status(forged, "POST", "/rollout/s-1/v1/completions") == 401


def test_the_key_of_environments_must_differ_from_the_others() -> None:
    with pytest.raises(DeploymentError, match="WEIR_ENVIRONMENT_KEY"):
        add_environment_key(parse_keys(KEYS), "admin-key")
    assert add_environment_key(parse_keys(KEYS), "") == parse_keys(KEYS)


# ---------------------------------------------------------------------- bodies


async def echo(
    body: AsyncIterator[bytes],
    path: str = "/v1/any",
    encoding: str = "identity",
    progress_timeout_s: float = PROGRESS_TIMEOUT_S,
) -> httpx.Response:
    """Return a response with the part of the body that passes."""

    async def respond_body(request: Request) -> Response:
        return Response(await request.body())

    app = Starlette(routes=[Route(path, respond_body, methods=["POST"])])
    app.add_exception_handler(Problem, lambda _, problem: respond(problem))  # type: ignore[arg-type]
    limited = BodyLimit(app, MAX_FILE_BYTES, progress_timeout_s)
    headers = {"Content-Encoding": encoding}
    return await request(limited, path, "POST", content=body, headers=headers)


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.mark.parametrize(
    ("path", "limit", "param"),
    [("/v1/any", MAX_JSON_BYTES, "body"), ("/v1/files", MAX_FILE_BYTES + MAX_FORM_BYTES, "file")],
)
async def test_a_large_body_is_a_413_and_not_read_to_its_end(
    path: str, limit: int, param: str
) -> None:
    assert len((await echo(stream(b"x" * (limit - 1), b"x"), path)).content) == limit
    reply = await echo(stream(b"x" * limit, b"x"), path)
    assert reply.status_code == 413
    assert reply.json()["error"]["param"] == param


async def test_a_compressed_body_is_a_415() -> None:
    assert (await echo(stream(b"x"), encoding="gzip")).status_code == 415


async def test_a_slow_body_is_a_408() -> None:
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.001)

    reply = await echo(drip(), progress_timeout_s=0.2)
    assert reply.status_code == 408
    assert reply.json()["error"]["code"] == "timeout"


async def test_a_body_gets_more_time_for_each_large_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this test only advances with each part."""
    now = [0.0]
    monkeypatch.setattr(middleware, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def parts(size: int, gap_s: float = 20.0) -> AsyncIterator[bytes]:
        for _ in range(5):
            now[0] += gap_s
            await asyncio.sleep(0)  # lets a timeout of 0 s end
            yield b"x" * size

    assert (await echo(parts(2**16))).is_success
    assert (await echo(parts(2**14))).status_code == 408
    assert (await echo(parts(2**16, 1000.0))).status_code == 408
