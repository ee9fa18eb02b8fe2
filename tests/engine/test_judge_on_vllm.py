"""The judge on a real vLLM server with real decoding by schema. The model is tiny and no judge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import ModelJudge

from services.grader.judge import self_test
from services.grader.judge.chat import Chat
from services.grader.judge.form import Form, NoVerdict, number_within, one_of, words
from services.grader.judge.judge import Judge
from services.grader.judge.question import Question
from services.grader.judge.settings import JudgeSettings
from services.grader.pool import Pool
from services.grader.tools import Tools
from services.grader.verifiers import model_judge
from tests.builders import a_task

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

BASE_MODEL = Path(__file__).parents[2] / "examples" / "arithmetic" / "base-model"
MODEL = "tiny"
CONTEXT = 12_000  # a token of this model is one character
START_S = 240
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}judge: "
)
# Where the schema lets it, a model may write spaces until its tokens are used up; this one does.
NO_SPACES = {"backend": "xgrammar", "disable_any_whitespace": True}
LETTERS = tuple("abcdefghijklmnop")
NO_POOL = cast(Pool, None)  # these verifiers use none
TASK = a_task(solution="One and one make two.")
RUBRIC = {
    "instructions": "Is it right?",
    "analysis_chars": 0,
    "criteria": [
        {
            "name": name,
            "asks": "Is it?",
            "levels": [
                {"name": "yes", "score": 1, "means": "it is"},
                {"name": "hardly", "score": 0.25, "means": "in part"},
                {"name": "no", "score": 0, "means": "it is not"},
            ],
        }
        for name in ("correctness", "rigor")
    ],
}
SMALL: dict[str, Any] = {"rubric": RUBRIC, "max_tokens": 100}


def write_model(folder: Path) -> Path:
    """The demo's model with room for a rubric."""
    shutil.copytree(BASE_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def command(folder: Path, port: int) -> list[str]:
    options = {
        "--model": str(folder),
        "--served-model-name": MODEL,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": "float32",
        "--max-model-len": str(CONTEXT),
        "--max-num-seqs": "8",
        "--chat-template": str(folder / "chat_template.jinja"),
        "--structured-outputs-config": json.dumps(NO_SPACES),
    }
    pairs = (text for pair in options.items() for text in pair)
    server = "vllm.entrypoints.openai.api_server"  # `vllm serve` does not know the CPU wheel's name
    return [sys.executable, "-m", server, "--enforce-eager", *pairs]


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], output: Path) -> None:
    for _ in range(START_S * 2):
        if server.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            pass
        try:
            server.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail(f"vLLM did not start:\n{output.read_text()[-3000:]}")


@dataclass(frozen=True)
class Served:
    """A server and its process group."""

    url: str
    process: subprocess.Popen[bytes]

    def signal(self, number: int) -> None:
        """To all of its processes."""
        os.killpg(self.process.pid, number)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the tiny model; it and all its processes are gone in the end."""
    root = tmp_path_factory.mktemp("judge")
    folder, port = write_model(root / "model"), a_free_port()
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    output = root / "vllm.log"
    with output.open("wb") as log:
        server = subprocess.Popen(
            command(folder, port),
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, output)
        yield Served(f"http://127.0.0.1:{port}/v1", server)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture
def url(served: Served) -> str:
    return served.url


@pytest.fixture
async def chat(url: str) -> AsyncIterator[Chat]:
    async with Chat(JudgeSettings(url, MODEL)) as chat:
        yield chat


def judge_at(url: str, model: str = MODEL, **changes: Any) -> Judge:
    hasty = {"pauses_s": (0.1, 0.1), "retest_s": (0.1, 1), **changes}
    return Judge(JudgeSettings(url, model, **hasty))


@pytest.fixture
def anyone_may_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model fails the self-test, as it should; here that does not matter."""

    async def passes(_: Chat, seed: int) -> None:
        return None

    monkeypatch.setattr(self_test, "examine", passes)


async def graded(url: str, text: str, *, seed: int = 0, **check: Any) -> Score:
    asked = ModelJudge.model_validate({**SMALL, **check}).model_copy(update={"seed": seed})
    async with judge_at(url) as judge, asyncio.timeout(120):
        return await model_judge.verify(TASK, text, asked, Tools(NO_POOL, judge))


def a_question(**changes: Any) -> Question:
    form = Form({name: one_of(LETTERS) for name in ("first", "second", "third", "fourth")})
    messages = ({"role": "user", "content": "Grade 1+1=2."},)
    return replace(Question(messages, form, max_tokens=100), **changes)


