"""While the judge is down no call fails, and nobody waits for ever once it is up again."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import REGISTRY
from protocol.messages import Ungradable

from services.grader.judge import self_test
from services.grader.judge.form import Form, one_of
from services.grader.judge.health import Health, JudgeDown
from services.grader.judge.judge import Answer, Judge
from services.grader.judge.question import Question
from services.grader.judge.settings import JudgeSettings
from tests.unit.grader.judge.asked import ended
from tests.unit.grader.judge_server import (
    MODEL,
    Behaviour,
    ScriptedServer,
    grades,
    hangs,
    replies,
    says,
    settings_for,
    tells_right_from_wrong,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SETTINGS = JudgeSettings("http://unused/v1", MODEL, retest_s=(0.001, 0.004))
YES = {"verdict": "yes"}


def a_question(text: str = "Is it?", **changes: Any) -> Question:
    turn = {"role": "user", "content": text}
    return Question((turn,), Form({"verdict": one_of(("yes", "no"))}), **changes)


async def ask(judge: Judge, text: str = "Is it?") -> Answer:
    [answer] = await judge.ask(a_question(text))
    return answer


DEAD = replies(b"dead", 500)


@pytest.mark.parametrize(
    ("exam", "why"),
    [
        (replies(b"no model x", 404), "answers 404: no model x; check WEIR_JUDGE_MODEL=judge"),
        (replies(b"key?", 401), "WEIR_JUDGE_API_KEY"),
        (replies(b"effort?", 400), "answers 400: effort?"),
        (DEAD, "answers 500: dead"),
        (replies(b"<html>"), "no chat completion; check WEIR_JUDGE_URL"),
        (grades(), "gave 1 to a wrong solution and 1 to a right one"),
        (says(None), "gives no verdict on a solution known to be right or wrong: there is no text"),
        (hangs, "did not answer within 0.2 s"),
    ],
)
async def test_a_judge_that_fails_its_self_test_says_why(
    exam: Behaviour, why: str, server: ScriptedServer
) -> None:
    server.exam = exam
    timeout_s = 0.2 if exam is hangs else 5.0
    async with Judge(settings_for(server, timeout_s=timeout_s)) as judge:
        await until(lambda: judge.why_down != "starting")
        assert why in judge.why_down
        assert not judge.is_up
        assert judge.refuses_all == (" answers " in judge.why_down and exam is not DEAD)
        server.exam = tells_right_from_wrong
        await until(lambda: judge.is_up)
        assert not judge.refuses_all


async def test_calls_survive_a_server_that_goes_away_and_comes_back(server: ScriptedServer) -> None:
    server.script = [grades(after_s=0.05)]
    async with Judge(settings_for(server, concurrency=8)) as judge:
        calls = [asyncio.create_task(ask(judge, f"Is it {n}?")) for n in range(60)]
        await until(lambda: len(server.asked) > 20)
        assert REGISTRY.get_sample_value("weir_judge_up", {"model": MODEL}) == 1
        await server.go_away()
        await until(lambda: not judge.is_up)
        assert "cannot be reached" in judge.why_down
        assert REGISTRY.get_sample_value("weir_judge_up", {"model": MODEL}) == 0
        late = asyncio.create_task(ask(judge, "Is it too late?"))
        await asyncio.sleep(0.3)
        assert sum(call.done() for call in calls) < 60
        assert not late.done()
        await server.come()
        assert await ended(*calls, late) == [YES] * 61


async def test_a_server_that_hangs_is_noticed_however_many_calls_wait(
    server: ScriptedServer,
) -> None:
    async with Judge(settings_for(server, timeout_s=0.1, concurrency=2)) as judge:
        await until(lambda: judge.is_up)
        server.script, server.exam = [hangs], hangs
        calls = [asyncio.create_task(ask(judge, f"Is it {n}?")) for n in range(200)]
        await until(lambda: not judge.is_up, within_s=5)
        assert len(server.asked) <= 2 * 3, "two slots, three attempts"
        for call in calls:
            call.cancel()


async def test_a_judge_that_refuses_every_call_makes_calls_wait(server: ScriptedServer) -> None:
    unknown = replies(b"no such model", 404)
    async with Judge(settings_for(server)) as judge:
        await until(lambda: judge.is_up)
        server.script, server.exam = [unknown], unknown
        call = asyncio.create_task(ask(judge))
        await until(lambda: not judge.is_up)
        assert "check WEIR_JUDGE_MODEL" in judge.why_down
        assert not judge.refuses_all, "it was up, and may be again"
        assert len(server.asked) == 1, "there is no use in trying again at once"
        server.script, server.exam = [grades()], tells_right_from_wrong
        assert await ended(call) == [YES]


async def test_of_a_judge_that_is_not_patient_questions_end_when_it_is_down(
    server: ScriptedServer,
) -> None:
    async with Judge(settings_for(server, patient=False)) as judge:
        assert await ask(judge) == YES
        server.script = [hangs]
        call = asyncio.create_task(ask(judge, "Is it so?"))
        await until(lambda: server.in_flight)
        await server.go_away()
        for asked in (call, ask(judge, "And now?")):
            with pytest.raises(JudgeDown, match="cannot be reached"):
                await asked
        await server.come()


async def test_whoever_uses_a_judge_fails_with_its_watcher(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(self_test, "examine")
    with pytest.raises(ExceptionGroup) as failure:
        async with Judge(settings_for(server)):
            await asyncio.sleep(60)
    assert isinstance(failure.value.exceptions[0], AttributeError)
    with pytest.raises(BrokenPipeError):
        async with Judge(settings_for(server)):
            raise BrokenPipeError


async def dies_for_a_moment(server: ScriptedServer, _: dict[str, Any], __: Any) -> None:
    await asyncio.sleep(0.005)  # meanwhile the others arrive
    await server.restart(after_s=0.05)


@pytest.mark.parametrize("samples", [1, 3])
async def test_nobody_else_is_given_up_for_a_question_that_kills_the_judge(
    samples: int, server: ScriptedServer
) -> None:
    most_beside: list[int] = []

    async def behave(server: ScriptedServer, body: dict[str, Any], writer: Any) -> None:
        if "poison" in body["messages"][-1]["content"]:
            most_beside.append(server.in_flight - 1)
            await dies_for_a_moment(server, body, writer)
        else:
            await grades(after_s=0.01)(server, body, writer)

    async def asked(judge: Judge, text: str) -> list[Answer]:
        return await judge.ask(a_question(text, temperature=1.0), samples)

    server.script = [behave]
    async with Judge(settings_for(server)) as judge:
        texts = ["poison", *(f"Is it {n}?" for n in range(20))]
        poison, *others = await ended(*(asked(judge, text) for text in texts))
    assert others == [[YES] * samples] * 20
    assert poison == [Ungradable(reason="judge_failed")] * samples
    assert most_beside[-1] == 0


@pytest.mark.parametrize("where", ["down", "slot", "flight", "pause", "doubt"])
async def test_a_call_can_be_cancelled_wherever_it_waits(
    where: str, server: ScriptedServer
) -> None:
    settings = settings_for(server, concurrency=1, timeout_s=5, pauses_s=(5,))
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
        assert all(isinstance(each, asyncio.CancelledError) for each in cancelled)
        server.script, server.exam = [grades()], tells_right_from_wrong
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
    outages = await health.until_up()
    assert await ended(*(health.clears(outages) for _ in range(1000))) == [True] * 1000
    assert weather.num_tests == 2
    weather.is_fair = False
    assert not await health.clears(outages)
    weather.is_fair = True
    assert await health.until_up() > outages
    assert not await health.clears(outages), "it is up, but was down meanwhile"
    watching.cancel()


@pytest.mark.parametrize("seed", range(8))
async def test_nobody_is_forgotten_in_changing_weather(seed: int) -> None:
    chance = random.Random(seed)
    weather = Weather()
    health = Health(SETTINGS, weather.test)

    async def call() -> bool:
        for _ in range(5):
            outages = await health.until_up()
            await asyncio.sleep(chance.random() * 0.004)
            await health.clears(outages)
        return True

    async def change() -> None:
        for _ in range(60):
            await asyncio.sleep(chance.random() * 0.004)
            weather.is_fair = not weather.is_fair
            chance.choice(calls).cancel() if chance.random() < 0.3 else None
        weather.is_fair = True

    watching = asyncio.create_task(health.watch_forever())
    calls = [asyncio.create_task(call()) for _ in range(100)]
    await change()
    results = await ended(*calls, within_s=10)
    assert all(each is True or isinstance(each, asyncio.CancelledError) for each in results)
    assert results.count(True) > 50
    watching.cancel()
