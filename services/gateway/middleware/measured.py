"""The outermost part of the gateway: a request's id, its clock, its line in the log."""

from __future__ import annotations

import logging
import re
import time
import uuid
from dataclasses import dataclass

from prometheus_client import Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.chassis.logs import REQUEST_ID
from services.gateway.errors import own_fault, respond

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
        """Serve one request."""
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
    """The client's own id of the request, where a log can hold it, else a new one."""
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
    # Who asks too often must not fill the log, either.
    log.log(
        logging.DEBUG if answer.status == 429 else logging.INFO,
        "request",
        extra={
            "method": scope["method"],
            "path": scope["path"][:_MAX_PATH_CHARS],
            "route": _route(scope),
            "status": answer.status or None,
            "seconds": round(time.perf_counter() - answer.began, 4),
            "bytes": answer.bytes,
            "key": scope.get("key_name"),
            "address": (scope.get("client") or (None,))[0],
        },
    )


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "none")
