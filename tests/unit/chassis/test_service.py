"""A wait ends with its event, its time or a cancellation; and what a connection may cost."""

import asyncio
from typing import Any

import httpx
import pytest

from deploy.processes import free_ports
from services.chassis import service
from services.chassis.deployment import Deployment
from services.chassis.service import set_within

pytestmark = pytest.mark.anyio


async def test_a_wait_ends_with_the_event_or_with_its_time() -> None:
    event = asyncio.Event()
    assert not await set_within(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await set_within(event, 3600)
    assert await set_within(event, 0)


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("by_time", [False, True])
async def test_a_cancellation_that_comes_with_the_end_of_the_wait_is_not_swallowed(
    turns: int, by_time: bool
) -> None:
    event = asyncio.Event()

    async def wait_and_go_on() -> None:
        await set_within(event, 0.01 if by_time else 3600)
        await asyncio.sleep(3600)

    going_on = asyncio.create_task(wait_and_go_on())
    ending = asyncio.get_running_loop().create_future()
    await asyncio.sleep(0)
    if by_time:
        asyncio.get_running_loop().call_later(0.01, ending.set_result, None)
        await ending
    else:
        event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    going_on.cancel()
    done, _ = await asyncio.wait({going_on}, timeout=30)
    going_on.cancel()
    assert done


async def answering(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


async def test_headers_that_are_too_large_and_one_connection_too_many_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "_MAX_CONNECTIONS", 3)
    port = next(free_ports())
    values = {"WEIR_REDIS_URL": "redis://x", "WEIR_DATA_DIR": "/x", "WEIR_PORT": str(port)}
    async with (
        service._serving(answering, Deployment.from_environment(values), port) as serving,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        while not serving.started:
            await asyncio.sleep(0.01)
        assert (await client.get("/")).text == "in"
        assert (await client.get("/", headers={"X-A": "a" * 2**16})).status_code == 400
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        while len(serving.server_state.connections) < 2:
            await asyncio.sleep(0.01)
        assert (await client.get("/")).status_code == 503
        for _, writer in others:
            writer.close()
        while serving.server_state.connections:
            await asyncio.sleep(0.01)
        assert (await client.get("/")).text == "in"
