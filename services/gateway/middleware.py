"""Middleware: request ids and the access log, API keys, limits of bodies."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.chassis.deployment import DeploymentError
from services.chassis.logs import REQUEST_ID
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
ROLES = ("read", "write", "admin")  # each may also do what those before it may
_ENTRY = re.compile(r"([\w.@-]{1,64}):(read|write|admin):sha256:([0-9a-fA-F]{64})")
_ROLE_FOR = {"GET": "read", "HEAD": "read", "OPTIONS": "read", "POST": "write"}
_GUARDED = ("/v1", "/inference", "/rollout", "/api/v1/")
_PUBLIC = "/api/v1/healthz"
_READS = {f"/api/v1/{name}" for name in ("client/config", "client/dynamic_config", "weights_info")}
_PREFIX = b"tml-"  # which the SDK of Tinker wants every key to have
_BELOW_SESSION = re.compile("/rollout/([^/]+)/.")
MAX_JSON_BYTES = 2**20
_MAX_BYTES = {"/api/v1/forward_backward": 2**26, "/api/v1/asample": 2**21}
_SILENCE_S = 30.0  # of a client in the middle of its body
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


@dataclass(frozen=True)
class Guarded:
    """Lets requests below `_GUARDED` pass with a key whose role allows them."""

    app: ASGIApp
    keys: tuple[ApiKey, ...]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_guarded = scope["type"] == "http" and scope["path"].startswith(_GUARDED)
        if is_guarded and scope["path"] != _PUBLIC:
            try:
                self._admit(scope)
            except Problem as problem:
                return await respond(problem)(scope, receive, send)
        await self.app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        """Note the key in the scope; 401 or 403 if the request may not pass."""
        presented = _presented(scope)
        if presented is None:
            raise _unauthorized("no API key: send 'Authorization: Bearer KEY'")
        path = scope["path"]
        key = self._found(presented, path) or self._found(presented.removeprefix(_PREFIX), path)
        if key is None:
            log.warning("a wrong API key", extra={"address": _address(scope)})
            raise _unauthorized("wrong API key: it is not in WEIR_API_KEYS")
        scope["key"] = key
        role = _ROLE_FOR.get(scope["method"], "admin") if path not in _READS else "read"
        if ROLES.index(key.role) < ROLES.index(role):
            message = f"{scope['method']} needs a key with the role {role}; this one has {key.role}"
            raise Problem(403, message, param="Authorization", code="insufficient_role")

    def _found(self, presented: bytes, path: str) -> ApiKey | None:
        digest, session = _digest(presented), _BELOW_SESSION.match(path)
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                return key
            own = session_key(key, session[1]).encode() if session else b""
            if key.role == "admin" and hmac.compare_digest(own, presented):
                return ApiKey(f"{key.name}:session", "write", digest)
        return None


def session_key(key: ApiKey, session: str) -> str:
    """The key of a session that an admin's key opens: it passes below the session's path alone."""
    return hmac.new(key.digest.encode(), session.encode(), hashlib.sha256).hexdigest()


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

        async def receive_some() -> Message:
            nonlocal read, has_more
            if not has_more:
                return await receive()  # which waits for the client to leave
            try:
                async with asyncio.timeout(_SILENCE_S):
                    message = await receive()
            except TimeoutError as error:
                problem = f"nothing of the body came for {_SILENCE_S:g} s; send the request again"
                raise Problem(408, problem, code="timeout") from error
            has_more = message.get("more_body", False)
            read += len(message.get("body", b""))
            if read > limit + beside:
                raise too_large(param, limit)
            return message

        return receive_some
