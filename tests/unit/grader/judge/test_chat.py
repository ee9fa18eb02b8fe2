"""One call to a server of chat completions, and what each failure is called."""

import asyncio

import pytest

from services.grader.judge.chat import Chat, ChatError
from services.grader.judge.question import Form, NoVerdict, Question, choice_field
from services.grader.judge.settings import JudgeSettings
from services.grader.trial_record import start_record
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


OF_REQUEST = [
    (replies(b"too large", 400), "400: too large"),
    (replies(b"?", 422), "422"),
]
OF_JUDGE = [
    (replies(b"key?", 401), "WEIR_JUDGE_API_KEY"),
    (replies(b"", 404), "WEIR_JUDGE_MODEL=judge"),
    (replies(b"", 307, Location="/elsewhere"), "307"),
]
TOO_LONG = [  # for vLLM 0.32, vLLM, OpenAI, llama.cpp
    "This model's maximum context length is 8192 tokens. However, your prompt contains 9000",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    '{"code": "context_length_exceeded"}',
    "the request exceeds the available context size, try increasing it",
]
PASSING = [
    (replies(b"died", 500), "500: died"),
    (replies(b"busy", 429), "429"),
    (replies(b"<html>"), "WEIR_JUDGE_URL"),
    (replies(b'{"choices": []}'), "WEIR_JUDGE_URL"),
    (replies(b'{"choices": [{"message": null}]}'), "WEIR_JUDGE_URL"),
    (replies(b"[" * 100_000), "WEIR_JUDGE_URL"),
    (replies(completion("x").replace(b"stop", b"\xff\xfe")), "WEIR_JUDGE_URL"),
    (breaks_off(b""), "broke off"),
    (breaks_off(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), "broke off"),
    (breaks_off(b"\x16\x03\x01 this is not HTTP\r\n\r\n"), "broke off"),
    (floods, "8388608 bytes"),
]
FAILURES = [
    *(("judge_refused", True, *case) for case in OF_REQUEST),
    *(("judge_refused", False, *case) for case in OF_JUDGE),
    *(("over_judge_context", True, replies(text.encode(), 400), text) for text in TOO_LONG),
    *(("judge_failed", False, *case) for case in PASSING),
    *(("judge_timeout", False, case, "0.3 s") for case in (hangs, trickles)),
]


@pytest.mark.parametrize(("reason", "is_of_request", "behaviour", "words"), FAILURES)
async def test_each_failure_has_its_reason_and_its_remedy_and_no_key(
    reason: str, is_of_request: bool, behaviour: Behaviour, words: str, server: ScriptedServer
) -> None:
    server.script = [behaviour]
    error = await failure(server, 0.3 if reason == "judge_timeout" else 60.0)
    assert (error.reason, error.is_of_request) == (reason, is_of_request)
    assert error.is_temporary == (reason in {"judge_failed", "judge_timeout"})
    assert words in str(error)
    assert "secret" not in f"{error!r}"
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
