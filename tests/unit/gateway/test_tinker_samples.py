"""Samples that clients wait for, without a gateway."""

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
    futures = samples.SampleFutures(jobs, pending_calls)
    prompt = bodies.Prompt(chunks=[bodies.Chunk(tokens=[1])])
    future = await futures.begin(bodies.SampleRequest(prompt=prompt, base_model="it"))
    assert (await futures.retrieve(future["request_id"])).status_code == 408
