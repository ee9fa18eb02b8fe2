"""Episodes at a door of the test's own: what the model's faults and a cancelled group leave."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import httpx
import pytest
from protocol.messages import Task
from protocol.recipe import Environment

from services.environment.door import Door, DoorShut, Session, Trace
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


def a_slow_door(looked: asyncio.Event, **call: float) -> Door:
    """One call is under way when it is looked at, and answered when the session is closed."""
    branch = {"token_ids": [1, 2], "logprobs": [None, -1], "own": [False, True], "calls": ["a"]}
    whole = {
        "key": "",
        "calls": [{"id": "a", **call}],
        "branches": [{**branch, "weight_versions": []}],
    }

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            looked.set()
            return httpx.Response(200, json={"under_way": [call]})
        return httpx.Response(200, json=whole)

    return Door("http://gateway", httpx.AsyncClient(transport=httpx.MockTransport(handle)))


@pytest.mark.parametrize(
    ("seconds", "quiet", "problem"),
    [(900.0, 1.0, ""), (0.0, 0.0, "episode_timeout"), (900.0, 601.0, None)],
)
async def test_the_models_time_is_none_of_an_episodes_own(
    seconds: float, quiet: float, problem: str | None
) -> None:
    looked = asyncio.Event()

    async def game(task: Task, session: Session, seed: int) -> float:
        await looked.wait()
        await (asyncio.sleep(0) if problem == "" else asyncio.Event().wait())
        return 1.0

    settings = Environment(url="http://game", episode_timeout_s=0.01)
    door = a_slow_door(looked, created_at=1.0, seconds=seconds, quiet_seconds=quiet)
    playing = Episodes(a_request(), settings, game, door).play(0)
    if problem is None:
        with pytest.raises(DoorShut, match="nothing of a call's answer"):
            await playing
    else:
        assert (await playing).episode.problem == problem


def test_seconds_of_calls_at_the_same_time_count_once() -> None:
    calls = [{"id": "", "created_at": at, "seconds": s} for at, s in ((10, 5), (11, 1), (12, 5))]
    waits = [{"created_at": 30, "seconds": 4, "quiet_seconds": 0}]
    assert Trace.model_validate({"calls": calls, "under_way": waits}).seconds == 11


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
