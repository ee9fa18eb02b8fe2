"""How much of a request's body is taken, for how long it is waited for, and how deep it nests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from protocol.encodable import MAX_DEPTH, nests_too_deep, without_texts
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.errors import Problem
from services.gateway.files.shelf import too_large

MAX_JSON_BYTES = 2**20
MAX_VALUES = 20_000
SILENCE_S = 30.0  # of a client in the middle of its body
_FILE_BYTES_PER_S = 2**14  # at least, on average
_SLOW_START_S = 30.0  # which do not count for that
_MULTIPART_HEAD_BYTES = 2**16
_UPLOAD = "/v1/files"
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


@dataclass(frozen=True)
class Bounded:
    """Stops reading a body that is too large or too slow, and lets none be parsed that is too deep.

    A body of JSON is passed on as a whole. Files stream through, whatever they nest.
    """

    app: ASGIApp
    max_file_bytes: int
    silence_s: float = SILENCE_S
    slow_start_s: float = _SLOW_START_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            return await self.app(scope, receive, send)
        is_upload = scope["path"] == _UPLOAD
        body: _Files | _Json = _Json(receive, self.silence_s)
        if is_upload:
            body = _Files(receive, self.silence_s, self.slow_start_s, self.max_file_bytes)
        coding = Headers(scope=scope).get("content-encoding") or "identity"
        is_plain = coding.lower() == "identity"
        await self.app(scope, body.receive if is_plain else _refusing(coding), send)


@dataclass
class _Files:
    client: Receive
    silence_s: float
    slow_start_s: float
    max_bytes: int
    read: int = 0
    waited_s: float = 0.0
    is_whole: bool = False

    async def receive(self) -> Message:
        """The next piece of the body."""
        if self.is_whole:
            return await self.client()
        began = time.monotonic()
        message = await _in_time(self.client, self.silence_s)
        self.waited_s += time.monotonic() - began
        self.is_whole = not message.get("more_body", False)
        self.read += len(message.get("body", b""))
        if self.read > self.max_bytes + _MULTIPART_HEAD_BYTES:
            raise too_large("file", self.max_bytes)
        due = (self.waited_s - self.slow_start_s) * _FILE_BYTES_PER_S
        if not self.is_whole and self.read < due:
            raise _late(f"less than {_FILE_BYTES_PER_S:,} bytes a second came")
        return message


@dataclass
class _Json:
    client: Receive
    silence_s: float
    is_whole: bool = False

    async def receive(self) -> Message:
        """The body in one piece; later, when the client goes."""
        if self.is_whole:
            return await self.client()
        body = bytearray()
        while not self.is_whole:
            message = await _in_time(self.client, self.silence_s)
            if message["type"] == "http.disconnect":
                return message
            body += message.get("body", b"")
            if len(body) > MAX_JSON_BYTES:
                raise too_large("body", MAX_JSON_BYTES)
            self.is_whole = not message.get("more_body", False)
        _check_shape(bytes(body))
        return {"type": "http.request", "body": bytes(body), "more_body": False}


def _refusing(coding: str) -> Receive:
    async def receive() -> Message:
        message = f"Content-Encoding: bodies in {coding} are not read; send it uncompressed"
        raise Problem(415, message, param="Content-Encoding", code="unsupported_encoding")

    return receive


async def _in_time(receive: Receive, silence_s: float) -> Message:
    try:
        async with asyncio.timeout(silence_s):
            return await receive()
    except TimeoutError as error:
        raise _late(f"nothing came for {silence_s:g} s") from error


def _late(why: str) -> Problem:
    return Problem(408, f"body: {why}; send it again", param="body", code="timeout")


def _check_shape(body: bytes) -> None:
    """Refuse JSON that not every service can read, before anything is built of it.

    Raises:
        Problem: 400 naming the limit.
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} is 0x{body[error.start]:02x}"
        raise _refused(f"not UTF-8: {where}; send JSON in UTF-8") from error
    if b"\0" in body:  # as in UTF-16, in which nothing could be found
        raise _refused("not valid JSON in UTF-8")
    if nests_too_deep(body):
        raise _refused(f"nested deeper than {MAX_DEPTH} levels; make it flatter")
    if body.count(b",") > MAX_VALUES and without_texts(body).count(b",") > MAX_VALUES:
        raise _refused(f"more than {MAX_VALUES:,} values; leave some out")


def _refused(why: str) -> Problem:
    return Problem(400, f"body: {why}", param="body", code="invalid_request")