async def test_the_server_says_its_model_and_context(chat: Chat) -> None:
    _, model, root, context = await chat.identity()
    assert (model, context) == (MODEL, str(CONTEXT))
    assert str(root).endswith("/model")


async def test_a_reply_follows_the_schema_whatever_the_model_would_say(chat: Chat) -> None:
    for seed in range(4):
        verdict = await chat.ask(a_question(temperature=1.0, seed=seed))
        assert list(verdict) == ["first", "second", "third", "fourth"]
        assert set(verdict.values()) <= set(LETTERS)


async def test_a_verdict_is_the_same_for_its_seed(chat: Chat) -> None:
    greedy = [await chat.ask(a_question(seed=seed)) for seed in (0, 0, 1)]
    assert greedy[0] == greedy[1] == greedy[2]
    warm = [await chat.ask(a_question(temperature=2.0, seed=seed)) for seed in (7, 7, 8)]
    assert warm[0] == warm[1]
    assert warm[0] != warm[2]


async def test_a_model_that_finds_no_end_has_no_verdict(chat: Chat) -> None:
    endless = Form({"analysis": words("your reasons"), "grade": one_of(LETTERS)})
    with pytest.raises(NoVerdict, match="ended by 'length'"):
        await chat.ask(a_question(form=endless, max_tokens=30))


async def test_a_number_stays_within_its_bounds(chat: Chat) -> None:
    form = Form({"result": number_within(2, 5)})
    verdict = await chat.ask(a_question(form=form))
    assert 2 <= float(verdict["result"]) <= 5


@pytest.mark.usefixtures("anyone_may_judge")
async def test_a_response_gets_a_grade_with_its_parts(url: str) -> None:
    score = await graded(url, "It is 2. <|im_end|>")
    assert isinstance(score, Graded)
    assert score.breakdown.keys() == {"correctness", "rigor", "samples"}
    assert {score.breakdown[name] for name in ("correctness", "rigor")} <= {0, 0.25, 1}
    assert await graded(url, "It is 2. <|im_end|>") == score


@pytest.mark.usefixtures("anyone_may_judge")
async def test_several_samples_are_averaged(url: str) -> None:
    score = await graded(url, "It is 2.", samples=4, temperature=1.0)
    assert isinstance(score, Graded)
    assert score.breakdown["samples"] == 4


@pytest.mark.usefixtures("anyone_may_judge")
@pytest.mark.parametrize("length", [CONTEXT, 15 * CONTEXT])
async def test_what_is_too_long_is_refused_as_that(length: int, url: str) -> None:
    assert await graded(url, "1" * length) == Ungradable(reason="over_judge_context")


@pytest.mark.usefixtures("anyone_may_judge")
async def test_a_refusal_is_loud(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        refused = await graded(url, "It is 2.", seed=2**70)
    assert refused == Ungradable(reason="judge_refused")
    [record] = [each for each in caplog.records if each.message == "the judge refused a request"]
    assert " answers 400: " in record.__dict__["answer"]


@pytest.mark.usefixtures("anyone_may_judge")
async def test_calls_wait_for_a_server_that_stands_still(served: Served) -> None:
    async with judge_at(served.url, timeout_s=1, concurrency=4) as judge, asyncio.timeout(120):
        await judge.ask(a_question(seed=100))
        questions = [a_question(temperature=1.0, seed=seed) for seed in range(200, 230)]
        calls = [asyncio.create_task(judge.ask(question)) for question in questions]
        try:
            await asyncio.sleep(0.05)
            served.signal(signal.SIGSTOP)
            while judge.is_up:
                await asyncio.sleep(0.05)
            assert "did not answer within 1 s" in judge.why_down
            assert not all(call.done() for call in calls)
        finally:
            served.signal(signal.SIGCONT)
        answers = await asyncio.gather(*calls)
    assert not any(isinstance(answer, Ungradable) for [answer] in answers)


async def test_a_model_that_is_not_served_keeps_the_judge_down(url: str) -> None:
    async with judge_at(url, model="gpt-oss-20b") as judge, asyncio.timeout(60):
        while judge.why_down == "starting":
            await asyncio.sleep(0.05)
        assert not judge.is_up
        assert "answers 404" in judge.why_down
        assert "check WEIR_JUDGE_MODEL=gpt-oss-20b" in judge.why_down


async def test_a_tiny_model_is_examined_in_earnest(url: str) -> None:
    async with judge_at(url) as judge, asyncio.timeout(200):
        while not judge.is_up and judge.why_down == "starting":
            await asyncio.sleep(0.1)
        found = ("it cannot judge; check WEIR_JUDGE_MODEL", "gives no verdict on a solution")
        assert judge.is_up or any(text in judge.why_down for text in found)
