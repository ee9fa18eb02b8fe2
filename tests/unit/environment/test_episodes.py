"""Episodes at a fake gateway: faults of the model, deadlines, and cancellation."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import NoReturn

import httpx
import pytest
from protocol.messages import Episode, Task, VersionSpan
from protocol.recipe import Environment
from protocol.traces import Branch, EndedCall, OpenCall, Trace

from services.environment import openenv
from services.environment.addresses import Addresses
from services.environment.episodes import EpisodeBroken, Episodes, Play
from services.environment.gateway_client import GatewayClient, GatewayUnavailable, Session
from services.environment.group import FinishedEpisode, build_group, trained_branch
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


# ---------------------------------------------------------------------- groups from traces


def a_branch(tokens: str, mask: str, spans: Iterable[tuple[int, int, int]], call: str) -> Branch:
    """A letter is a token, a + in the mask one of the policy; spans are version, start and end."""
    policy_mask = [mark == "+" for mark in mask]
    return Branch(
        token_ids=[ord(token) for token in tokens],
        logprobs=[-1.0 if is_policy else None for is_policy in policy_mask],
        own=policy_mask,
        weight_versions=[
            VersionSpan(attempt=1, version=version, start=start, end=end)
            for version, start, end in spans
        ],
        calls=[call],
    )


def finish(*branches: Branch, **episode: object) -> FinishedEpisode:
    names = [name for branch in branches for name in branch.calls]
    calls = [
        EndedCall(
            id=name,
            created_at=0.0,
            seconds=1.0,
            model="",
            finish_reason="stop",
            error=None,
            text=name,
        )
        for name in names
    ]
    trace = Trace(id="", calls=tuple(calls), branches=branches)
    return FinishedEpisode(Episode.model_validate(episode or {"reward": 1.0}), trace)


BROKEN = finish(a_branch("zzzz", "--++", [(1, 2, 4)], "x"), problem="episode_failed")


def text(tokens: Iterable[int]) -> str:
    return "".join(map(chr, tokens))


def test_the_shared_start_is_the_prompt_and_later_prompts_are_masked() -> None:
    first = finish(a_branch("abcXYdeZ", "---++--+", [(3, 3, 5), (4, 7, 8)], "first"))
    second = finish(a_branch("abfXf", "---+-", [(1, 3, 4)], "second"))
    group = build_group(a_request(group_size=3), [first, BROKEN, second], 2.0)
    assert text(group.prompt_ids) == "ab"
    assert text(group.token_ids) == "cXYdeZ" + "fXf"
    assert group.lengths.tolist() == [6, 0, 3]
    assert group.own is not None
    mask = [0, 1, 1, 0, 0, 1, 0, 1, 0]
    assert group.own.tolist() == mask
    assert group.behavior_logprobs.tolist() == [-float(is_policy) for is_policy in mask]
    spans = [
        [(span.version, span.start, span.end) for span in response.spans]
        for response in group.responses
    ]
    assert spans == [[(3, 0, 3), (4, 3, 6)], [], [(1, 0, 3)]]


def test_the_branch_with_the_most_tokens_of_the_policy_is_trained_the_last_of_equals() -> None:
    one_token = a_branch("ppppA", "----+", [(1, 4, 5)], "one")
    two_tokens = a_branch("pBC", "-++", [(1, 1, 3)], "two")
    equal = a_branch("qDE", "-++", [(1, 1, 3)], "equal")
    assert trained_branch(Trace(id="", branches=(one_token, two_tokens, equal))) is equal
    group = build_group(a_request(group_size=1), [finish(one_token, two_tokens)], 0.0)
    assert text(group.token_ids) == "BC"
    assert group.responses[0].text == "two"


def test_a_group_of_broken_episodes_has_neither_prompt_nor_tokens() -> None:
    group = build_group(a_request(group_size=2), [BROKEN, BROKEN], 0.0)
    assert len(group.prompt_ids) == 0
    assert len(group.token_ids) == 0
    assert [response.text for response in group.responses] == ["x", "x"]


# ---------------------------------------------------------------------- OpenEnv servers


@asynccontextmanager
async def open_game(*chunks: bytes) -> AsyncIterator[Play]:
    """A game whose server answers every request with these chunks, and repeats the last of many."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines(chunks)
        with suppress(ConnectionError):
            while len(chunks) > 1:
                writer.write(chunks[-1])
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = Environment(url=f"http://127.0.0.1:{port}")
    async with openenv.open_server(settings, Addresses(("*",))) as play:
        yield play
    server.close()


async def test_a_schema_without_an_end_is_refused() -> None:
    async with open_game(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 2**16) as play:
        server = play.__self__  # type: ignore[attr-defined]
        with pytest.raises(EpisodeBroken, match="over 1 MiB"):
            await server._read_schema()


async def test_a_redirection_is_not_followed() -> None:
    reply = b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:9/ws\r\nContent-Length: 0\r\n\r\n"
    async with open_game(reply) as play:
        with pytest.raises(ValueError, match="cannot follow redirect"):
            await play(Task(id="t", prompt="x"), Session("http://gateway", "k"), 1)


def test_a_reply_that_nests_too_deep_is_text() -> None:
    reply = "[" * 100_000
    assert openenv._parse_action(reply, {"required": ["text"]}) == {"text": reply}


def test_seconds_of_simultaneous_calls_count_once() -> None:
    calls = (ended_call(10, 5), ended_call(11, 1), ended_call(12, 5))
    open_call = OpenCall(id="b", created_at=30, seconds=4, quiet_seconds=0)
    assert Trace(id="", calls=calls, under_way=(open_call,)).seconds == 11
