"""One call to a server of chat completions, and what each failure is called."""

import asyncio

import pytest

from services.grader.judge.chat import Chat, ChatError
from services.grader.judge.question import Form, NoVerdict, Question, choice_field
from services.grader.judge.settings import JudgeSettings
from services.grader.trial_record import start_record
from tests.tables import table
from tests.unit.grader.judge_server import (
    MODEL,
    Behaviour,
    ScriptedServer,
    breaks_off,
    completion,
    floods,
    hangs,
    replies,
    says,
    trickles,
)

pytestmark = pytest.mark.anyio

TURN = {"role": "user", "content": "half a character: \ud800"}
QUESTION = Question((TURN,), Form({"verdict": choice_field(("yes", "no"))}))


def a_chat(server: ScriptedServer, timeout_s: float = 60.0, model: str = MODEL) -> Chat:
    settings = JudgeSettings(server.url, model, api_key="secret", timeout_s=timeout_s)
    return Chat(settings)


async def failure(server: ScriptedServer, timeout_s: float = 60.0) -> ChatError:
    async with asyncio.timeout(60), a_chat(server, timeout_s) as chat:
        with pytest.raises(ChatError) as caught:
            await chat.ask(QUESTION)
    return caught.value


async def test_a_form_is_sent_and_read_back(server: ScriptedServer) -> None:
    async with a_chat(server) as chat:
        assert await chat.ask(QUESTION) == {"verdict": "yes"}
        server.script = [says('{"verdict": "yes"}', "length")]
        with pytest.raises(NoVerdict) as caught:
            await chat.ask(QUESTION)
    assert caught.value.reason == "verdict_cut"
    assert server.requests[0]["model"] == MODEL
    assert server.requests[0]["messages"][0]["content"] == "half a character: ?"
    assert set(server.keys) == {"Bearer secret"}


async def check_failure(
    server: ScriptedServer, behaviour: Behaviour, reason: str, is_of_request: bool, words: str
) -> None:
    server.script = [behaviour]
    error = await failure(server, 0.3 if reason == "judge_timeout" else 60.0)
    assert (error.reason, error.is_of_request) == (reason, is_of_request)
    assert error.is_temporary == (reason in {"judge_failed", "judge_timeout"})
    assert words in str(error)
    assert "secret" not in f"{error!r}"


@table("""
    status | reply | reason | is_of_request | words
    400 | too large                               | judge_refused      | True  | 400: too large
    422 | ?                                       | judge_refused      | True  | 422
    401 | key?                                    | judge_refused      | False | WEIR_JUDGE_API_KEY
    404 |  | judge_refused | False | WEIR_JUDGE_MODEL=judge
    307 |                                         | judge_refused      | False | 307
    400 | maximum context length is 8192 tokens.  | over_judge_context | True  | is 8192
    400 | longer than the maximum model length    | over_judge_context | True  | longer than
    400 | {"code": "context_length_exceeded"}     | over_judge_context | True  | exceeded
    400 | exceeds the available context size, try | over_judge_context | True  | size
    500 | died                                    | judge_failed       | False | 500: died
    429 | busy                                    | judge_failed       | False | 429
    200 | <html>                                  | judge_failed       | False | WEIR_JUDGE_URL
    200 | {"choices": []}                         | judge_failed       | False | WEIR_JUDGE_URL
    200 | {"choices": [{"message": null}]}        | judge_failed       | False | WEIR_JUDGE_URL
""")
async def test_each_refusal_has_its_reason_and_its_remedy_and_no_key(
    status: int, reply: str, reason: str, is_of_request: bool, words: str, server: ScriptedServer
) -> None:
    """The contexts are too short for vLLM 0.32, vLLM, OpenAI and llama.cpp."""
    behaviour = replies(reply.encode(), status, Location="/elsewhere")
    await check_failure(server, behaviour, reason, is_of_request, words)


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (replies(b"[" * 100_000), "WEIR_JUDGE_URL"),
        (replies(completion("x").replace(b"stop", b"\xff\xfe")), "WEIR_JUDGE_URL"),
        (breaks_off(b""), "broke off"),
        (breaks_off(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), "broke off"),
        (breaks_off(b"\x16\x03\x01 this is not HTTP\r\n\r\n"), "broke off"),
        (floods, "8388608 bytes"),
        (hangs, "0.3 s"),
        (trickles, "0.3 s"),
    ],
)
async def test_whatever_a_server_sends_is_a_failure_that_may_pass(
    behaviour: Behaviour, words: str, server: ScriptedServer
) -> None:
    reason = "judge_timeout" if words == "0.3 s" else "judge_failed"
    await check_failure(server, behaviour, reason, False, words)
    assert server.flooded_bytes < 20_000_000


@pytest.mark.parametrize(("odd", "count"), [(b"-5", 20), (b'"x"', 20), (b"100", 120)])
async def test_odd_counts_of_tokens_spoil_no_verdict(
    odd: bytes, count: int, server: ScriptedServer
) -> None:
    server.script = [replies(completion('{"verdict": "yes"}').replace(b" 100", b" " + odd))]
    record = start_record()
    async with a_chat(server) as chat:
        assert await chat.ask(QUESTION) == {"verdict": "yes"}
    assert record.tokens == {MODEL: count}
