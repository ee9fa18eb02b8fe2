"""Requests that wait for results, where no gateway runs."""

import asyncio
from typing import Any

import pytest
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from services.gateway.api.tinker import futures

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
