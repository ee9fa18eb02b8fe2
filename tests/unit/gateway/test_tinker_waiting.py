"""Requests that wait for results and samples, where no gateway runs."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request, Response
from protocol.calls import Served
from protocol.recipe import Model
from starlette.requests import ClientDisconnect

from services.gateway.api.tinker import bodies, futures, samples
from services.gateway.errors import Problem

pytestmark = pytest.mark.anyio


def a_request(events: asyncio.Queue[Any]) -> Request:
    return Request({"type": "http"}, events.get)


async def test_nobody_waits_on_for_a_client_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures, "DISCONNECT_POLL_S", 0.01)
    ended = asyncio.Event()
    events = asyncio.Queue[Any]()

    async def waits() -> Response:
        try:
            return await asyncio.Future[Response]()
        finally:
            ended.set()

    events.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientDisconnect):
        await futures.await_while_connected(a_request(events), waits())
    async with asyncio.timeout(60):
        await ended.wait()


def test_requests_that_began_at_once_do_not_end_at_once() -> None:
    assert len({round(futures.random_timeout_s(), 1) for _ in range(100)}) > 10


async def test_samples_of_a_gateway_that_stops_are_to_be_requested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopping = asyncio.Event()

    async def resolve(*_: Any) -> Served:
        return Served(name="it", model=Model(path="/it"))

    async def follow(_: Any) -> AsyncIterator[None]:
        yield
        stopping.set()
        raise Problem(503, "the gateway stops")

    monkeypatch.setattr(samples, "resolve_sampler_id", resolve)
    exchange = SimpleNamespace(me="gateway")
    jobs: Any = SimpleNamespace(service=SimpleNamespace(stopping=stopping), exchange=exchange)
    pending_calls: Any = SimpleNamespace(follow=follow)
    sample_futures = samples.SampleFutures(jobs, pending_calls)
    prompt = bodies.Prompt(chunks=[bodies.Chunk(tokens=[1])])
    future = await sample_futures.begin(bodies.SampleRequest(prompt=prompt, base_model="it"))
    assert (await sample_futures.retrieve(future["request_id"])).status_code == 408
