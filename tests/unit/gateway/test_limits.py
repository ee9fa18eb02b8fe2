"""What of a body reaches the routes: no more than its limits allow, for as long as they allow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anyio import sleep_forever
from protocol.encodable import MAX_DEPTH, nests_too_deep
from starlette.types import Message

from services.gateway.errors import Problem
from services.gateway.middleware import limits
from services.gateway.middleware.limits import MAX_JSON_BYTES, MAX_VALUES, Bounded

pytestmark = pytest.mark.anyio
JOBS = "/v1/fine_tuning/jobs"


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + closing * depth).encode()


def piece(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def passed_on(*messages: Message, path: str = JOBS, method: str = "POST") -> list[Message]:
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

    bounded = Bounded(route, max_file_bytes=2**20)
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    await bounded(scope, receive, sleep_forever)  # type: ignore[arg-type]
    return got


@pytest.mark.parametrize(
    "body",
    [
        nested(MAX_DEPTH + 1),
        nested(100_000),
        b"[" * 100_000,
        nested(MAX_DEPTH, '{"a":[', "]}"),
        b'["\\"", ' + nested(MAX_DEPTH) + b"]",
        b'{"a": "\\\\", "b": ' + nested(MAX_DEPTH) + b"}",
    ],
)
async def test_a_body_that_nests_too_deep_is_refused_before_it_is_parsed(body: bytes) -> None:
    with pytest.raises(Problem, match=f"deeper than {MAX_DEPTH} levels") as refused:
        await passed_on(piece(body[:50], more=True), piece(body[50:]))
    assert (refused.value.status_code, refused.value.param) == (400, "body")


@pytest.mark.parametrize(
    "body",
    [
        nested(MAX_DEPTH),
        b"[" + b"[]," * 1000 + b"1]",
        json.dumps({"a": "[" * 1000, "b\\": '"' + "{" * 1000, "c": "\\"}).encode(),
        b"]" * 1000 + b"no JSON",
    ],
)
async def test_brackets_side_by_side_and_in_texts_are_no_depth(body: bytes) -> None:
    assert await passed_on(piece(body[:7], more=True), piece(body[7:])) == [piece(body)]


def test_a_text_without_end_is_searched_in_linear_time() -> None:
    assert not nests_too_deep(b'"' + b"\\" * 2**20 + b"[" * 200)
    assert not nests_too_deep(b'"a' * 2**19 + b"[" * 20 + b"]")


async def test_a_body_of_too_many_values_is_refused_and_text_is_one_value() -> None:
    with pytest.raises(Problem, match=f"more than {MAX_VALUES:,} values"):
        await passed_on(piece(b"[" + b"1," * (MAX_VALUES + 1) + b"1]"))
    body = json.dumps(["," * (2 * MAX_VALUES)] * 2).encode()
    assert await passed_on(piece(body)) == [piece(body)]


async def test_a_body_in_another_encoding_is_refused() -> None:
    with pytest.raises(Problem, match="UTF-8"):
        await passed_on(piece(json.dumps({"a": 1}).encode("utf-16")))


async def test_a_body_that_is_too_large_is_not_read_to_its_end() -> None:
    with pytest.raises(Problem) as refused:
        await passed_on(piece(b"x" * MAX_JSON_BYTES, more=True), piece(b"x", more=True))
    assert refused.value.status_code == 413


@pytest.mark.parametrize("path", [JOBS, "/v1/files"])
async def test_a_client_that_falls_silent_in_its_body_is_told_so(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(limits, "SILENCE_S", 0.05)
    with pytest.raises(Problem) as refused:
        await passed_on(piece(b"{", more=True), path=path)
    assert (refused.value.status_code, refused.value.param) == (408, "body")


async def test_a_file_that_comes_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_FILE_BYTES_PER_S", 2**40)
    pieces = [piece(b"x", more=True), piece(b"x")]
    assert await passed_on(*pieces, path="/v1/files") == pieces
    monkeypatch.setattr(limits, "_SLOW_START_S", 0.0)
    with pytest.raises(Problem, match="bytes a second") as refused:
        await passed_on(*pieces, path="/v1/files")
    assert (refused.value.status_code, refused.value.param) == (408, "body")


async def test_a_client_that_goes_is_no_fault() -> None:
    gone: Message = {"type": "http.disconnect"}
    assert await passed_on(piece(b"{", more=True), gone) == [gone]


async def test_a_file_streams_through_whatever_it_holds() -> None:
    pieces = [piece(b"[" * 1000, more=True), piece(b"\0")]
    assert await passed_on(*pieces, path="/v1/files") == pieces
