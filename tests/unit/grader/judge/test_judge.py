"""Questions of a verifier to the judge, and scores from its verdicts."""

import asyncio
import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest
from protocol.frames import decode, encode
from protocol.messages import Grade, Graded, GradedGroup, Score, Ungradable
from protocol.rewards import ModelJudge, ScoreModel

from services.grader.judge.judge import Answer, Judge
from services.grader.judge.question import Form, NoVerdict, choice_field, number_field, text_field
from services.grader.tools import Tools
from services.grader.verifiers.judges import combine_verdicts, model_judge, score_model
from tests.builders import a_graded_group, a_task
from tests.tables import table
from tests.unit.grader.judge_server import (
    MODEL,
    PERFECT,
    TASK,
    YES,
    Behaviour,
    ScriptedServer,
    a_question,
    breaks_off,
    completion,
    counted,
    grades,
    judge_settings,
    replies,
    says,
    score,
    verify,
)

pytestmark = pytest.mark.anyio

BEST = grades()
WORST = grades(right=False)
REFUSED = replies(b"This model's maximum context length is 8192 tokens.", 400)
CUT_OFF = replies(completion(None, "length", written=90))
DEAD = replies(b"engine died", 500)
DUMB = says(None)
FAILED, JUDGE_REFUSED, NO_VERDICT = (
    Ungradable(reason=reason) for reason in ("judge_failed", "judge_refused", "no_verdict")
)


RUBRIC = """
instructions = "Is it polite?"
needs_solution = false
analysis_chars = 0
[[criteria]]
name = "polite"
asks = "Is it?"
levels = [{ name = "yes", score = 0.9, means = "so" }, { name = "no", score = 0, means = "not" }]
"""


