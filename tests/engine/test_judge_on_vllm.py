"""What a judge's real server does: vLLM decodes by schema, and refuses. The model is no judge."""

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
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.placement import Bundle, Gpu
from protocol.rewards import ModelJudge

from deploy.launches import judge_options
from services.chassis.pool import Pool
from services.grader.judge.chat import Chat, ChatError
from services.grader.judge.judge import Judge
from services.grader.judge.question import (
    Form,
    NoVerdict,
    Question,
    choice_field,
    number_field,
    text_field,
)
from services.grader.judge.settings import JudgeSettings
from services.grader.tools import Tools
from services.grader.verifiers.judges import model_judge
from tests.builders import a_task

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.timeout(600)]
BASE_MODEL = Path(__file__).parents[2] / "examples" / "arithmetic" / "base-model"
MODEL = "tiny"
CONTEXT = 12_000  # a token of this model is one character
START_S = 240
CHAT_TEMPLATE = (
    "{% if refuses %}{{ raise_exception('as it was told') }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}judge: "
)
LETTERS = tuple("abcdefghijklmnop")
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


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the tiny model; it and all its processes are gone in the end."""
    root = tmp_path_factory.mktemp("judge")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    output = root / "vllm.log"
    with output.open("wb") as log:
        server = subprocess.Popen(
            command(write_model(root / "model"), port),
            env={**os.environ, **own},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, output)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def write_model(folder: Path) -> Path:
    """The demo's model with room for a rubric."""
    shutil.copytree(BASE_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def command(folder: Path, port: int) -> list[str]:
    """As the stack starts a judge of its own, but small."""
    small = ["--dtype", "float32", "--max-num-seqs", "8", "--enforce-eager"]
    small += [
        "--max-model-len",
        str(CONTEXT),
        "--chat-template",
        str(folder / "chat_template.jinja"),
    ]
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    return [*server, *judge_options(Bundle("judge", (Gpu("", 0),)), str(folder), MODEL), *small]


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], output: Path) -> None:
    for _ in range(START_S * 2):
        if server.poll() is not None:
            break
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health").is_success:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.5)
    pytest.fail(f"vLLM did not start:\n{output.read_text()[-3000:]}")


@pytest.fixture
async def chat(url: str) -> AsyncIterator[Chat]:
    async with Chat(JudgeSettings(url, MODEL)) as chat:
        yield chat


def a_question(**changes: Any) -> Question:
    form = Form({name: choice_field(LETTERS) for name in ("first", "second", "third", "fourth")})
    messages = ({"role": "user", "content": "Grade 1+1=2."},)
    return Question(**{"messages": messages, "form": form, "max_tokens": 100, **changes})


async def test_a_reply_follows_the_schema_whatever_the_model_would_say(chat: Chat) -> None:
    for seed in range(4):
        verdict = await chat.ask(a_question(temperature=1.0, seed=seed))
        assert list(verdict) == ["first", "second", "third", "fourth"]
        assert set(verdict.values()) <= set(LETTERS)
    number = await chat.ask(a_question(form=Form({"result": number_field(2, 5)})))
    assert 2 <= float(number["result"]) <= 5
    long = ({"role": "user", "content": "1" * (CONTEXT - 40)},)
    with pytest.raises(ChatError, match=r"left [123]. tokens"):
        await chat.ask(a_question(messages=long))
    with pytest.raises(ChatError, match="as it was told"):
        await chat.ask(a_question(template_options={"refuses": True}))
    endless = Form({"analysis": text_field("your reasons"), "grade": choice_field(LETTERS)})
    with pytest.raises(NoVerdict, match="length"):
        await chat.ask(a_question(form=endless, max_tokens=30))


async def test_a_verdict_is_the_same_for_its_seed(chat: Chat) -> None:
    greedy = [await chat.ask(a_question(seed=seed)) for seed in (0, 1)]
    assert greedy[0] == greedy[1]
    warm = [await chat.ask(a_question(temperature=2.0, seed=seed)) for seed in (7, 7, 8)]
    assert warm[0] == warm[1]
    assert warm[0] != warm[2]


async def graded(
    url: str, text: str, *, seed: int = 0, solution: str = "One and one make two."
) -> Score:
    asked = ModelJudge.model_validate({"rubric": RUBRIC, "max_tokens": 100})
    settings = JudgeSettings(url, MODEL, pauses_s=(0.1, 0.1), retest_s=(0.1, 1))
    async with Judge(settings) as judge, asyncio.timeout(240):
        tools = Tools(cast(Pool, None), judge)
        asked = asked.model_copy(update={"seed": seed})
        return await model_judge(a_task(solution=solution), text, asked, tools)


async def test_a_response_gets_a_grade_or_the_reason_why_vllm_refuses_it(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def passes(_: Chat, seed: int) -> None:
        """The tiny model fails the self-test, as it should; here that does not matter."""

    monkeypatch.setattr("services.grader.judge.judge.examine", passes)
    score = await graded(url, "It is 2. <|im_end|>")
    assert isinstance(score, Graded)
    assert score.breakdown.keys() == {"correctness", "rigor", "samples"}
    assert {score.breakdown[name] for name in ("correctness", "rigor")} <= {0, 0.25, 1}
    cut = await graded(url, "It is 2.", solution="1" * CONTEXT)
    assert isinstance(cut, Graded)
    assert cut.breakdown["reference_left_out"] == CONTEXT - 4000
    for length in (CONTEXT, 15 * CONTEXT):
        too_long = await graded(url, "1" * length)
        assert too_long == Ungradable(reason="over_judge_context")
    with caplog.at_level(logging.ERROR):
        refused = await graded(url, "It is 2.", seed=2**70)
    assert refused == Ungradable(reason="judge_refused")
    answers = [record.__dict__["answer"] for record in caplog.records if hasattr(record, "answer")]
    assert any(" answers 400: " in answer for answer in answers)
