"""What of a body reaches the routes: no more than its limits allow, for as long as they allow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anyio import sleep_forever
from protocol.encodable import MAX_DEPTH
from starlette.types import Message

from services.gateway.errors import Problem
from services.gateway.middleware.limits import MAX_JSON_BYTES, MAX_VALUES, Bounded

pytestmark = pytest.mark.anyio
JOBS = "/v1/fine_tuning/jobs"


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + closing * depth).encode()


def piece(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def passed_on(*messages: Message, path: str = JOBS, **limits: float) -> list[Message]:
    """What a route gets of a client that then says nothing more."""
    coming, got = iter(messages), list[Message]()

    async def receive() -> Message:
        for message in coming:
            return message
        await sleep_forever()
        raise AssertionError

    async def route(scope: Any, receive: Any, send: Any) -> None:
        while not got or got[-1].get("more_body"):
            got.append(await receive())

    bounded = Bounded(route, max_file_bytes=2**20, **limits)
    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    await bounded(scope, receive, sleep_forever)  # type: ignore[arg-type]
    return got


REFUSED = {
    "too deep": nested(MAX_DEPTH + 1),
    "too deep, and never closed": b"[" * 100_000,
    "too deep beside a text": b'{"a": "\\\\", "b": ' + nested(MAX_DEPTH) + b"}",
    "too many values": b"[" + b"1," * (MAX_VALUES + 1) + b"1]",
    "another encoding": json.dumps({"a": 1}).encode("utf-16"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_body_that_not_every_service_can_read_is_refused_before_it_is_parsed(
    case: str,
) -> None:
    body = REFUSED[case]
    with pytest.raises(Problem) as refused:
        await passed_on(piece(body[:50], more=True), piece(body[50:]))
    assert (refused.value.status_code, refused.value.param) == (400, "body")


@pytest.mark.parametrize(
    "body",
    [
        nested(MAX_DEPTH),
        b"[" + b"[]," * 1000 + b"1]",
        json.dumps({"a": "[" * 1000, "b\\": '"' + "{" * 1000, "c": "\\"}).encode(),
        json.dumps(["," * (2 * MAX_VALUES)] * 2).encode(),
    ],
)
async def test_brackets_side_by_side_and_in_texts_are_no_depth_and_a_text_is_one_value(
    body: bytes,
) -> None:
    assert await passed_on(piece(body[:7], more=True), piece(body[7:])) == [piece(body)]


async def test_a_body_that_is_too_large_is_not_read_to_its_end() -> None:
    too_large = piece(b"x" * MAX_JSON_BYTES, more=True), piece(b"x", more=True)
    with pytest.raises(Problem) as refused:
        await passed_on(*too_large, silence_s=5.0)
    assert refused.value.status_code == 413


@pytest.mark.parametrize("path", [JOBS, "/v1/files"])
async def test_a_client_that_falls_silent_in_its_body_is_told_so(path: str) -> None:
    with pytest.raises(Problem) as refused:
        await passed_on(piece(b"{", more=True), path=path, silence_s=0.0)
    assert (refused.value.status_code, refused.value.param) == (408, "body")


async def test_a_file_that_comes_too_slowly_is_given_up() -> None:
    pieces = [piece(b"x", more=True), piece(b"x", more=True), piece(b"x")]
    assert await passed_on(*pieces, path="/v1/files") == pieces
    with pytest.raises(Problem) as refused:
        await passed_on(*pieces, path="/v1/files", slow_start_s=-3600.0)  # as if an hour were over
    assert (refused.value.status_code, refused.value.param) == (408, "body")


async def test_a_client_that_goes_is_no_fault() -> None:
    gone: Message = {"type": "http.disconnect"}
    assert await passed_on(piece(b"{", more=True), gone) == [gone]


async def test_a_file_streams_through_whatever_it_holds() -> None:
    pieces = [piece(b"[" * 1000, more=True), piece(b"\0")]
    assert await passed_on(*pieces, path="/v1/files") == pieces
