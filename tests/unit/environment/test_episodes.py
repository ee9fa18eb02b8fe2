"""Episodes at a door of the test's own: what the model's faults and a cancelled group leave."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import httpx
import pytest
from protocol.messages import Task
from protocol.recipe import Environment

from services.environment.door import Door, DoorShut, Session
from services.environment.episodes import Episodes
from tests.builders import a_request

pytestmark = pytest.mark.anyio


def a_door(asked: list[str], answer: httpx.Response | Exception) -> Door:
    """It opens and closes sessions, and answers every call alike."""

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        if request.method != "POST":
            return httpx.Response(200, json={"key": "of the session"})
        if isinstance(answer, Exception):
            raise answer
        return answer

    http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return Door("http://gateway", http)


@pytest.mark.parametrize(
    "answer", [httpx.Response(503, json={"error": "no job"}), httpx.ConnectError("refused")]
)
async def test_a_model_that_does_not_answer_is_no_fault_of_a_game(
    answer: httpx.Response | Exception,
) -> None:
    async def game(task: Task, session: Session, seed: int) -> NoReturn:
        await session.chat([{"role": "user", "content": "Move."}])
        raise AssertionError

    asked, settings = list[str](), Environment(url="http://game")
    episodes = Episodes(a_request(), settings, game, a_door(asked, answer))
    with pytest.raises(DoorShut):
        await episodes.play(0)
    assert asked == ["PUT", "POST", "DELETE"]


async def test_a_cancelled_episode_leaves_no_session() -> None:
    begun = asyncio.Event()

    async def hangs(task: Task, session: Session, seed: int) -> NoReturn:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    asked, settings = list[str](), Environment(url="http://game")
    episodes = Episodes(a_request(), settings, hangs, a_door(asked, httpx.Response(200)))
    playing = asyncio.ensure_future(episodes.play(0))
    await begun.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert asked == ["PUT", "DELETE"]
