"""The client when connections break, gateways are silent, and downloads are interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tables import table
from weir.client import PartFile, WeirClient, WeirError

NOON = 1_700_000_000_123_456
BROKEN = httpx.ReadError("the connection broke")


class Body(httpx.SyncByteStream):
    """A response body of bytes, seconds of silence, and an error if the connection breaks."""

    def __init__(self, gateway: Gateway, *parts: bytes | float | Exception) -> None:
        self.gateway = gateway
        self.parts = parts

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, bytes):
                yield part
            else:
                self.gateway.sleep(part)


class Gateway(httpx.BaseTransport):
    """Sends one reply per request, and repeats the last; has a clock that the client moves."""

    def __init__(self, *replies: httpx.Response | Exception) -> None:
        self.replies = list(replies)
        self.requests: list[httpx.Request] = []
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def client(self) -> WeirClient:
        return WeirClient(
            "http://there", "key", transport=self, clock=lambda: self.now, sleep=self.sleep
        )

    def event_stream(self, *parts: bytes | float | Exception) -> httpx.Response:
        headers = {"Content-Type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=Body(self, *parts))


def an_event(event_id: str) -> bytes:
    return f"id: {event_id}\ndata: {json.dumps({'id': event_id})}\n\n".encode()


def a_refusal(status: int) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "no", "param": "model"}})


def test_a_silent_then_broken_stream_resumes_after_its_last_event() -> None:
    gateway = Gateway()
    first = gateway.event_stream(an_event("1"), 3600.0, b": still here\n\n", BROKEN)
    second = gateway.event_stream(an_event("2"), b"data: [DONE]\n\n")
    gateway.replies += [first, a_refusal(503), second]
    with gateway.client() as client:
        assert [event["id"] for event in client.events("job")] == ["1", "2"]
    last_ids = [request.headers.get("last-event-id") for request in gateway.requests]
    assert last_ids == [None, "1", "1"]


def test_a_gateway_that_does_not_respond_for_a_minute_is_an_error() -> None:
    gateway = Gateway(httpx.ConnectError("nothing there"))
    with gateway.client() as client, pytest.raises(WeirError, match="60 s"):
        list(client.events("job"))
    assert 60 <= gateway.now < 65


def test_a_request_is_tried_three_times_while_the_gateway_is_busy() -> None:
    gateway = Gateway(a_refusal(503), BROKEN, httpx.Response(200, json={"id": "job"}))
    with gateway.client() as client:
        assert client.job("job") == {"id": "job"}
    gateway = Gateway(a_refusal(503))
    with gateway.client() as client, pytest.raises(WeirError) as caught:
        client.submit({})
    assert caught.value.status == 503
    assert len(gateway.requests) == 3
    assert len({request.headers["idempotency-key"] for request in gateway.requests}) == 1


def test_a_refusal_names_its_field_and_is_not_retried() -> None:
    gateway = Gateway(a_refusal(400))
    with gateway.client() as client, pytest.raises(WeirError) as caught:
        client.submit({})
    assert (caught.value.status, caught.value.param) == (400, "model")
    assert len(gateway.requests) == 1


def test_an_answer_comes_in_chunks_and_ends_with_the_gateways_error() -> None:
    gateway = Gateway()
    waits: list[str] = []
    chunk = b'data: {"choices": []}\n\n'
    error = b'data: {"error": {"message": "the engine died"}}\n\n'
    gateway.replies.append(gateway.event_stream(b": loads step 4\n\n", chunk, error))
    with gateway.client() as client:
        answer = client.chat({"model": "m"}, waits.append)
        assert next(answer) == {"choices": []}
        with pytest.raises(WeirError, match="the engine died"):
            next(answer)
    assert waits == ["loads step 4"]
    assert json.loads(gateway.requests[0].read()) == {"model": "m", "stream": True}


@table("""
    name | reply
    a    | {"status_code": 200, "content": b"12345"}
    a    | {"status_code": 206, "content": b"123456"}
    ../a | {"status_code": 200, "content": b"123456"}
""")
def test_a_changed_file_or_one_outside_the_folder_is_refused(
    tmp_path: Path, name: str, reply: dict[str, Any]
) -> None:
    file = {"name": name, "bytes": 6, "modified_us": NOON}
    gateway = Gateway(httpx.Response(200, json={"data": [file]}), httpx.Response(**reply))
    with gateway.client() as client, pytest.raises(WeirError):
        client.fetch_model("job", tmp_path / "model")
    assert not list(tmp_path.rglob("a"))


def test_parts_of_another_original_are_not_used(tmp_path: Path) -> None:
    old = PartFile(tmp_path / "a", 6, NOON)
    new = PartFile(tmp_path / "a", 6, NOON + 1)
    assert list(old.write([b"abc"], 0)) == [3]
    assert (old.num_received, new.num_received) == (3, 0)
    assert PartFile(tmp_path / "a", 2, NOON).num_received == 0
    assert list(new.write([b"xy", b"z123"], 0)) == [2, 6]
    new.finish()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"xyz123")]
    assert (old.is_complete, new.is_complete) == (False, True)
