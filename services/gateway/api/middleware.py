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
from services.gateway.errors import Problem, own_fault, respond, too_large

log = logging.getLogger(__name__)
REQUESTS = Counter("weir_requests_total", "Requests answered", ["method", "route", "status"])
SECONDS = Histogram(
    "weir_request_seconds",
    "Time until the answer began",
    ["method", "route"],
    buckets=(0.005, 0.02, 0.1, 0.5, 1, 2, 5, 30),
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MAX_PATH_CHARS = 256
_SANE_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_ENTRY = re.compile(r"([\w.@-]{1,64}):(read|write|admin):sha256:([0-9a-fA-F]{64})")
_GUARDED = ("/v1", "/inference", "/rollout", "/api/v1/")
_PUBLIC = "/api/v1/healthz"
_PREFIX = b"tml-"  # which the SDK of Tinker wants every key to have
_BELOW_SESSION = re.compile(f"/rollout/({SESSION_NAME})/.")
MAX_JSON_BYTES = 2**20
_MAX_BYTES = {"/api/v1/forward_backward": 2**26, "/api/v1/asample": 2**21}
_WINDOW_S, _WINDOW_BYTES = 30.0, 2**16  # a body brings so much within so much waiting for it
_BODY_S = 3600.0  # and all of it within this
_FORM_BYTES = 2**16  # of a form, beside its file

# ---------------------------------------------------------------------- the log


@dataclass
class _Answer:
    request_id: str
    began: float
    status: int = 0  # none was begun
    bytes: int = 0


@dataclass(frozen=True)
class Measured:
    """Names, counts, times and logs every request; what fails in it is answered with 500."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        answer = _Answer(_request_id(scope), time.perf_counter())

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                _begin(answer, scope, message)
            answer.bytes += len(message.get("body", b""))
            await send(message)

        token = REQUEST_ID.set(answer.request_id)
        try:
            await self.app(scope, receive, send_measured)
        except ClientDisconnect:
            pass  # nobody is there to be answered
        except Exception as error:
            log.exception("the gateway failed")
            if answer.status:
                raise  # half an answer is there: the connection ends with it
            await respond(own_fault(error))(scope, receive, send_measured)
        finally:
            _log(answer, scope)
            REQUEST_ID.reset(token)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def _begin(answer: _Answer, scope: Scope, message: Message) -> None:
    answer.status = message["status"]
    MutableHeaders(scope=message)["X-Request-Id"] = answer.request_id
    # Anyone may make up methods, and each would be a series for ever.
    method = scope["method"] if scope["method"] in _METHODS else "other"
    REQUESTS.labels(method, _route(scope), answer.status).inc()
    SECONDS.labels(method, _route(scope)).observe(time.perf_counter() - answer.began)


def _log(answer: _Answer, scope: Scope) -> None:
    log.info(
        "request",
        extra={
            "method": scope["method"],
            "path": scope["path"][:_MAX_PATH_CHARS],
            "route": _route(scope),
            "status": answer.status or None,
            "seconds": round(time.perf_counter() - answer.began, 4),
            "bytes": answer.bytes,
            "key": getattr(scope.get("key"), "name", None),
            "address": _address(scope),
        },
    )


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "none")


# ---------------------------------------------------------------------- keys


@dataclass(frozen=True)
class ApiKey:
    """A key of the deployment; of the key itself only its SHA-256 is kept."""

    name: str
    role: str
    digest: str


def parse_keys(entries: Iterable[str]) -> tuple[ApiKey, ...]:
    """The keys that WEIR_API_KEYS lists: ``NAME:ROLE:sha256:HEX``, or a plain key of an admin.

    Raises:
        DeploymentError: naming the place of an entry that is neither, or a name that two have.
    """
    keys = tuple(_parse(number, entry) for number, entry in enumerate(entries, start=1))
    names = [key.name for key in keys]
    for name in names:
        if names.count(name) > 1:
            raise DeploymentError(
                f"WEIR_API_KEYS: several keys have the name {name!r}; give each a name of its own"
            )
    return keys


def _parse(number: int, entry: str) -> ApiKey:
    if ":" not in entry:
        return ApiKey(f"key-{number}", "admin", _digest(entry.encode()))
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise DeploymentError(
            f"WEIR_API_KEYS: entry {number} is not NAME:ROLE:sha256:HEX, with the role read, write "
            "or admin and the 64 hex digits of the key's SHA-256; a plain key has no colon: write "
            "one that has as NAME:admin:sha256:HEX, or choose one without"
        )
    return ApiKey(match[1], match[2], match[3].lower())


def with_environment_key(keys: tuple[ApiKey, ...], key: str) -> tuple[ApiKey, ...]:
    """The keys, and that of the environment workers if there is one.

    Raises:
        DeploymentError: if it is one of the others, and so has two roles.
    """
    digest = _digest(key.encode())
    if any(hmac.compare_digest(each.digest, digest) for each in keys):
        raise DeploymentError(
            "WEIR_ENVIRONMENT_KEY is one of WEIR_API_KEYS, too; give it a value of its own"
        )
    return (*keys, ApiKey("weir:environment", ENVIRONMENT, digest)) if key else keys


@dataclass(frozen=True)
class Guarded:
    """Lets requests below `_GUARDED` pass with a key whose role allows them."""

    app: ASGIApp
    keys: tuple[ApiKey, ...]
    has_session_key: Callable[[str, str], Awaitable[bool]]  # a session, and a key's digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_guarded = scope["type"] == "http" and scope["path"].startswith(_GUARDED)
        if is_guarded and scope["path"] != _PUBLIC:
            try:
                await self._admit(scope)
            except Problem as problem:
                return await respond(problem)(scope, receive, send)
        await self.app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        """Note the key in the scope; 401 or 403 if the request may not pass."""
        presented = _presented(scope)
        if presented is None:
            raise _unauthorized("no API key: send 'Authorization: Bearer KEY'")
        candidates = (presented, presented.removeprefix(_PREFIX))
        key = next(filter(None, map(self._find, candidates)), None)
        if key is None:
            key = await self._session_key(presented, scope)
        scope["key"] = key
        refuse_role(key.role, scope["method"], scope["path"])

    def _find(self, presented: bytes) -> ApiKey | None:
        digest = _digest(presented)
        return next((each for each in self.keys if hmac.compare_digest(each.digest, digest)), None)

    async def _session_key(self, presented: bytes, scope: Scope) -> ApiKey:
        """The key of the session that the path is below; 401 if it is another's or none."""
        session, digest = _BELOW_SESSION.match(scope["path"]), _digest(presented)
        if session and await self.has_session_key(session[1], digest):
            return ApiKey(f"session:{session[1]}", SESSION, digest)
        log.warning("a wrong API key", extra={"address": _address(scope)})
        raise _unauthorized("wrong API key: it is not in WEIR_API_KEYS, nor of an open session")


def refuse_role(role: str, method: str, path: str) -> None:
    """403 if no row of `ACCESS` lets this role pass."""
    row = next(
        row
        for row in ACCESS
        if method in (row.methods.split() or [method]) and re.fullmatch(row.paths, path, re.DOTALL)
    )
    if role not in row.roles:
        needed = " or ".join(row.roles)
        message = f"{method} {path[:_MAX_PATH_CHARS]} needs a key with the role {needed}; "
        message += f"this one has {role}"
        raise Problem(403, message, param="Authorization", code="insufficient_role")


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _presented(scope: Scope) -> bytes | None:
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
class Bounded:
    """Stops reading a body that is too large, and reads none that is compressed."""

    app: ASGIApp
    max_file_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        coding = Headers(scope=scope).get("content-encoding") or "identity"
        if coding.lower() != "identity":
            message = f"Content-Encoding: bodies in {coding} are not read; send it uncompressed"
            problem = Problem(415, message, param="Content-Encoding", code="unsupported_encoding")
            return await respond(problem)(scope, receive, send)
        await self.app(scope, self._limited(scope["path"], receive), send)

    def _limited(self, path: str, receive: Receive) -> Receive:
        param, limit, beside = "body", _MAX_BYTES.get(path, MAX_JSON_BYTES), 0
        if path == "/v1/files":
            param, limit, beside = "file", self.max_file_bytes, _FORM_BYTES
        read, has_more = 0, True
        mark, left_s, all_left_s = 0, _WINDOW_S, _BODY_S

        async def receive_some() -> Message:
            nonlocal read, has_more, mark, left_s, all_left_s
            if not has_more:
                return await receive()  # which waits for the client to leave
            began = time.monotonic()
            try:
                async with asyncio.timeout(min(left_s, all_left_s)):
                    message = await receive()
            except TimeoutError as error:
                problem = (
                    f"under {_WINDOW_BYTES >> 10} KiB of the body came in {_WINDOW_S:g} s, or "
                )
                problem += f"not all of it in {_BODY_S:g} s; send the request again"
                raise Problem(408, problem, code="timeout") from error
            waited_s = time.monotonic() - began
            left_s, all_left_s = left_s - waited_s, all_left_s - waited_s
            has_more = message.get("more_body", False)
            read += len(message.get("body", b""))
            if read - mark >= _WINDOW_BYTES:
                mark, left_s = read, _WINDOW_S
            if read > limit + beside:
                raise too_large(param, limit)
            return message

        return receive_some
