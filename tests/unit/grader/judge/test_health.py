"""While the judge is down no call fails, and nobody waits for ever once it is up again."""

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from protocol.messages import Ungradable

import services.grader.judge.judge as judge_module
from services.grader.judge.chat import ChatError
from services.grader.judge.judge import (
    Answer,
    Health,
    Judge,
    Pace,
    Slots,
    adjust_calls,
)
from services.grader.judge.settings import JudgeSettings
from tests.unit.grader.judge_server import (
    MODEL,
    YES,
    Behaviour,
    ScriptedServer,
    a_question,
    ask,
    counted,
    ended,
    grades,
    hangs,
    judge_settings,
    replies,
    says,
    tells_right_from_wrong,
    until,
)

pytestmark = pytest.mark.anyio

SETTINGS = JudgeSettings("http://unused/v1", MODEL, retest_s=(0.001, 0.004))


@pytest.mark.parametrize(
    ("exam", "why", "refuses_all"),
    [
        (replies(b"no model x", 404), "404: no model x; check WEIR_JUDGE_MODEL=judge", True),
        (replies(b"effort?", 400), "400: effort?", True),
        (replies(b"dead", 500), "500: dead", False),
        (grades(), "gave 1 to a wrong solution and 1 to a right one", False),
        (says(None), "no verdict", False),
    ],
)
async def test_a_judge_that_fails_its_self_test_says_why(
    exam: Behaviour, why: str, refuses_all: bool, server: ScriptedServer
) -> None:
    server.exam = exam
    async with Judge(judge_settings(server)) as judge:
        await until(lambda: judge.why_down != "starting")
        assert why in judge.why_down
        assert (judge.is_up, judge.refuses_all) == (False, refuses_all)
        server.exam = tells_right_from_wrong
        await until(lambda: judge.is_up)
        assert not judge.refuses_all


async def test_calls_survive_a_server_that_goes_away_and_comes_back(server: ScriptedServer) -> None:
    server.script = [grades(after_s=0.05)]
    async with Judge(judge_settings(server, concurrency=8)) as judge:
        calls = [asyncio.create_task(ask(judge, f"Is it {n}?")) for n in range(30)]
        await until(lambda: len(server.requests) > 10)
        assert counted("weir_judge_up", model=MODEL) == 1
        await server.go_away()
        await until(lambda: not judge.is_up)
        assert "cannot be reached" in judge.why_down
        assert counted("weir_judge_up", model=MODEL) == 0
        late = asyncio.create_task(ask(judge, "Is it too late?"))
        await asyncio.sleep(0.1)
        assert not all(call.done() for call in calls)
        assert not late.done()
        await server.come()
        assert await ended(*calls, late) == [YES] * 31


async def test_a_server_that_hangs_is_noticed_however_many_calls_wait(
    server: ScriptedServer,
) -> None:
    async with Judge(judge_settings(server, timeout_s=0.5, concurrency=2)) as judge:
        await until(lambda: judge.is_up)
        server.script = [hangs]
        server.exam = hangs
        calls = [asyncio.create_task(ask(judge, f"Is it {n}?")) for n in range(200)]
        await until(lambda: not judge.is_up)
        assert len(server.requests) <= 2 * 3, "two slots, three attempts"
        for call in calls:
            call.cancel()


