"""One key's long requests leave room for its short ones, and for those of other keys."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from services.gateway import errors
from services.gateway.api.places import Places

pytestmark = pytest.mark.anyio


class Waiting:
    """An application with a route that waits, one that streams, and one that does neither."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.begun = 0
        app = FastAPI()
        places = [Depends(Places(2, total=3))]
        app.add_api_route("/wait", self.wait, dependencies=places)
        app.add_api_route("/stream", self.stream, dependencies=places, response_model=None)
        app.add_api_route("/short", self.answer)
        app.middleware("http")(self.name_key)
        errors.install(app)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://gateway"
        )

    async def name_key(
        self, request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        request.scope["key"] = SimpleNamespace(name=request.headers["x-key"])
        return await answer(request)

    async def answer(self) -> str:
        return "at once"

    async def wait(self) -> str:
        self.begun += 1
        await self.release.wait()
        return "waited"

    async def stream(self) -> StreamingResponse:
        async def chunks() -> AsyncIterator[str]:
            yield await self.wait()

        return StreamingResponse(chunks())

    async def get(self, path: str, key: str) -> httpx.Response:
        async with asyncio.timeout(60):
            return await self.client.get(path, headers={"X-Key": key})

    async def begin(self, path: str, key: str) -> asyncio.Task[httpx.Response]:
        before = self.begun
        task = asyncio.create_task(self.get(path, key))
        while self.begun == before:
            await asyncio.sleep(0)
        return task


@pytest.mark.parametrize("path", ["/wait", "/stream"])
async def test_a_key_that_has_no_place_left_is_told_to_wait(path: str) -> None:
    app = Waiting()
    waiting: list[Any] = [await app.begin(path, "a") for _ in range(2)]
    refused = await app.get(path, "a")
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "2"
    assert refused.json()["error"]["code"] == "too_many_requests"
    assert (await app.get("/short", "a")).is_success
    waiting.append(await app.begin(path, "b"))
    assert (await app.get(path, "c")).status_code == 429, "three with all keys"
    app.release.set()
    assert [reply.status_code for reply in await asyncio.gather(*waiting)] == [200] * 3
    assert (await app.get(path, "a")).is_success


async def test_a_request_that_is_given_up_leaves_its_place() -> None:
    app = Waiting()
    for _ in range(3):
        leaving = await app.begin("/wait", "a")
        leaving.cancel()
        await asyncio.wait([leaving])
    app.release.set()
    assert (await app.get("/wait", "a")).is_success
