"""Middleware: request ids and the access log, API keys, limits of bodies."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from prometheus_client import Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.chassis.deployment import DeploymentError
from services.chassis.logs import REQUEST_ID
from services.chassis.security import ACCESS, ENVIRONMENT, SESSION, SESSION_NAME
from services.gateway.errors import Problem, internal_problem, respond, too_large

log = logging.getLogger(__name__)
REQUESTS = Counter("weir_requests_total", "Responses", ["method", "route", "status"])
SECONDS = Histogram(
    "weir_request_seconds",
    "Time until the response began",
    ["method", "route"],
    buckets=(0.005, 0.02, 0.1, 0.5, 1, 2, 5, 30),
)
MAX_PATH_CHARS = 256  # in the log
MAX_JSON_BYTES = 2**20
MAX_FORM_BYTES = 2**16  # of a form without its file
_MAX_BODY_BYTES = {"/api/v1/forward_backward": 2**26, "/api/v1/asample": 2**21}
# A body must bring this many bytes within this time of waiting for it, ...
PROGRESS_BYTES = 2**16
PROGRESS_TIMEOUT_S = 30.0
# ... and end within this one.
BODY_TIMEOUT_S = 3600.0
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_KEY_ENTRY = re.compile(r"([\w.@-]{1,64}):(read|write|admin):sha256:([0-9a-fA-F]{64})")
_GUARDED = ("/v1", "/inference", "/rollout", "/api/v1/")
_PUBLIC = "/api/v1/healthz"
_TINKER_PREFIX = b"tml-"  # Tinker's SDK requires it of every key
_SESSION_PATH = re.compile(f"/rollout/({SESSION_NAME})/.")

# ---------------------------------------------------------------------- the log


@dataclass
class _Response:
    request_id: str
    started_at: float
    status: int = 0  # until it begins
    bytes: int = 0


@dataclass(frozen=True)
class RequestLog:
    """Names, counts, times and logs every request; responds with 500 to unexpected errors."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        response = _Response(_request_id(scope), time.perf_counter())

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                _begin(response, scope, message)
            response.bytes += len(message.get("body", b""))
            await send(message)

        token = REQUEST_ID.set(response.request_id)
        try:
            await self.app(scope, receive, send_measured)
        except ClientDisconnect:
            pass
        except Exception as error:
            log.exception("the gateway failed")
            if response.status:
                raise  # the response has begun, so the connection has to end
            await respond(internal_problem(error))(scope, receive, send_measured)
        finally:
            _log(response, scope)
            REQUEST_ID.reset(token)


def _request_id(scope: Scope) -> str:
    header = Headers(scope=scope).get("x-request-id", "")
    return header if _REQUEST_ID.fullmatch(header) else f"req_{uuid.uuid4().hex}"


def _begin(response: _Response, scope: Scope, message: Message) -> None:
    response.status = message["status"]
    MutableHeaders(scope=message)["X-Request-Id"] = response.request_id
    # Clients may invent methods, and each would become a time series.
    method = scope["method"] if scope["method"] in _METHODS else "other"
    REQUESTS.labels(method, _route(scope), response.status).inc()
    SECONDS.labels(method, _route(scope)).observe(time.perf_counter() - response.started_at)


def _log(response: _Response, scope: Scope) -> None:
    log.info(
        "request",
        extra={
            "method": scope["method"],
            "path": scope["path"][:MAX_PATH_CHARS],
            "route": _route(scope),
            "status": response.status or None,
            "seconds": round(time.perf_counter() - response.started_at, 4),
            "bytes": response.bytes,
            "key": getattr(scope.get("key"), "name", None),
            "address": _address(scope),
        },
    )


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "none")


# ---------------------------------------------------------------------- keys


@dataclass(frozen=True)
class ApiKey:
    """A key of the deployment, as its SHA-256."""

    name: str
    role: str
    digest: str


def parse_keys(entries: Iterable[str]) -> tuple[ApiKey, ...]:
    """Parse WEIR_API_KEYS: each entry is ``NAME:ROLE:sha256:HEX``, or a plain key of an admin.

    Raises:
        DeploymentError: naming the place of an invalid entry, or a name that two keys have.
    """
    keys = tuple(_parse_key(number, entry) for number, entry in enumerate(entries, start=1))
    names = [key.name for key in keys]
    for name in names:
        if names.count(name) > 1:
            raise DeploymentError(
                f"WEIR_API_KEYS: several keys have the name {name!r}; rename all but one"
            )
    return keys


def _parse_key(number: int, entry: str) -> ApiKey:
    if ":" not in entry:
        return ApiKey(f"key-{number}", "admin", _digest(entry.encode()))
    match = _KEY_ENTRY.fullmatch(entry)
    if match is None:
        raise DeploymentError(
            f"WEIR_API_KEYS: entry {number} must be NAME:ROLE:sha256:HEX, with the role read, "
            "write or admin and the 64 hex digits of the key's SHA-256, or a plain key without a "
            "colon; write a key with a colon as NAME:admin:sha256:HEX"
        )
    return ApiKey(match[1], match[2], match[3].lower())


def add_environment_key(keys: tuple[ApiKey, ...], key: str) -> tuple[ApiKey, ...]:
    """Add the key of the environment workers, if there is one.

    Raises:
        DeploymentError: if it equals another key, and so has two roles.
    """
    digest = _digest(key.encode())
    if _find_key(keys, digest) is not None:
        raise DeploymentError(
            "WEIR_ENVIRONMENT_KEY is also in WEIR_API_KEYS; set it to another value"
        )
    return (*keys, ApiKey("weir:environment", ENVIRONMENT, digest)) if key else keys


