"""Calls by the openai SDK, answered by rollouts that count, over the real gateway and exchange."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from protocol.calls import Refusal
from protocol.messages import ActiveJob

from tests.contract.gateway.conftest import a_models_root
from tests.contract.gateway.fake_rollout import COUNTED, FakeRollout, a_rollout, tokens_of
from tests.contract.gateway.stack import (
    KEY,
    Stack,
    a_checkpoint,
    a_gateway,
    a_job,
    assert_refused,
    take_up,
)
from tests.contract.valkey_server import Server

pytestmark = pytest.mark.redis
CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Hello"}]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A gateway of its own, which soon takes a rollout for dead."""
    folder = tmp_path_factory.mktemp("calls")
    a_models_root(folder)
    patience = {"WEIR_HEARTBEAT_S": "0.5", "WEIR_CLAIM_IDLE_S": "3"}
    with Server(folder) as server, a_gateway(server, folder, **patience) as stack:
        yield stack


@pytest.fixture(scope="module", autouse=True)
def idler(stack: Stack) -> Iterator[None]:
    """A rollout that is there and takes no call, so that the gateway has one in sight."""
    with stack.http() as http:
        refused = http.post(CHAT, json={"model": "tiny", "messages": HELLO})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_rollout")
        with a_rollout(stack, name="idler", room=0):
            wait_for(lambda: is_asked(http))
            yield


def is_asked(http: httpx.Client) -> bool:
    """Whether a call waits for a rollout, which it does until its client leaves."""
    try:
        return not http.post(CHAT, json={"model": "tiny", "messages": HELLO}, timeout=1)
    except httpx.ReadTimeout:
        return True


@pytest.fixture
def rollout(stack: Stack) -> Iterator[FakeRollout]:
    with a_rollout(stack) as rollout:
        yield rollout


def ask(sdk: openai.OpenAI, **values: Any) -> Any:
    return sdk.chat.completions.create(**{"model": "tiny", "messages": HELLO, **values})


def test_a_chat_is_answered(sdk: openai.OpenAI, rollout: FakeRollout) -> None:
    answer = ask(sdk, logprobs=True, top_logprobs=2, temperature=0, extra_body={"top_k": 5})
    assert answer.model == "tiny"
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "0 1 2 3 4 ")
    assert choice.finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 5)
    first = choice.logprobs.content[0]
    assert (first.token, first.logprob, bytes(first.bytes)) == ("0 ", -0.5, b"0 ")
    assert [each.token for each in first.top_logprobs] == ["0 ", "1 "]
    spans = [{"attempt": 1, "version": 7, "start": 0, "end": 5}]
    assert answer.weir["weight_versions"] == [spans]
    assert (answer.weir["rollouts"], answer.weir["model"]) == (["rollout-1"], "tiny")
    (call,) = rollout.taken
    assert call.served.folder.endswith("/models/tiny")
    assert (call.sampling.temperature, call.sampling.top_k, call.streams) == (0, 5, False)