async def test_whoever_uses_a_judge_fails_with_its_watcher(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(judge_module, "examine")
    with pytest.raises(ExceptionGroup) as failure:
        async with Judge(judge_settings(server)):
            await asyncio.sleep(60)
    assert isinstance(failure.value.exceptions[0], NameError)


@pytest.mark.parametrize("samples", [1, 3])
async def test_nobody_else_is_given_up_for_a_question_that_kills_the_judge(
    samples: int, server: ScriptedServer
) -> None:
    most_beside: list[int] = []
    outages: set[asyncio.Task[None]] = set()

    async def outage() -> None:
        """Away until that is noticed."""
        await server.go_away()
        await until(lambda: not judge.is_up)
        await server.come()

    async def behave(server: ScriptedServer, body: dict[str, Any], writer: Any) -> None:
        if "poison" in body["messages"][-1]["content"]:
            most_beside.append(server.in_flight - 1)
            await asyncio.sleep(0.005)  # meanwhile the others arrive
            if all(task.done() for task in outages):
                outages.add(asyncio.create_task(outage()))
            await hangs(server, body, writer)
        else:
            await grades(after_s=0.01)(server, body, writer)

    async def ask_samples(text: str) -> list[Answer]:
        return await judge.ask(a_question(text, temperature=1.0), samples)

    server.script = [behave]
    async with Judge(judge_settings(server)) as judge:
        texts = ["poison", *(f"Is it {n}?" for n in range(20))]
        poison, *other_answers = await ended(*map(ask_samples, texts))
    assert other_answers == [[YES] * samples] * 20
    assert poison == [Ungradable(reason="judge_failed")] * samples
    assert most_beside[-1] == 0
    await ended(*outages)


@pytest.mark.parametrize("where", ["down", "slot", "flight", "pause", "doubt"])
async def test_a_call_can_be_cancelled_wherever_it_waits(
    where: str, server: ScriptedServer
) -> None:
    settings = judge_settings(server, concurrency=1, pauses_s=(999,))
    async with Judge(settings) as judge:
        if where == "down":
            server.exam = replies(b"", 500)
        await until(lambda: judge.is_up or where == "down")
        behaviours = {"slot": hangs, "flight": hangs, "doubt": replies(b"", 404)}
        server.script = [behaviours.get(where, replies(b"", 500))]
        if where == "doubt":
            server.exam = hangs
        calls = [asyncio.create_task(ask(judge, f"Is it {n}?")) for n in range(5)]
        await asyncio.sleep(0.1)
        unlucky = calls[1:] if where == "slot" else calls
        for call in unlucky:
            call.cancel()
        cancelled = await ended(*unlucky)
        assert all(isinstance(task, asyncio.CancelledError) for task in cancelled)
        server.script = [grades()]
        server.exam = tells_right_from_wrong
        calls[0].cancel()
        if where != "doubt":  # there the self-test, which hangs, goes on
            assert await ended(ask(judge)) == [YES]


@dataclass
class Weather:
    """A self-test that passes while it is fair."""

    is_fair: bool = True
    num_tests: int = 0

    async def test(self) -> str | None:
        self.num_tests += 1
        was_fair = self.is_fair
        await asyncio.sleep(0.002)
        return None if was_fair and self.is_fair else f"storm {self.num_tests}"


async def test_doubts_before_a_test_has_ended_share_it_and_an_outage_clears_nobody() -> None:
    weather = Weather()
    health = Health(SETTINGS, weather.test)
    watching = asyncio.create_task(health.watch_forever())
    outages = await health.wait_until_up()
    assert await ended(*(health.passes_test(outages) for _ in range(1000))) == [True] * 1000
    assert weather.num_tests == 2
    weather.is_fair = False
    assert not await health.passes_test(outages)
    weather.is_fair = True
    assert await health.wait_until_up() > outages
    assert not await health.passes_test(outages), "it is up, but was down meanwhile"
    watching.cancel()


async def test_who_waits_to_be_alone_is_passed_by_nobody() -> None:
    slots = Slots(3)
    order = []

    async def enter(name: str, slot: AbstractAsyncContextManager[None]) -> None:
        async with slot:
            order.append(name)
            await asyncio.sleep(0.01)
            order.append(name.upper())

    names = ["a", "b", "alone c", "d", "e", "alone f", "g"]
    slot_contexts = [slots.take(alone="alone" in name) for name in names]
    await ended(*map(enter, names, slot_contexts))
    rounds = [["a", "b"], ["alone c"], ["d", "e"], ["alone f"], ["g"]]
    assert order == [name for names in rounds for name in (*names, *map(str.upper, names))]


async def test_as_many_calls_go_at_once_as_are_answered_in_good_time() -> None:
    pace = Pace(64, timeout_s=60)
    may_end = asyncio.Event()
    failure = ChatError("judge_failed", "")
    inside = 0

    async def call(error: ChatError | None = None) -> None:
        nonlocal inside
        with suppress(ChatError):
            async with pace.limit():
                inside += 1
                await may_end.wait()
                if error is not None:
                    raise error

    async def let(number: int, error: ChatError | None = None) -> int:
        """How many of so many calls went at once."""
        nonlocal inside
        inside = 0
        may_end.clear()
        calls = [asyncio.create_task(call(error)) for _ in range(number)]
        await until(lambda: inside + counted("weir_judge_waiting") == number)
        at_once = inside
        may_end.set()
        await ended(*calls)
        return at_once

    assert [await let(number) for number in (20, 32, 40)] == [20, 32, 33]
    assert 33 < await let(200) <= 64 == await let(200)
    assert [await let(number, failure) for number in (64, 64)] == [64, 8]
    assert [await let(number) for number in (8, 20)] == [8, 9]


@pytest.mark.parametrize("speed", [1, 5, 40])  # calls a second
@pytest.mark.parametrize("graders", [1, 4])
def test_growth_lets_no_call_of_a_busy_judge_run_out_of_time(speed: int, graders: int) -> None:
    calls = [8] * graders
    underway = [0] * graders
    slowest = 0.0
    line = deque[tuple[float, int]]()  # when a call began, and whose it is
    for number in range(300 * speed):
        now = number / speed
        for grader in range(graders):
            line += [(now, grader)] * (calls[grader] - underway[grader])
            underway[grader] = max(calls[grader], underway[grader])
        began, grader = line.popleft()
        underway[grader] -= 1
        seconds = now + 1 / speed - began
        slowest = max(slowest, seconds)
        calls[grader] = adjust_calls(calls[grader], seconds, 120, has_failed=False)
    assert 30 <= sum(calls) / speed <= slowest <= 60 + 2 * graders / speed