def _find_key(keys: Iterable[ApiKey], digest: str) -> ApiKey | None:
    return next((key for key in keys if hmac.compare_digest(key.digest, digest)), None)


@dataclass(frozen=True)
class Authentication:
    """Lets requests below `_GUARDED` pass with a key whose role allows them."""

    app: ASGIApp
    keys: tuple[ApiKey, ...]
    has_session_key: Callable[[str, str], Awaitable[bool]]  # takes a session and a key's digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_guarded = scope["type"] == "http" and scope["path"].startswith(_GUARDED)
        if is_guarded and scope["path"] != _PUBLIC:
            try:
                await self._authenticate(scope)
            except Problem as problem:
                return await respond(problem)(scope, receive, send)
        await self.app(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> None:
        """Store the key in the scope; 401 or 403 if the request may not pass."""
        sent = _read_key(scope)
        if sent is None:
            raise _unauthorized("no API key: send 'Authorization: Bearer KEY'")
        key = _find_key(self.keys, _digest(sent))
        key = key or _find_key(self.keys, _digest(sent.removeprefix(_TINKER_PREFIX)))
        if key is None:
            key = await self._find_session_key(sent, scope)
        scope["key"] = key
        check_role(key.role, scope["method"], scope["path"])

    async def _find_session_key(self, sent: bytes, scope: Scope) -> ApiKey:
        """Return the key of the path's session; 401 if it has another key."""
        match = _SESSION_PATH.match(scope["path"])
        digest = _digest(sent)
        if match and await self.has_session_key(match[1], digest):
            return ApiKey(f"session:{match[1]}", SESSION, digest)
        log.warning("a wrong API key", extra={"address": _address(scope)})
        raise _unauthorized("wrong API key: neither WEIR_API_KEYS nor an open session has it")


def check_role(role: str, method: str, path: str) -> None:
    """Raise 403 unless the path's row of `ACCESS` has this role."""
    row = next(
        row
        for row in ACCESS
        if method in (row.methods.split() or [method]) and re.fullmatch(row.paths, path, re.DOTALL)
    )
    if role not in row.roles:
        roles = " or ".join(row.roles)
        message = f"{method} {path[:MAX_PATH_CHARS]} needs a key with the role {roles}, got {role}"
        raise Problem(403, message, param="Authorization", code="insufficient_role")


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _read_key(scope: Scope) -> bytes | None:
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = headers.get("x-api-key", "") if scope["path"].startswith("/api/") else ""
    return key.strip().encode("latin-1") or None


def _address(scope: Scope) -> str | None:
    return (scope.get("client") or (None,))[0]


def _unauthorized(message: str) -> Problem:
    headers = {"WWW-Authenticate": "Bearer"}
    return Problem(401, message, param="Authorization", code="invalid_api_key", headers=headers)


# ---------------------------------------------------------------------- bodies


@dataclass(frozen=True)
class BodyLimit:
    """Stops reading a body that is too large or too slow, and reads no compressed body."""

    app: ASGIApp
    max_file_bytes: int
    progress_timeout_s: float = PROGRESS_TIMEOUT_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        encoding = Headers(scope=scope).get("content-encoding") or "identity"
        if encoding.lower() != "identity":
            message = f"Content-Encoding: must be identity, got {encoding}; send it uncompressed"
            problem = Problem(415, message, param="Content-Encoding", code="unsupported_encoding")
            return await respond(problem)(scope, receive, send)
        await self.app(scope, self._limit(scope["path"], receive), send)

    def _limit(self, path: str, receive: Receive) -> Receive:
        param = "body"
        max_bytes = _MAX_BODY_BYTES.get(path, MAX_JSON_BYTES)
        form_bytes = 0
        if path == "/v1/files":
            param = "file"
            max_bytes = self.max_file_bytes
            form_bytes = MAX_FORM_BYTES
        return _BodyReader(receive, self.progress_timeout_s, param, max_bytes, form_bytes).read


@dataclass
class _BodyReader:
    receive: Receive
    progress_timeout_s: float
    param: str
    max_bytes: int
    form_bytes: int
    num_bytes: int = 0
    window_start: int = 0  # the number of bytes at the start of the current window
    window_waited_s: float = 0.0
    waited_s: float = 0.0
    has_more: bool = True

    async def read(self) -> Message:
        if not self.has_more:
            return await self.receive()  # waits until the client disconnects
        started_at = time.monotonic()
        window_s = self.progress_timeout_s - self.window_waited_s
        try:
            async with asyncio.timeout(min(window_s, BODY_TIMEOUT_S - self.waited_s)):
                message = await self.receive()
        except TimeoutError as error:
            raise Problem(
                408,
                f"the body brought less than {PROGRESS_BYTES >> 10} KiB in "
                f"{self.progress_timeout_s:g} s, or did not end in {BODY_TIMEOUT_S:g} s; retry the "
                "request",
                code="timeout",
            ) from error
        elapsed_s = time.monotonic() - started_at
        self.window_waited_s += elapsed_s
        self.waited_s += elapsed_s
        self.has_more = message.get("more_body", False)
        self.num_bytes += len(message.get("body", b""))
        if self.num_bytes - self.window_start >= PROGRESS_BYTES:
            self.window_start = self.num_bytes
            self.window_waited_s = 0.0
        if self.num_bytes > self.max_bytes + self.form_bytes:
            raise too_large(self.param, self.max_bytes)
        return message