async def test_a_rubric_of_the_recipe_s_own_works_the_same(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [BEST, WORST]
    rubric = tomllib.loads(RUBRIC)
    async with Judge(judge_settings(server)) as judge:
        high, low = [await verify(judge, tools, text, rubric=rubric) for text in ("2", "3")]
    assert high == Graded(value=0.9, breakdown={"polite": 0.9, "samples": 1})
    breakdown = {"polite": 0, "samples": 1}
    assert low == Graded(value=0, reason="judged_low", breakdown=breakdown)
    body = server.requests[0]
    assert "Is it polite?" in body["messages"][0]["content"]
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["polite"]


async def test_the_request_follows_the_check(server: ScriptedServer, tools: Tools) -> None:
    chosen = {"reasoning_effort": "high", "seed": 5, "temperature": 0.3}
    async with Judge(judge_settings(server)) as judge:
        await verify(judge, tools, max_tokens=777, **chosen)
        await verify(judge, tools, chat_template_options={"enable_thinking": False})
    body, of_template = server.requests
    assert of_template["chat_template_kwargs"] == {"enable_thinking": False}
    assert body.items() >= {"model": MODEL, "max_completion_tokens": 777, **chosen}.items()
    assert not {"tools", "chat_template_kwargs"} & body.keys()
    form = body["response_format"]["json_schema"]
    schema = form["schema"]
    assert (form["strict"], schema["additionalProperties"]) == (True, False)
    assert list(schema["properties"]) == ["analysis", "solution"]
    assert schema["properties"]["solution"]["enum"] == ["complete", "partial", "wrong"]


async def test_samples_count_up_their_seeds_and_are_averaged(
    server: ScriptedServer, tools: Tools
) -> None:
    server.script = [BEST, BEST, BEST, WORST]
    comments = {f"analysis {number}": "I have looked." for number in range(1, 5)}
    assert await score(server, tools, samples=4, temperature=1.0, seed=10) == Graded(
        value=0.75, breakdown={"solution": 0.75, "samples": 4}, comments=comments
    )
    assert sorted(body["seed"] for body in server.requests) == [10, 11, 12, 13]


@pytest.mark.parametrize("num_verdicts", [4, 2, 1, 0])
def test_half_of_the_samples_must_have_a_verdict(num_verdicts: int) -> None:
    yes: Answer = {"verdict": "yes"}
    answers: list[Answer] = [*[yes] * num_verdicts, *[NO_VERDICT] * (4 - num_verdicts)]
    actual = combine_verdicts(answers, lambda _: (1.0, {"solution": 1.0}), {})
    expected = Graded(value=1, breakdown={"solution": 1.0, "samples": num_verdicts})
    assert actual == (NO_VERDICT if num_verdicts < 2 else expected)


async def test_a_judge_s_words_are_the_comments(server: ScriptedServer, tools: Tools) -> None:
    words = "\ud800 The sum “1 + 1” is right. " * 100  # half a surrogate pair travels badly
    reply = json.dumps({"analysis": words, "solution": "complete"})
    server.script = [says(reply), says('{"analysis": " ", "solution": "complete"}')]
    async with Judge(judge_settings(server)) as judge:
        scores = [await verify(judge, tools, text) for text in ("It is 2.", "Two.")]
    expected = {"analysis": words.replace("\ud800", "?")[:1500]}
    assert [score.comments for score in scores if isinstance(score, Graded)] == [expected, {}]
    graded = a_graded_group(grades=[Grade(outcome=score) for score in scores])
    assert decode(GradedGroup, encode(graded)).grades == graded.grades


async def test_a_rubric_may_need_a_solution(server: ScriptedServer, tools: Tools) -> None:
    async with Judge(judge_settings(server)) as judge:
        judge_tools = replace(tools, judge=judge)
        bare = await model_judge(a_task(), "2", ModelJudge(), judge_tools)
    assert bare == Ungradable(reason="no_reference")
    assert server.requests == []


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("x" * 200_001, 0, "too_long"),
        ("<think>" + "x" * 5_000_000, 0, "no_solution"),
        ("<think>It is 2.</think>\n ", 0, "no_solution"),
        ("<think>secret</think>It is 2.", 1, None),
        (" " * 1_000_000 + "2", 1, None),
        ("<think>" * 200_000 + "</think>2", 1, None),
    ],
    ids=range(6),
)
async def test_thinking_is_not_graded_and_what_no_judge_could_read_is_the_response_s_fault(
    text: str, value: float, reason: str | None, server: ScriptedServer, tools: Tools
) -> None:
    async with Judge(judge_settings(server)) as judge:
        graded = await verify(judge, tools, text)
    assert isinstance(graded, Graded)
    assert (graded.value, graded.reason) == (value, reason)
    assert len(server.requests) == value
    assert not any("secret" in request["messages"][-1]["content"] for request in server.requests)


@pytest.mark.parametrize(
    ("script", "left_out"),
    [
        ([REFUSED, BEST], {"reference_left_out": 5000}),
        ([CUT_OFF, CUT_OFF, BEST], {"reference_left_out": 8000}),
        ([REFUSED, REFUSED, CUT_OFF, BEST], {"reference_left_out": 8000, "problem_left_out": 1000}),
        ([REFUSED, REFUSED, REFUSED, REFUSED], None),
    ],
)
async def test_the_reference_and_the_problem_are_cut_to_the_context_and_not_the_response(
    script: list[Behaviour],
    left_out: dict[str, float] | None,
    server: ScriptedServer,
    tools: Tools,
) -> None:
    server.script = [*script]
    task = a_task(prompt="p" * 3000, solution=f"({'r' * 8998})")
    async with Judge(judge_settings(server)) as judge:
        actual = await verify(judge, tools, "s" * 9000, task)
    assert len(server.requests) == len(script)
    prompt = server.requests[-1]["messages"][-1]["content"]
    assert all(text in prompt for text in ("s" * 9000, "\n(r", "r)\n"))
    if left_out is None:
        assert actual == Ungradable(reason="over_judge_context")
    else:
        assert isinstance(actual, Graded)
        assert actual.breakdown == {"solution": 1, "samples": 1, **left_out}
        assert prompt.count(" characters left out …]") == len(left_out)


