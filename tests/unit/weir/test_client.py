"""The client where lines break, gateways fall silent, and downloads are interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from weir.client import PartFile, WeirClient, WeirError

NOON = 1_700_000_000_123_456
BROKEN = httpx.ReadError("the line broke")


class Clock:
    """A clock that goes on when a test says so, and while the client pauses."""

    now = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Line(httpx.SyncByteStream):
    """What comes over a line: bytes, hours in which nothing comes, and its end if it breaks."""

    def __init__(self, clock: Clock, *coming: bytes | float | Exception) -> None:
        self.clock, self.coming = clock, coming

    def __iter__(self) -> Iterator[bytes]:
        for each in self.coming:
            if isinstance(each, Exception):
                raise each
            if isinstance(each, bytes):
                yield each
            else:
                self.clock.sleep(each)


class Gateway(httpx.BaseTransport):
    """Answers each request with the next reply, the last one for ever, and keeps what was asked."""

    def __init__(self, *replies: httpx.Response | Exception) -> None:
        self.replies = list(replies)
        self.asked: list[httpx.Request] = []
        self.clock = Clock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def client(self) -> WeirClient:
        clock = {"clock": self.clock.read, "sleep": self.clock.sleep}
        return WeirClient("http://there", "key", transport=self, **clock)


def a_stream(gateway: Gateway, *coming: bytes | float | Exception) -> httpx.Response:
    headers = {"Content-Type": "text/event-stream"}
    return httpx.Response(200, headers=headers, stream=Line(gateway.clock, *coming))


def an_event(event_id: str) -> bytes:
    return f"id: {event_id}\ndata: {json.dumps({'id': event_id})}\n\n".encode()


def a_refusal(status: int) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "no", "param": "model"}})


def test_a_stream_that_was_quiet_for_an_hour_and_broke_goes_on_after_its_last_event() -> None:
    gateway = Gateway()
    first = a_stream(gateway, an_event("1"), 3600.0, b": still here\n\n", BROKEN)
    second = a_stream(gateway, an_event("2"), b"data: [DONE]\n\n")
    gateway.replies += [first, a_refusal(503), second]
    with gateway.client() as client:
        assert [event["id"] for event in client.events("job")] == ["1", "2"]
    assert [request.headers.get("last-event-id") for request in gateway.asked] == [None, "1", "1"]


def test_a_gateway_that_stays_away_is_given_up_after_a_minute() -> None:
    gateway = Gateway(httpx.ConnectError("nothing there"))
    with gateway.client() as client, pytest.raises(WeirError, match="60 s"):
        list(client.events("job"))
    assert 60 <= gateway.clock.now < 65


def test_a_request_is_tried_three_times_while_the_gateway_is_busy_and_no_longer() -> None:
    gateway = Gateway(a_refusal(503), BROKEN, httpx.Response(200, json={"id": "job"}))
    with gateway.client() as client:
        assert client.job("job") == {"id": "job"}
    gateway = Gateway(a_refusal(503))
    with gateway.client() as client, pytest.raises(WeirError) as caught:
        client.submit({})
    assert caught.value.status == 503
    keys = {request.headers["idempotency-key"] for request in gateway.asked}
    assert (len(gateway.asked), len(keys)) == (3, 1)


def test_a_refusal_is_told_with_its_field_and_not_tried_again() -> None:
    gateway = Gateway(a_refusal(400))
    with gateway.client() as client, pytest.raises(WeirError) as caught:
        client.submit({})
    assert (caught.value.status, caught.value.param, len(gateway.asked)) == (400, "model", 1)


def test_an_answer_is_told_as_it_comes_and_breaks_off_with_the_gateways_words() -> None:
    gateway, waits = Gateway(), list[str]()
    chunks = (b'data: {"choices": []}\n\n', b'data: {"error": {"message": "the engine died"}}\n\n')
    gateway.replies += [a_stream(gateway, b": loads step 4\n\n", *chunks)]
    with gateway.client() as client:
        answer = client.chat({"model": "m"}, waits.append)
        assert next(answer) == {"choices": []}
        with pytest.raises(WeirError, match="the engine died"):
            next(answer)
    assert waits == ["loads step 4"]
    assert json.loads(gateway.asked[0].read()) == {"model": "m", "stream": True}


# ---------------------------------------------------------------------- downloads


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("a", {"status_code": 200, "content": b"12345"}),
        ("a", {"status_code": 206, "content": b"123456"}),
        ("../a", {"status_code": 200, "content": b"123456"}),
    ],
)
def test_a_file_that_is_not_as_it_was_listed_or_would_lie_elsewhere_is_not_taken(
    tmp_path: Path, name: str, reply: dict[str, Any]
) -> None:
    listed = httpx.Response(200, json={"data": [{"name": name, "bytes": 6, "modified_us": NOON}]})
    with Gateway(listed, httpx.Response(**reply)).client() as client, pytest.raises(WeirError):
        client.fetch_model("job", tmp_path / "here")
    assert not list(tmp_path.rglob("a"))


def test_pieces_of_another_original_count_for_nothing_and_leave_with_it(tmp_path: Path) -> None:
    part, other = (PartFile(tmp_path / "a", 6, modified_us) for modified_us in (NOON, NOON + 1))
    assert list(part.write([b"abc"], 0)) == [3]
    assert (part.here, other.here, PartFile(tmp_path / "a", 2, NOON).here) == (3, 0, 0)
    assert list(other.write([b"xy", b"z123"], 0)) == [2, 6]
    other.finish()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"xyz123")]
    assert (part.is_complete, other.is_complete) == (False, True)
