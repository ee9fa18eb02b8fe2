"""One call to a server of chat completions, and what each failure is called."""

from __future__ import annotations

import pytest

from services.grader.judge.chat import Chat, ChatError
from services.grader.judge.form import Form, NoVerdict, one_of
from services.grader.judge.question import Question
from services.grader.judge.settings import JudgeSettings
from services.grader.trial_record import recorded
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
QUESTION = Question((TURN,), Form({"verdict": one_of(("yes", "no"))}))


def a_chat(server: ScriptedServer, timeout_s: float = 5.0, model: str = MODEL) -> Chat:
    settings = JudgeSettings(server.url, model, api_key="secret", timeout_s=timeout_s)
    return Chat(settings)


async def failure(server: ScriptedServer, timeout_s: float = 5.0) -> ChatError:
    async with a_chat(server, timeout_s) as chat:
        with pytest.raises(ChatError) as caught:
            await chat.ask(QUESTION)
    return caught.value


async def test_a_form_is_sent_and_comes_back_filled_in(server: ScriptedServer) -> None:
    async with a_chat(server) as chat:
        assert await chat.ask(QUESTION) == {"verdict": "yes"}
        server.script = [says('{"verdict": "yes"}', "length")]
        with pytest.raises(NoVerdict, match="ended by 'length'"):
            await chat.ask(QUESTION)
    assert server.asked[0]["model"] == MODEL
    assert server.asked[0]["messages"][0]["content"] == "half a character: ?"
    assert set(server.keys) == {"Bearer secret"}


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        (replies(b"too long", 400), "refused", "answers 400: too long"),
        (replies(b"which?", 422), "refused", "answers 422"),
        (replies(b"key?", 401), "refused", "check WEIR_JUDGE_MODEL=judge, WEIR_JUDGE_URL and"),
        (replies(b"", 404), "refused", "answers 404"),
        (replies(b"", 307, Location="/elsewhere"), "refused", "answers 307"),
        (replies(b"died", 500), "failed", "answers 500: died"),
        (replies(b"busy", 429), "failed", "answers 429"),
        (replies(b"<html>"), "failed", "sends no chat completion; check WEIR_JUDGE_URL"),
        (replies(b'{"choices": []}'), "failed", "sends no chat completion"),
        (replies(b'{"choices": {"0": 1}}'), "failed", "sends no chat completion"),
        (replies(b'{"choices": [{"message": null}]}'), "failed", "sends no chat completion"),
        (replies(b"[" * 100_000), "failed", "sends no chat completion"),
        (replies(completion("x").replace(b"stop", b"\xff\xfe")), "failed", "no chat completion"),
        (breaks_off(b""), "failed", "broke off"),
        (breaks_off(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), "failed", "broke off"),
        (
            breaks_off(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{"),
            "failed",
            "off",
        ),
        (breaks_off(b"\x16\x03\x01 this is not HTTP\r\n\r\n"), "failed", "broke off"),
        (floods, "failed", "sends more than 8388608 bytes"),
        (hangs, "timeout", "did not answer within 0.3 s"),
        (trickles, "timeout", "did not answer within 0.3 s"),
    ],
)
async def test_each_failure_has_its_kind_and_its_remedy_and_no_key(
    behaviour: Behaviour, kind: str, words: str, server: ScriptedServer
) -> None:
    server.script = [behaviour]
    error = await failure(server, 0.3 if kind == "timeout" else 5.0)
    assert error.reason == f"judge_{kind}"
    assert error.is_of_request == (words in {"answers 400: too long", "answers 422"})
    assert error.may_pass == (kind in {"failed", "timeout"})
    assert words in str(error)
    assert "secret" not in f"{error!r}"
    assert server.flooded_bytes < 20_000_000


async def test_a_server_that_nobody_started_cannot_be_reached(server: ScriptedServer) -> None:
    await server.go_away()
    error = await failure(server)
    assert error.may_pass
    assert "start it or correct WEIR_JUDGE_URL" in str(error)


@pytest.mark.parametrize(
    ("odd", "count"), [(b"-5", 20), (b'"x"', 20), (b"1" + b"0" * 400, 20), (b"100", 120)]
)
async def test_odd_counts_of_tokens_spoil_no_verdict(
    odd: bytes, count: int, server: ScriptedServer
) -> None:
    server.script = [replies(completion('{"verdict": "yes"}').replace(b" 100", b" " + odd))]
    with recorded() as record:
        async with a_chat(server) as chat:
            assert await chat.ask(QUESTION) == {"verdict": "yes"}
    assert record.tokens == {MODEL: count}


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        *((reply, 200) for reply in (b"<html>", b"[]", b'{"data": 7}', b'{"data": ["x"]}', b"{}")),
        (b"", 404),
    ],
)
async def test_a_server_may_tell_of_its_model_or_not(
    reply: bytes, status: int, server: ScriptedServer
) -> None:
    async with a_chat(server) as chat, a_chat(server, model="another") as other:
        known = (server.url, MODEL, server.root, str(server.max_model_len))
        assert await chat.identity() == known
        assert await other.identity() == (server.url, "another")
        server.told = replies(reply, status)
        assert await chat.identity() == (server.url, MODEL)
        server.told = replies(reply, 503)
        with pytest.raises(ChatError, match="answers 503"):
            await chat.identity()
