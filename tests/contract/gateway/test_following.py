"""The client follows a job's events through quiet hours and broken lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from services.gateway.client import client
from services.gateway.client.client import WeirClient, WeirError
from tests.contract.gateway.stack import (
    KEY,
    Stack,
    a_gateway,
    a_job,
    record_events,
    take_up,
)
from tests.contract.valkey_server import Server

pytestmark = pytest.mark.redis

SHOWS_LIFE_OFTEN = (
    "-c",
    "import runpy, services.gateway.jobs.following as e; e._SIGN_OF_LIFE_S = 0.0;"
    "runpy.run_module('services.gateway', run_name='__main__')",
)


class Clock:
    """The client's clock, which a test sets forward; its pauses take no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forward_s = 0.0
        own = SimpleNamespace(monotonic=self.now, sleep=self.forward)
        monkeypatch.setattr(client, "time", own)

    def now(self) -> float:
        return time.monotonic() + self.forward_s

    def forward(self, seconds: float) -> None:
        self.forward_s += seconds


class QuietHour(httpx.HTTPTransport):
    """The first stream: after an event nothing happens for an hour, then the line breaks."""

    def __init__(self, clock: Clock, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.clock = clock
        self.meanwhile = meanwhile
        self.num_streams = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.num_streams += 1
        if self.num_streams == 2:
            self.meanwhile()
        reply = super().handle_request(request)
        if self.num_streams == 1:
            reply.stream = Breaking(reply.stream, self.clock)
        return reply


class Breaking(httpx.SyncByteStream):
    def __init__(self, inner: Any, clock: Clock) -> None:
        self.inner = inner
        self.clock = clock

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.inner:
            yield chunk
            if b": still here" in chunk:
                raise httpx.ReadError("the line broke")
            self.clock.forward(3600)

    def close(self) -> None:
        self.inner.close()


def test_a_stream_that_was_quiet_for_an_hour_and_broke_once_goes_on(
    gateway_server: Server, stack: Stack, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = a_job(http)["id"]
    take_up(stack, job_id, state="running")
    record_events(stack, job_id, range(1))

    def finish() -> None:
        record_events(stack, job_id, range(1, 2))
        take_up(stack, job_id, state="succeeded")

    with a_gateway(gateway_server, stack.data_dir.parent, SHOWS_LIFE_OFTEN) as lively:
        transport = QuietHour(Clock(monkeypatch), finish)
        with WeirClient(lively.url, KEY, transport=transport) as weir:
            assert [event["message"] for event in weir.events(job_id)] == ["m0", "m1"]
    assert transport.num_streams == 2


def test_a_gateway_that_stays_away_is_given_up_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    with WeirClient("http://127.0.0.1:9", KEY) as weir, pytest.raises(WeirError, match="60 s"):
        list(weir.events("ftjob-any"))
    assert 60 <= clock.forward_s < 65