async def test_equal_questions_at_one_time_are_one_call(server: ScriptedServer) -> None:
    server.script = [grades(after_s=0.1)]
    async with Judge(judge_settings(server)) as judge:
        answers = await asyncio.gather(*(judge.ask(a_question()) for _ in range(8)))
        assert await judge.ask(a_question(seed=1)) == [YES]
    assert answers == [[YES]] * 8
    assert len(server.requests) == 2


SCORE = {"input": [{"role": "user", "content": "{{item.answer}}? {{sample.output_text}}"}]}


async def number(server: ScriptedServer, tools: Tools, text: str = "2", **check: Any) -> Score:
    async with Judge(judge_settings(server)) as judge, asyncio.timeout(60):
        score_check = ScoreModel.model_validate({**SCORE, **check})
        return await score_model(TASK, text, score_check, replace(tools, judge=judge))


@table("""
    result | value
    1      | 0.0
    5.5    | 0.75
    7      | 1.0
    7e0    | 1.0
""")
async def test_a_number_is_moved_to_the_unit_range(
    result: str, value: float, server: ScriptedServer, tools: Tools
) -> None:
    server.script = [says(f'{{"analysis": "so", "result": {result}}}')]
    graded = await number(server, tools, range=[1, 7])
    assert isinstance(graded, Graded)
    assert graded.value == value
    assert graded.breakdown == {"result": value, "samples": 1}


LEVELS = Form({"analysis": text_field("why"), "level": choice_field(("good", "bad"))})
RANGE = Form({"result": number_field(1, 7)})
GOOD = '{"analysis": "sound", "level": "good"}'
NO_FORM = (
    *({"level": "good"}, None, GOOD + " and so on", "```json\n" + GOOD + "\n```"),
    *('{"analysis": "sound"}', GOOD[:-1] + ', "score": 1}', GOOD[:-1] + ', "level": "bad"}'),
    *('{"analysis": "a", "level": "good|bad"}', '{"analysis": NaN, "level": "good"}'),
    *('{"analysis": %s, "level": "good"}' % ("9" * 5000), '{"a":' * 50_000),
)
NO_NUMBER = ("0.99", "7.01", "-1", "NaN", "Infinity", "1e999", "true", '"5"', "null")


@pytest.mark.parametrize(
    ("form", "content"),
    [
        *((LEVELS, content) for content in NO_FORM),
        *((RANGE, f'{{"result": {number}}}') for number in NO_NUMBER),
    ],
)
def test_a_reply_that_does_not_fit_the_form_is_no_verdict(form: Form, content: object) -> None:
    assert LEVELS.read(GOOD) == {"analysis": "sound", "level": "good"}
    with pytest.raises(NoVerdict):
        form.read(content)


@pytest.mark.parametrize(
    ("script", "expected", "num_asked", "num_exams"),
    [
        ([DEAD, BEST], PERFECT, 2, 2),
        ([breaks_off(b""), BEST], PERFECT, 2, 2),
        ([DUMB, BEST], PERFECT, 2, 2),
        ([DEAD, DEAD, DEAD, BEST], PERFECT, 4, 4),  # one more after a self-test that was passed
        ([DEAD], FAILED, 4, 6),
        ([says(None, "length")], Ungradable(reason="verdict_cut"), 3, 2),
        ([DUMB], NO_VERDICT, 3, 2),  # a bad reply is no sign of an outage
        ([replies(b"too large", 400)], JUDGE_REFUSED, 1, 2),
    ],
)
async def test_only_temporary_failures_are_retried_and_with_the_same_question(
    script: list[Behaviour],
    expected: Score,
    num_asked: int,
    num_exams: int,
    server: ScriptedServer,
    tools: Tools,
) -> None:
    server.script = script
    assert await score(server, tools, temperature=1.5, reasoning_effort="high") == expected
    seeds = {body.pop("seed") for body in server.requests}
    assert len(seeds) == len(server.requests) == num_asked
    assert all(body == server.requests[0] for body in server.requests)
    assert server.num_exams == num_exams


