"""Episodes at a fake gateway: faults of the model, deadlines, and cancellation."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import httpx
import pytest
from protocol.messages import Task
from protocol.recipe import Environment
from protocol.traces import Branch, EndedCall, OpenCall, Trace

from services.environment.episodes import Episodes, Play
from services.environment.gateway_client import GatewayClient, GatewayUnavailable, Session
from tests.builders import a_request
from tests.tables import table

pytestmark = pytest.mark.anyio


def respond(request: httpx.Request, trace: Trace | None = None) -> httpx.Response:
    """Respond as the gateway does to a session that opens, is read, or closes."""
    if request.method == "PUT":
        return httpx.Response(200, json={"key": "key"})
    trace = trace or Trace(id="")
    return httpx.Response(200, text=trace.model_dump_json(by_alias=True))


def ended_call(start: float, seconds: float) -> EndedCall:
    return EndedCall(
        id="a",
        created_at=start,
        seconds=seconds,
        model="",
        finish_reason="stop",
        error=None,
    )


def an_episode(play: Play, handle: Callable[[httpx.Request], httpx.Response]) -> Episodes:
    """Episodes of 0.01 s, at a gateway whose requests ``handle`` answers."""
    http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    settings = Environment(url="http://game", episode_timeout_s=0.01)
    return Episodes(a_request(), settings, play, GatewayClient("http://gateway", http))


@pytest.mark.parametrize(
    "answer", [httpx.Response(503, json={"error": "no job"}), httpx.ConnectError("refused")]
)
async def test_an_episode_does_not_count_if_the_model_does_not_respond(
    answer: httpx.Response | Exception,
) -> None:
    methods: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        methods.append(request.method)
        if request.method != "POST":
            return respond(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def play(task: Task, session: Session, seed: int) -> NoReturn:
        await session.chat([{"role": "user", "content": "Move."}])
        raise AssertionError

    with pytest.raises(GatewayUnavailable):
        await an_episode(play, handle).play(0)
    assert methods == ["PUT", "POST", "DELETE"]


@table("""
    call_s | quiet_s | problem
    900.0  | 1.0     | ""
    0.0    | 0.0     | "episode_timeout"
    900.0  | 601.0   | None
""")
async def test_the_time_of_the_model_does_not_count(
    call_s: float, quiet_s: float, problem: str | None
) -> None:
    is_checked = asyncio.Event()
    open_call = OpenCall(id="a", created_at=1.0, seconds=call_s, quiet_seconds=quiet_s)
    branch = Branch(token_ids=[1, 2], logprobs=[None, -1], own=[False, True], calls=["a"])
    ended = Trace(id="", calls=(ended_call(1.0, call_s),), branches=(branch,))

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            is_checked.set()
            return respond(request, Trace(id="", under_way=(open_call,)))
        return respond(request, ended)

    async def play(task: Task, session: Session, seed: int) -> float:
        await is_checked.wait()
        if problem != "":
            await asyncio.Event().wait()
        return 1.0

    playing = an_episode(play, handle).play(0)
    if problem is None:
        with pytest.raises(GatewayUnavailable, match="no token for 600 s"):
            await playing
    else:
        assert (await playing).episode.problem == problem


async def test_a_cancelled_episode_leaves_no_session() -> None:
    methods: list[str] = []
    is_playing = asyncio.Event()

    def handle(request: httpx.Request) -> httpx.Response:
        methods.append(request.method)
        return respond(request)

    async def play(*_: object) -> NoReturn:
        is_playing.set()
        await asyncio.Event().wait()
        raise AssertionError

    playing = asyncio.ensure_future(an_episode(play, handle).play(0))
    await is_playing.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert methods == ["PUT", "DELETE"]
