"""What a judge's real server does: vLLM decodes by schema, and refuses. The model is no judge."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, cast

import httpx
import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.placement import Bundle, Gpu
from protocol.rewards import ModelJudge

from deploy.launches import judge_options
from deploy.processes import free_ports
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
from tests.stack.conftest import BASE_MODEL, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.timeout(600)]
MODEL = "tiny"
CONTEXT = 12_000  # a token of this model is one character
CHAT_TEMPLATE = (
    "{% if refuses %}{{ raise_exception('as it was told') }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}judge: "
)
LETTERS = tuple("abcdefghijklmnop")
LEVELS = [
    {"name": "yes", "score": 1, "means": "it is"},
    {"name": "hardly", "score": 0.25, "means": "in part"},
    {"name": "no", "score": 0, "means": "it is not"},
]
RUBRIC = {
    "instructions": "Is it right?",
    "analysis_chars": 0,
    "criteria": [
        {
            "name": name,
            "asks": "Is it?",
            "levels": LEVELS,
        }
        for name in ("correctness", "rigor")
    ],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the demo's model with room for a rubric, as the stack starts one, but small."""
    folder = tmp_path_factory.mktemp("judge") / "model"
    shutil.copytree(BASE_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    template = folder / "chat_template.jinja"
    template.write_text(CHAT_TEMPLATE)
    port = next(free_ports())
    small = f"--dtype float32 --max-num-seqs 8 --enforce-eager --max-model-len {CONTEXT}"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *judge_options(Bundle("judge", (Gpu("", 0),)), str(folder), MODEL),
        *small.split(),
        *("--port", str(port), "--chat-template", str(template)),
    ]
    own = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    server = subprocess.Popen(command, env=os.environ | own, start_new_session=True)

    def is_healthy() -> bool:
        assert server.poll() is None, "vLLM did not start"
        with suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/health").is_success
        return False

    try:
        wait_for(is_healthy, 240, "vLLM")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture
async def chat(url: str) -> AsyncIterator[Chat]:
    async with Chat(JudgeSettings(url, MODEL)) as chat:
        yield chat


def a_question(text: str = "Grade 1+1=2.", **changes: Any) -> Question:
    form = Form({name: choice_field(LETTERS) for name in ("first", "second", "third", "fourth")})
    messages = ({"role": "user", "content": text},)
    return Question(
        **{
            "messages": messages,
            "form": form,
            "max_tokens": 100,
            **changes,
        }
    )


async def test_a_reply_follows_the_schema_whatever_the_model_would_say(chat: Chat) -> None:
    for seed in range(4):
        verdict = await chat.ask(a_question(temperature=1.0, seed=seed))
        assert list(verdict) == ["first", "second", "third", "fourth"]
        assert set(verdict.values()) <= set(LETTERS)
    number = await chat.ask(a_question(form=Form({"result": number_field(2, 5)})))
    assert 2 <= float(number["result"]) <= 5
    with pytest.raises(ChatError, match=r"left [123]. tokens"):
        await chat.ask(a_question("1" * (CONTEXT - 40)))
    with pytest.raises(ChatError, match="as it was told"):
        await chat.ask(a_question(template_options={"refuses": True}))
    endless = Form({"analysis": text_field("your reasons"), "grade": choice_field(LETTERS)})
    with pytest.raises(NoVerdict, match="length"):
        await chat.ask(a_question(form=endless, max_tokens=30))


async def test_a_verdict_is_the_same_for_its_seed(chat: Chat) -> None:
    greedy = [await chat.ask(a_question(seed=seed)) for seed in (0, 1)]
    assert greedy[0] == greedy[1]
    warm = [
        await chat.ask(
            a_question(
                temperature=2.0,
                seed=seed,
            )
        )
        for seed in (7, 7, 8)
    ]
    assert warm[0] == warm[1] != warm[2]


async def grade(
    url: str,
    text: str = "It is 2.",
    *,
    seed: int = 0,
    solution: str = "2",
) -> Score:
    valid = ModelJudge.model_validate({"rubric": RUBRIC, "max_tokens": 100})
    check = valid.model_copy(update={"seed": seed})  # also one that no recipe may have
    settings = JudgeSettings(
        url,
        MODEL,
        pauses_s=(0.1, 0.1),
        retest_s=(0.1, 1),
    )
    async with Judge(settings) as judge, asyncio.timeout(240):
        tools = Tools(cast(Pool, None), judge)
        return await model_judge(a_task(solution=solution), text, check, tools)


async def test_a_response_gets_a_grade_or_the_reason_why_vllm_refuses_it(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def passes(_: Chat, seed: int) -> None:
        """The tiny model fails the self-test, as it should; here that does not matter."""

    monkeypatch.setattr("services.grader.judge.judge.examine", passes)
    score = await grade(url, "It is 2. <|im_end|>")
    assert isinstance(score, Graded)
    assert score.breakdown.keys() == {"correctness", "rigor", "samples"}
    assert {score.breakdown[name] for name in ("correctness", "rigor")} <= {0, 0.25, 1}
    cut = await grade(url, solution="1" * CONTEXT)
    assert isinstance(cut, Graded)
    assert cut.breakdown["reference_left_out"] == CONTEXT - 4000
    for length in (CONTEXT, 15 * CONTEXT):
        assert await grade(url, "1" * length) == Ungradable(reason="over_judge_context")
    with caplog.at_level(logging.ERROR):
        assert await grade(url, seed=2**70) == Ungradable(reason="judge_refused")
    answers = [getattr(record, "answer", "") for record in caplog.records]
    assert any(" answers 400: " in answer for answer in answers)
