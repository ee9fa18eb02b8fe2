"""Samples that clients wait for, where no gateway runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from protocol.calls import Served
from protocol.recipe import Model

from services.gateway.api.tinker import bodies, samples
from services.gateway.errors import Problem

pytestmark = pytest.mark.anyio


async def test_what_a_gateway_that_stops_leaves_behind_is_to_be_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def served_by(*_: Any) -> Served:
        return Served(name="it", model=Model(path="/it"))

    async def follow(_: Any) -> AsyncIterator[None]:
        yield
        stopping.set()
        raise Problem(503, "the gateway stops")

    monkeypatch.setattr(samples, "served_by", served_by)
    stopping = asyncio.Event()
    jobs: Any = SimpleNamespace(
        service=SimpleNamespace(stopping=stopping), exchange=SimpleNamespace(me="gateway")
    )
    desk: Any = SimpleNamespace(follow=follow)
    body = bodies.read(bodies.Sample, {"prompt": {"chunks": [{"tokens": [1]}]}, "base_model": "it"})
    kept = samples.Samples(jobs, desk)
    asked = await kept.ask(body)
    assert (await kept.result_of(asked["request_id"])).status_code == 408