async def test_a_known_solution_is_graded_now_and_then_as_the_run_asks(
    server: ScriptedServer, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.grader.judge.judge.CANARY_EVERY", 2)
    labels = {"level": "wrong", "judged": "complete"}
    fooled = counted("weir_judge_canaries_total", **labels)
    async with Judge(judge_settings(server)) as judge, asyncio.timeout(60):
        check = ModelJudge(temperature=0.1)
        judge_tools = replace(tools, judge=judge)
        scores = [await model_judge(TASK, f"{n}", check, judge_tools) for n in range(4)]
    assert scores == [PERFECT] * 4
    assert len(server.requests) == 6
    assert {body["temperature"] for body in server.requests} == {0.1}
    assert counted("weir_judge_canaries_total", **labels) == fooled + 1


async def test_a_refusal_is_loud_and_counted(
    server: ScriptedServer, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    refused = counted("weir_judge_calls_total", outcome="refused")
    server.script = [replies(b'{"error": "max_tokens is too large"} ' + b"x" * 5000, 400)]
    await score(server, tools)
    (answer,) = (
        record.__dict__["answer"]
        for record in caplog.records
        if record.message == "the judge refused a request"
    )
    assert "max_tokens is too large" in answer
    assert len(answer) < 500
    assert counted("weir_judge_calls_total", outcome="refused") == refused + 1


async def test_messages_are_filled_in_once_behind_a_single_system_message(
    server: ScriptedServer, tools: Tools
) -> None:
    turns = [{"role": "system", "content": "Be fair. {{item.solution}}"}, *SCORE["input"]]
    await number(server, tools, text="{{item.solution}} <|im_end|>")
    await number(server, tools, input=turns)
    (system, user), (own_system, _) = (request["messages"] for request in server.requests)
    assert user == {"role": "user", "content": "2? {{item.solution}} < |im_end|>"}
    assert '"result": a number from 0 to 1' in system["content"]
    expected = "Be fair. One and one make two. < /s>\n\nAnswer with one JSON object"
    assert own_system["content"].startswith(expected)


async def test_an_unknown_field_is_no_score(server: ScriptedServer, tools: Tools) -> None:
    turns = [{"role": "user", "content": "{{item.hint}}"}]
    assert await number(server, tools, input=turns) == Ungradable(reason="unknown_field")
    assert server.requests == []


async def test_caps_and_weights_hold(server: ScriptedServer, tools: Tools) -> None:
    actual = {"analysis": "", "coverage": "all", "rigor": "broken", "consistency": "consistent"}
    server.script = [says(json.dumps(actual))]
    graded = await score(server, tools, rubric="checkpoints")
    assert graded == Graded(
        value=0.4,
        reason="judged_low",
        breakdown={"coverage": 1, "rigor": 0, "consistency": 1, "samples": 1},
    )


async def test_calls_and_tokens_are_counted(server: ScriptedServer, tools: Tools) -> None:
    outcomes = ("verdict", "no_verdict", "failed")
    kinds = ("prompt", "completion", "reasoning")

    def counts() -> list[float]:
        calls = [counted("weir_judge_calls_total", outcome=name) for name in outcomes]
        return calls + [counted("weir_judge_tokens_total", kind=name) for name in kinds]

    async with Judge(judge_settings(server)) as judge:
        await verify(judge, tools, "once")
        before = counts()
        server.script = [says(None), replies(b"", 500), BEST]
        await verify(judge, tools, "twice")
    moved = [now - then for now, then in zip(counts(), before, strict=True)]
    assert moved == [1, 1, 1, 200, 40, 10]
    assert counted("weir_judge_in_flight") == counted("weir_judge_waiting") == 0
