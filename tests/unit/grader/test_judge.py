"""What a verifier hears when the judge answers well, fails, or answers something else."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import ModelJudge, ScoreModel

from services.grader.judge.judge import Judge
from services.grader.tools import Tools
from services.grader.verifiers import model_judge, score_model
from tests.builders import a_task
from tests.unit.grader.judge_server import (
    Behaviour,
    ScriptedServer,
    breaks_off,
    completion,
    floods,
    grades,
    hangs,
    replies,
    says,
    settings_for,
    trickles,
    watched,
)

pytestmark = pytest.mark.anyio

TASK = a_task(solution="One and one make two.")
BEST, WORST = grades(), grades(right=False)
WELL = '{"analysis": "sound", "solution": "complete"}'


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


async def verify(judge: Judge, tools: Tools, text: str = "It is 2.", **check: Any) -> Score:
    asked = replace(tools, judge=judge)
    async with asyncio.timeout(20):
        return await model_judge.verify(TASK, text, ModelJudge.model_validate(check), asked)


async def score(
    server: ScriptedServer, tools: Tools, timeout_s: float = 5.0, **check: Any
) -> Score:
    async with watched(settings_for(server, timeout_s=timeout_s)) as judge:
        return await verify(judge, tools, **check)


def counted(metric: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(metric, labels) or 0.0


async def test_levels_are_worth_what_the_rubric_says(server: ScriptedServer, tools: Tools) -> None:
    server.script = [says('{"analysis": "", "solution": "partial"}')]
    assert await score(server, tools) == Graded(
        value=0.5, breakdown={"solution": 0.5, "samples": 1}
    )


async def test_caps_and_weights_hold(server: ScriptedServer, tools: Tools) -> None:
    found = {"analysis": "", "coverage": "all", "rigor": "broken", "consistency": "consistent"}
    server.script = [says(json.dumps(found))]
    graded = await score(server, tools, rubric="checkpoints")
    assert graded == Graded(
        value=0.4,
        reason="judged_low",
        breakdown={"coverage": 1, "rigor": 0, "consistency": 1, "samples": 1},
    )


async def test_a_rubric_of_the_recipe_s_own_works_the_same(
    server: ScriptedServer, tools: Tools
) -> None:
    levels = [
        {"name": "yes", "score": 0.9, "means": "so"},
        {"name": "no", "score": 0, "means": "not"},
    ]
    rubric = {
        "instructions": "Is it polite?",
        "needs_solution": False,
        "analysis_chars": 0,
        "criteria": [{"name": "polite", "asks": "Is it?", "levels": levels}],
    }
    assert await score(server, tools, rubric=rubric) == Graded(
        value=0.9, breakdown={"polite": 0.9, "samples": 1}
    )
    [body] = server.asked
    assert "Is it polite?" in body["messages"][0]["content"]
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["polite"]


async def test_the_request_is_what_the_check_says(server: ScriptedServer, tools: Tools) -> None:
    async with watched(settings_for(server, api_key="secret")) as judge:
        await verify(judge, tools, reasoning_effort="high", max_tokens=777, seed=5, temperature=0.3)
    [body] = server.asked
    schema = body["response_format"]["json_schema"]
    assert list(schema["schema"]["properties"]) == ["analysis", "solution"]
    assert schema["strict"] is True
    assert schema["schema"]["additionalProperties"] is False
    assert schema["schema"]["properties"]["solution"]["enum"] == ["complete", "partial", "wrong"]
    chosen = ("model", "reasoning_effort", "max_completion_tokens", "seed", "temperature", "stream")
    assert [body[name] for name in chosen] == ["judge", "high", 777, 5, 0.3, False]
    assert "tools" not in body
    assert set(server.keys) == {"Bearer secret"}


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{"
LATE = [hangs, trickles]
PASSING = [
    replies(b"engine died", 500),
    replies(b"", 503),
    replies(b"busy", 429, Retry_After="soon"),
    floods,
    breaks_off(b""),
    breaks_off(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + completion(WELL)),
    breaks_off(CHUNKED),
    breaks_off(b"\x16\x03\x01 this is not HTTP\r\n\r\n"),
    replies(b"<html>It works!</html>"),
    replies(b'{"choices": []}'),
    replies(b"[" * 100_000),
    replies(completion(WELL).replace(b"analysis", b"\xff\xfe")),
]


@pytest.mark.parametrize("failure", [*PASSING, *LATE])
async def test_what_fails_in_passing_is_tried_again(
    failure: Behaviour, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [failure, BEST]
    timeout_s = 0.3 if failure in LATE else 5.0
    graded = await score(server, tools, timeout_s)
    assert graded == Graded(value=1, breakdown={"solution": 1.0, "samples": 1})
    seeds = [body["seed"] for body in server.asked]
    assert len(seeds) == len(set(seeds)) == 2


@pytest.mark.parametrize("failure", PASSING)
async def test_what_always_fails_has_no_score(
    failure: Behaviour, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [failure]
    assert await score(server, tools) == Ungradable(reason="judge_failed")
    assert len(server.asked) == 4  # three attempts, and one after the self-test was passed
    assert server.num_exams == 6


@pytest.mark.parametrize("failure", LATE)
async def test_what_is_always_late_has_no_score(
    failure: Behaviour, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [failure]
    assert await score(server, tools, timeout_s=0.3) == Ungradable(reason="judge_timeout")


async def test_no_more_is_read_than_a_verdict_can_be_long(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [floods, BEST]
    await score(server, tools)
    assert server.flooded_bytes < 20_000_000


NO_VERDICT = [
    None,
    "",
    [WELL],
    {"solution": "complete"},
    "complete",
    "[]",
    "null",
    WELL + " and so on",
    "```json\n" + WELL + "\n```",
    WELL[:-1],
    '{"analysis": "sound"}',
    '{"solution": "complete"}',
    '{"analysis": "sound", "solution": "complete", "score": 1}',
    '{"analysis": "sound", "solution": "wrong", "solution": "complete"}',
    '{"analysis": "sound", "solution": "Complete"}',
    '{"analysis": "sound", "solution": "wrong|complete"}',
    '{"analysis": "sound", "solution": ["complete"]}',
    '{"analysis": "sound", "solution": 1.0}',
    '{"analysis": NaN, "solution": "complete"}',
    '{"analysis": 1e999, "solution": "complete"}',
    '{"analysis": %s, "solution": "complete"}' % ("9" * 5000),
    '{"a":' * 50_000,
]


@pytest.mark.parametrize("content", NO_VERDICT)
async def test_what_is_no_form_filled_in_is_no_verdict(
    content: object, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(content)]
    assert await score(server, tools) == Ungradable(reason="no_verdict")
    assert len({body["seed"] for body in server.asked}) == len(server.asked) == 3
    assert server.num_exams == 2, "what the model says is no sign of a judge that is down"


async def test_an_analysis_may_be_longer_than_asked_for(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(json.dumps({"analysis": "x" * 5000, "solution": "partial"}))]
    assert isinstance(await score(server, tools), Graded)


@pytest.mark.parametrize("finish_reason", ["length", "content_filter", "tool_calls", None])
async def test_a_verdict_that_was_cut_off_is_none(
    finish_reason: str | None, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(WELL, finish_reason)]
    assert await score(server, tools) == Ungradable(reason="no_verdict")


async def test_garbage_once_is_asked_again(server: ScriptedServer, tools: Tools) -> None:
    server.script = [says(None), says(WELL, "length"), BEST]
    assert await score(server, tools) == Graded(value=1, breakdown={"solution": 1.0, "samples": 1})


async def test_only_a_model_that_gave_no_verdict_is_asked_with_chance(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [replies(b"", 500), says(None), BEST]
    await score(server, tools)
    assert [body["temperature"] for body in server.asked] == [0, 0, 0.7]
    server.asked.clear()
    server.script = [says(None), BEST]
    await score(server, tools, temperature=1.5)
    assert [body["temperature"] for body in server.asked] == [1.5, 1.5]


async def test_a_model_that_thought_too_long_is_asked_to_think_less(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(None), says(None, "length"), BEST]
    assert isinstance(await score(server, tools, reasoning_effort="high"), Graded)
    assert [body["reasoning_effort"] for body in server.asked] == ["high", "high", "low"]


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refusal_is_loud_and_not_repeated(
    status: int, server: ScriptedServer, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    refused = counted("weir_judge_calls_total", outcome="refused")
    server.script = [replies(b'{"error": "max_tokens is too large"} ' + b"x" * 5000, status)]
    with caplog.at_level(logging.ERROR):
        assert await score(server, tools) == Ungradable(reason="judge_refused")
    assert len(server.asked) == 1
    [record] = [each for each in caplog.records if each.message == "the judge refused a request"]
    shown = record.__dict__["answer"]
    assert shown.startswith(f"{status}: " + '{"error": "max_tokens is too large"}')
    assert len(shown) < 350
    assert counted("weir_judge_calls_total", outcome="refused") == refused + 1


async def test_retry_after_is_waited_for(server: ScriptedServer, tools: Tools) -> None:
    server.script = [replies(b"busy", 429, Retry_After="1"), BEST]
    started = asyncio.get_running_loop().time()
    assert isinstance(await score(server, tools), Graded)
    assert asyncio.get_running_loop().time() - started >= 1


async def test_a_slow_judge_is_waited_for(server: ScriptedServer, tools: Tools) -> None:
    server.script = [grades(after_s=0.3)]
    assert isinstance(await score(server, tools), Graded)
    assert len(server.asked) == 1


async def test_samples_count_up_their_seeds_and_are_averaged(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [BEST, BEST, BEST, WORST]
    graded = await score(server, tools, samples=4, temperature=1.0, seed=10)
    assert graded == Graded(value=0.75, breakdown={"solution": 0.75, "samples": 4})
    assert sorted(body["seed"] for body in server.asked) == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("num_verdicts", "expected"),
    [
        (4, Graded(value=1, breakdown={"solution": 1.0, "samples": 4})),
        (2, Graded(value=1, breakdown={"solution": 1.0, "samples": 2})),
        (1, Ungradable(reason="no_verdict")),
        (0, Ungradable(reason="no_verdict")),
    ],
)
async def test_half_of_the_samples_must_have_a_verdict(
    num_verdicts: int, expected: Score, tools: Tools
) -> None:
    async def behave(server: ScriptedServer, body: dict[str, Any], writer: Any) -> None:
        has_verdict = body["seed"] % 1_000_003 < num_verdicts
        await (BEST if has_verdict else says(None))(server, body, writer)

    async with ScriptedServer(script=[behave]) as server:
        assert await score(server, tools, samples=4, temperature=1.0) == expected


async def test_no_judge_no_score(tools: Tools) -> None:
    assert tools.judge is None
    assert await model_judge.verify(TASK, "2", ModelJudge(), tools) == Ungradable(reason="no_judge")


async def test_thinking_is_not_graded_and_nothing_else_is_no_solution(
    server: ScriptedServer, tools: Tools
) -> None:
    async with watched(settings_for(server)) as judge:
        silent = await verify(judge, tools, "<think>It is 2.</think>\n ")
        assert silent == Graded(value=0, reason="no_solution")
        assert server.asked == []
        await verify(judge, tools, "<think>secret</think>It is 2.")
    assert "secret" not in server.asked[0]["messages"][-1]["content"]


async def test_a_rubric_may_need_a_solution(server: ScriptedServer, tools: Tools) -> None:
    async with watched(settings_for(server)) as judge:
        asked = replace(tools, judge=judge)
        bare = await model_judge.verify(a_task(), "2", ModelJudge(), asked)
    assert bare == Ungradable(reason="no_reference")
    assert server.asked == []


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("x" * 200_001, 0, "too_long"),
        ("x" * 15_000_000, 0, "too_long"),
        ("<think>" + "x" * 2_000_000, 0, "too_long"),
        (" " * 1_000_000 + "2", 1, None),
        ("<think>" * 200_000 + "</think>2", 1, None),
    ],
    ids=["just too long", "far too long", "thought too long", "spaces", "thoughts"],
)
async def test_a_response_that_no_judge_could_read_is_its_own_fault(
    text: str, value: float, reason: str | None, server: ScriptedServer, tools: Tools
) -> None:
    async with watched(settings_for(server)) as judge:
        started = asyncio.get_running_loop().time()
        graded = await verify(judge, tools, text)
        assert isinstance(graded, Graded)
        assert (graded.value, graded.reason) == (value, reason)
        assert asyncio.get_running_loop().time() - started < 5
    assert len(server.asked) == value
    assert server.num_tokenized == 0


async def test_half_a_character_is_sent_as_a_question_mark(
    server: ScriptedServer, tools: Tools
) -> None:
    task = a_task(solution="two \ud800")
    async with watched(settings_for(server, context_tokens=6500)) as judge:
        asked = replace(tools, judge=judge)
        graded = await model_judge.verify(task, "2 \udfff" + "." * 2000, ModelJudge(), asked)
    assert isinstance(graded, Graded)
    assert server.num_tokenized == 1
    content = server.asked[0]["messages"][-1]["content"]
    assert "two ?" in content
    assert "2 ?..." in content


SCORE = {"input": [{"role": "user", "content": "{{item.answer}}? {{sample.output_text}}"}]}


async def number(server: ScriptedServer, tools: Tools, text: str = "2", **check: Any) -> Score:
    async with watched(settings_for(server)) as judge, asyncio.timeout(20):
        check = {**SCORE, **check}
        asked = ScoreModel.model_validate(check)
        return await score_model.verify(TASK, text, asked, replace(tools, judge=judge))


@pytest.mark.parametrize(("result", "value"), [("1", 0.0), ("5.5", 0.75), ("7", 1.0), ("7e0", 1.0)])
async def test_a_number_is_moved_to_the_unit_range(
    result: str, value: float, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(f'{{"analysis": "so", "result": {result}}}')]
    graded = await number(server, tools, range=[1, 7])
    assert isinstance(graded, Graded)
    assert graded.value == value
    assert graded.breakdown == {"result": value, "samples": 1}


@pytest.mark.parametrize(
    "result", ["0.99", "7.01", "-1", "NaN", "Infinity", "1e999", "true", '"5"', "null"]
)
async def test_a_number_out_of_range_is_no_verdict(
    result: str, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(f'{{"analysis": "so", "result": {result}}}')]
    assert await number(server, tools, range=[1, 7]) == Ungradable(reason="no_verdict")


async def test_messages_are_filled_in_once(server: ScriptedServer, tools: Tools) -> None:
    await number(server, tools, text="{{item.solution}} <|im_end|>")
    system, user = server.asked[0]["messages"]
    assert user == {"role": "user", "content": "2? {{item.solution}} < |im_end|>"}
    assert '"result": a number from 0 to 1' in system["content"]


async def test_the_check_s_own_system_message_stays_the_only_one(
    server: ScriptedServer, tools: Tools
) -> None:
    turns = [{"role": "system", "content": "Be fair."}, *SCORE["input"]]
    await number(server, tools, input=turns)
    system, _ = server.asked[0]["messages"]
    assert system["content"].startswith("Be fair.\n\nAnswer with one JSON object")


async def test_a_number_is_not_asked_for_what_is_too_long(
    server: ScriptedServer, tools: Tools
) -> None:
    assert await number(server, tools, "x" * 200_001) == Graded(value=0, reason="too_long")
    assert server.asked == []


async def test_an_unknown_field_is_no_score(server: ScriptedServer, tools: Tools) -> None:
    turns = [{"role": "user", "content": "{{item.hint}}"}]
    assert await number(server, tools, input=turns) == Ungradable(reason="unknown_field")
    assert server.asked == []


async def test_too_long_is_counted_by_the_server_and_not_sent(
    server: ScriptedServer, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    server.max_model_len, server.tokens = 5000, 3001
    async with watched(settings_for(server)) as judge:
        for text in ("a", "b"):
            over = await verify(judge, tools, text * 4000, max_tokens=2000)
            assert over == Ungradable(reason="over_judge_context")
    assert server.asked == []
    assert server.num_tokenized == 2
    [record] = [each for each in caplog.records if "longer than" in each.message]
    numbers = [record.__dict__[name] for name in ("tokens", "max_tokens", "context")]
    assert numbers == [3001, 2000, 5000]


@pytest.mark.parametrize(
    ("length", "tokens", "is_sent", "num_tokenized"),
    [
        (100, 9999, True, 0),  # a token is at least a byte: no need to ask
        (4000, 3000, True, 1),
        (4000, None, True, 1),  # some 6000 bytes are 2400 tokens, if nobody counts them
        (7000, None, False, 1),
    ],
)
async def test_what_may_be_too_long_is_measured(
    length: int, tokens: int | None, is_sent: bool, num_tokenized: int, tools: Tools
) -> None:
    async with (
        ScriptedServer(max_model_len=5000, tokens=tokens) as server,
        watched(settings_for(server)) as judge,
    ):
        await verify(judge, tools, "x" * length, max_tokens=2000)
    assert bool(server.asked) is is_sent
    assert server.num_tokenized == num_tokenized


@pytest.mark.parametrize(
    "counts",
    [
        replies(b"not implemented", 501),
        replies(b"bad gateway", 502),
        replies(b"slow down", 429),
        replies(b'{"count": "many"}'),
        replies(b'{"count": true}'),
        breaks_off(b""),
        hangs,
    ],
)
@pytest.mark.parametrize(("length", "is_sent"), [(4000, True), (7000, False)])
async def test_a_server_that_does_not_count_does_not_fail_the_question(
    counts: Behaviour, length: int, is_sent: bool, tools: Tools
) -> None:
    async with (
        ScriptedServer(max_model_len=5000, counts=counts) as server,
        watched(settings_for(server, timeout_s=0.3)) as judge,
    ):
        found = await verify(judge, tools, "x" * length, max_tokens=2000)
    assert isinstance(found, Graded) if is_sent else found.reason == "over_judge_context"
    assert bool(server.asked) is is_sent


async def test_the_deployment_s_context_comes_before_the_server_s(
    server: ScriptedServer, tools: Tools
) -> None:
    server.tokens = 2500
    async with watched(settings_for(server, context_tokens=4000)) as judge:
        over = await verify(judge, tools, "x" * 1000, max_tokens=2000)
    assert over == Ungradable(reason="over_judge_context")


async def test_nothing_is_checked_where_nobody_knows_the_context(
    server: ScriptedServer, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    server.max_model_len = None
    async with watched(settings_for(server)) as judge:
        assert isinstance(await verify(judge, tools, "x" * 200_000), Graded)
    assert "set WEIR_JUDGE_CONTEXT" in caplog.text


async def test_no_more_calls_are_in_flight_than_allowed(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [grades(after_s=0.02)]
    async with watched(settings_for(server, concurrency=3)) as judge:
        await asyncio.gather(*(verify(judge, tools, f"It is {n}.") for n in range(20)))
    assert server.most_in_flight == 3


async def test_calls_and_tokens_are_counted(server: ScriptedServer, tools: Tools) -> None:
    outcomes = ("verdict", "no_verdict", "failed")
    kinds = ("prompt", "completion", "reasoning")
    async with watched(settings_for(server)) as judge:
        await verify(judge, tools, "once")
        calls = [counted("weir_judge_calls_total", outcome=name) for name in outcomes]
        tokens = [counted("weir_judge_tokens_total", kind=name) for name in kinds]
        server.script = [says(None), replies(b"", 500), BEST]
        await verify(judge, tools, "twice")
    assert [counted("weir_judge_calls_total", outcome=name) for name in outcomes] == [
        count + 1 for count in calls
    ]
    assert [counted("weir_judge_tokens_total", kind=name) for name in kinds] == [
        tokens[0] + 200,
        tokens[1] + 40,
        tokens[2] + 10,
    ]
    assert counted("weir_judge_in_flight") == counted("weir_judge_waiting") == 0


async def test_odd_usage_spoils_no_verdict(server: ScriptedServer, tools: Tools) -> None:
    odd = json.loads(completion(WELL)) | {"usage": {"prompt_tokens": -5, "completion_tokens": "x"}}
    server.script = [replies(json.dumps(odd).encode())]
    assert isinstance(await score(server, tools), Graded)
