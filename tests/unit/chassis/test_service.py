"""A process reports its work, and waits for an event, a time or its end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from prometheus_client import CollectorRegistry
from protocol.exchange import Exchange
from protocol.messages import Doing
from starlette.responses import PlainTextResponse

from deploy.processes import free_ports
from services.chassis import health, metrics, service
from services.chassis.activity import Activity
from services.chassis.deployment import Deployment
from services.chassis.faults import RestartRequired, StartupFailed, WorkerFault
from services.chassis.metrics import Phases
from services.chassis.service import find_restart_reason, summarize_error, wait_until_set


def test_a_process_does_what_it_began_last_and_has_not_ended() -> None:
    activity = Activity()
    activity.set_idle(Doing.IDLE)
    with activity.during(Doing.LOADS_VERSION, 3):
        with activity.during(Doing.STARTS_ENGINE):
            assert activity.now.doing is Doing.STARTS_ENGINE
        activity.set_idle(Doing.SAMPLES)
        assert (activity.now.doing, activity.now.number) == (Doing.LOADS_VERSION, 3)
    assert activity.now.doing is Doing.SAMPLES


def test_what_is_begun_side_by_side_may_end_in_any_order() -> None:
    activity = Activity()
    first = activity.during(Doing.TRAINS)
    second = activity.during(Doing.WAITS_FOR_GROUPS, waits_for=lambda: ["a"])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert list(activity.now.waits_for()) == ["a"]
    second.__exit__(None, None, None)
    assert activity.now is activity.idle


def test_saying_the_same_again_does_not_make_it_new() -> None:
    activity = Activity()
    idle = activity.idle
    activity.set_idle(idle.doing)
    assert activity.idle is idle
    for keys in (["train:1"], ["train:2", "train:1"]):
        activity.set_held(keys)
    assert activity.holds["train:1"] < activity.holds["train:2"]
    activity.set_held(["train:2"])
    assert list(activity.holds) == ["train:2"]


@pytest.mark.parametrize(
    ("error", "words", "job_id"),
    [
        (ExceptionGroup("of tasks", [ValueError("one\n  two")]), "one two", None),
        (ExceptionGroup("a", [StartupFailed("why", "job")]), "why", "job"),
        (KeyboardInterrupt(), "KeyboardInterrupt", None),
        (ValueError("x" * 1000), "x" * 299 + "…", None),
    ],
)
def test_a_failure_is_told_on_one_line_that_has_an_end_and_names_its_job(
    error: BaseException, words: str, job_id: str | None
) -> None:
    failure = summarize_error(error)
    assert (failure.words, failure.job_id) == (words, job_id)


@pytest.mark.anyio
async def test_a_wait_ends_with_the_event_or_with_its_time() -> None:
    event = asyncio.Event()
    assert not await wait_until_set(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await wait_until_set(event, 3600)
    assert await wait_until_set(event, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("by_time", [False, True])
async def test_a_cancellation_that_comes_with_the_end_of_the_wait_is_not_swallowed(
    turns: int, by_time: bool
) -> None:
    event = asyncio.Event()

    async def wait_and_continue() -> None:
        await wait_until_set(event, 0.01 if by_time else 3600)
        await asyncio.sleep(3600)

    going_on = asyncio.create_task(wait_and_continue())
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
    if scope["path"] == "/key":
        scope["key"] = "any"
    await PlainTextResponse("in")(scope, receive, send)


def make_client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[service._Server, int]]:
    """A server that answers, and its port."""
    port = next(free_ports())
    values = {"WEIR_REDIS_URL": "redis://x", "WEIR_DATA_DIR": "/x", "WEIR_PORT": str(port)}
    running = service.Service(
        "test", Deployment.from_environment(values), cast(Exchange, SimpleNamespace())
    )
    async with service._serving(running, answering) as (server,):
        while not server.started:
            await asyncio.sleep(0.01)
        yield server, port


@pytest.mark.anyio
async def test_headers_that_are_too_large_are_refused() -> None:
    async with served() as (_, port), make_client(port) as client:
        assert (await client.get("/")).text == "in"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nX-A: " + b"a" * 2**15)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


@pytest.mark.anyio
async def test_idle_connections_take_nothing_from_requests() -> None:
    async with served() as (server, port), make_client(port) as client:
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(800)]
        while len(server.server_state.connections) < 800:
            await asyncio.sleep(0.01)
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/")).text == "in"
        for writer in writers:
            writer.close()


@pytest.mark.anyio
async def test_of_too_many_connections_the_oldest_go_that_have_shown_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "_MAX_ANONYMOUS_CONNECTIONS", 3)
    async with served() as (_, port):
        with_key, without = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for path, (reader, writer) in ((b"/key", with_key), (b"/", without)):
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"\r\n\r\nin")
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for reader, _ in (without, *idle[:2]):
            with suppress(ConnectionResetError):
                async with asyncio.timeout(30):
                    await reader.read()  # until it is closed
        for reader, writer in (with_key, *idle[2:]):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"\r\n\r\nin")
            writer.close()


@pytest.mark.anyio
async def test_a_connection_without_a_whole_request_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "HEADERS_TIMEOUT_S", 0.2)
    async with served() as (_, port):
        for sent in (b"", b"GET / HTTP/1.1\r\nX-A:"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            async with asyncio.timeout(30):
                assert await reader.read() == b""
            writer.close()


@pytest.mark.parametrize(
    ("errors", "orderly"),
    [
        ([RestartRequired("a"), RestartRequired("b")], True),
        ([RestartRequired("a"), WorkerFault("b")], False),
    ],
)
def test_an_end_is_in_good_order_if_nothing_but_other_work_asked_for_it(
    errors: list[Exception], orderly: bool
) -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("more", errors)])
    assert find_restart_reason(group) is (errors[0] if orderly else None)


# ---------------------------------------------------------------------- health


@pytest.fixture
def port() -> Iterator[str]:
    """A server that is well at /healthz, and nowhere else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 404)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield str(server.server_port)
    server.shutdown()
    server.server_close()


def test_a_service_that_answers_is_told_from_one_that_does_not(
    port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for value, status, response in (
        (port, 0, f"127.0.0.1:{port}/healthz answers"),
        ("1", 1, "127.0.0.1:1/healthz: "),
        ("", 1, "WEIR_PORT"),
    ):
        monkeypatch.setenv("WEIR_PORT", value)
        assert health.main() == status
        assert response in capsys.readouterr().out


# ---------------------------------------------------------------------- phases


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def test_all_time_goes_to_one_phase_or_to_rest(clock: Clock) -> None:
    phases = Phases()
    registry = CollectorRegistry()
    registry.register(phases)
    phases.name("loading", "sampling", idle="idle")
    clock.now = 1
    with phases.during("sampling"):
        clock.now = 3
        with phases.during("sampling"):
            clock.now = 6
        with phases.during("loading"), phases.during("sampling"):
            clock.now = 10
            assert phases.seconds() == {"loading": 4, "sampling": 5, "idle": 1}
        clock.now = 12
    clock.now = 20
    assert phases.seconds() == {"sampling": 7, "loading": 4, "idle": 9}
    assert sum(phases.seconds().values()) == clock.now
    assert registry.get_sample_value("weir_phase_seconds_total", {"phase": "sampling"}) == 7
