"""What every request passes on its way in: a clock, a check of its key, a bound on its size."""

from __future__ import annotations

import hmac
import re
import time
from dataclasses import dataclass

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.errors import Problem, respond
from services.gateway.files.shelf import too_large

REQUESTS = Counter("weir_requests_total", "Requests answered", ["method", "route", "status"])
SECONDS = Histogram(
    "weir_request_seconds",
    "Time until the answer began",
    ["method", "route"],
    buckets=(0.005, 0.02, 0.1, 0.5, 1, 2, 5, 30),
)
_MAX_JSON_BYTES = 2**20
_MULTIPART_HEAD_BYTES = 2**16
_PART = re.compile(r"/v1/uploads/[^/]+/parts")


@dataclass(frozen=True)
class Measured:
    """Counts and times every answer, by route."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        began = time.perf_counter()

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                REQUESTS.labels(scope["method"], route, message["status"]).inc()
                SECONDS.labels(scope["method"], route).observe(time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, send_measured)


@dataclass(frozen=True)
class Guarded:
    """Lets requests below /v1 pass only with one of the keys."""

    app: ASGIApp
    keys: tuple[str, ...]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer 401."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1"):
            await self.app(scope, receive, send)
        elif (key := _bearer(scope)) is None:
            await _refused("no API key: send 'Authorization: Bearer KEY'")(scope, receive, send)
        elif not any(hmac.compare_digest(key, known.encode()) for known in self.keys):
            await _refused("wrong API key: it is not in WEIR_API_KEYS")(scope, receive, send)
        else:
            await self.app(scope, receive, send)


@dataclass(frozen=True)
class Bounded:
    """Stops reading a request's body when it grows beyond what its path takes."""

    app: ASGIApp
    max_file_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        is_upload = scope["path"] == "/v1/files" or _PART.fullmatch(scope["path"]) is not None
        limit = self.max_file_bytes + _MULTIPART_HEAD_BYTES if is_upload else _MAX_JSON_BYTES
        read = 0

        async def receive_bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit and is_upload:
                raise too_large("file", self.max_file_bytes)
            if read > limit:
                raise too_large("body", limit)
            return message

        await self.app(scope, receive_bounded, send)


def _bearer(scope: Scope) -> bytes | None:
    value = dict(scope["headers"]).get(b"authorization", b"")
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" and key.strip() else None


def _refused(message: str) -> ASGIApp:
    headers = {"WWW-Authenticate": "Bearer"}
    return respond(
        Problem(401, message, param="Authorization", code="invalid_api_key", headers=headers)
    )
