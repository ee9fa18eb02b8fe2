"""Calls by the openai SDK, answered by rollouts that count, over the real gateway and exchange."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import httpx
import openai
import pytest
from protocol import streams
from protocol.calls import Call, CallSampling, ChatPrefix, Refusal, Served, Terms
from protocol.exchange import Exchange, connect
from protocol.messages import JobState
from protocol.operations import State
from protocol.recipe import Model

from services.gateway.core.calls.model_resolution import resolve_sampler
from services.gateway.core.calls.pending import PendingCall, PendingCalls
from services.gateway.errors import Problem
from tests.builders import a_job_record, a_recipe
from tests.contract.gateway.conftest import a_models_root
from tests.contract.gateway.fake_rollout import COUNTED, FakeRollout, a_rollout, parse_tokens
from tests.contract.gateway.stack import (
    KEY,
    Client,
    Stack,
    a_checkpoint,
    a_gateway,
    a_model,
    assert_refused,
    submit_job,
    train,
    wait_until,
)
from tests.contract.valkey_server import Server

pytestmark = [pytest.mark.redis, pytest.mark.anyio]
CHAT = "/v1/chat/completions"
GENERATE = "/inference/v1/generate"
HELLO: Any = [{"role": "user", "content": "Hello"}]
COUNT = [COUNTED + number for number in range(5)]
TEXTS = [f"{number} " for number in range(5)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A gateway of its own, which takes no rollout for dead that is slow alone."""
    folder = tmp_path_factory.mktemp("calls")
    a_models_root(folder)
    with Server(folder) as server, a_gateway(server, folder, WEIR_CLAIM_IDLE_S="60") as stack:
        yield stack


@pytest.fixture(scope="module", autouse=True)
def idler(stack: Stack) -> Iterator[None]:
    """A rollout that is there and takes no call, so that the gateway has one in sight."""
    with a_rollout(stack, name="idler", room=0):
        yield


@pytest.fixture
def rollout(stack: Stack) -> Iterator[FakeRollout]:
    with a_rollout(stack) as rollout:
        yield rollout


def ask(sdk: openai.OpenAI, **values: Any) -> Any:
    return sdk.chat.completions.create(
        **{
            "model": "tiny",
            "messages": HELLO,
            **values,
        }
    )


def a_body(**values: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [dict(HELLO[0])], **values}


async def num_waiting(exchange: Exchange) -> int:
    return await cast(Awaitable[int], exchange.writer.hlen(streams.CALL_BODIES))


async def wait_for_calls(exchange: Exchange, count: int) -> None:
    async with asyncio.timeout(60):
        while await num_waiting(exchange) != count:
            await asyncio.sleep(0.02)


def end(stack: Stack, job_id: str) -> None:
    a_model(stack.job_folder(job_id) / "model")

    async def close(exchange: Exchange) -> None:
        await exchange.update_job(job_id, 1, state=JobState.SUCCEEDED, step=3)
        await exchange.writer.delete(streams.ACTIVE)

    stack.exchange(close)


def test_each_response_of_a_chat_is_a_call(sdk: openai.OpenAI, rollout: FakeRollout) -> None:
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    extra = {
        "top_k": 5,
        "return_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    options = {
        "logprobs": True,
        "top_logprobs": 2,
        "temperature": 0,
        "seed": 8,
        "stop": ["3"],
    }
    answer = ask(
        sdk,
        n=3,
        tools=tools,
        extra_body=extra,
        **options,
    )
    for choice in answer.choices:
        assert choice.message.role == "assistant"
        assert choice.message.content == "0 1 2 "
        assert choice.finish_reason == "stop"
        assert choice.stop_reason == "3"
        assert choice.token_ids == COUNT[:4]
        assert choice.logprobs.content[0].to_dict() == {
            "token": "0 ",
            "logprob": -0.5,
            "bytes": [*b"0 "],
            "top_logprobs": [
                {"token": "0 ", "logprob": -1.0, "bytes": [*b"0 "]},
                {"token": "1 ", "logprob": -2.0, "bytes": [*b"1 "]},
            ],
        }
    assert answer.usage.prompt_tokens == len(answer.prompt_token_ids)
    assert answer.usage.completion_tokens == 12
    spans = [
        {
            "attempt": 1,
            "version": 7,
            "start": 0,
            "end": 4,
        }
    ]
    assert answer.weir["weight_versions"] == [spans] * 3
    assert answer.weir["rollouts"] == ["rollout-1"]
    assert answer.model == answer.weir["model"] == "tiny"
    assert sorted(call.sampling.seed or 0 for call in rollout.calls) == [8, 9, 10]
    call = rollout.calls[0]
    assert call.served.folder.endswith("/models/tiny")
    assert (call.sampling.temperature, call.sampling.top_k) == (0, 5)
    assert not call.streams
    assert [dict(tool) for tool in call.tools] == tools
    assert call.chat_template_options == {"enable_thinking": False}
    cut = ask(sdk, max_completion_tokens=2).choices[0]
    assert cut.message.content == "0 1 "
    assert cut.finish_reason == "length"


def test_a_chat_is_streamed_as_it_comes(sdk: openai.OpenAI, rollout: FakeRollout) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
    *parts, usage = ask(
        sdk,
        **options,
        n=2,
        extra_body={"return_token_ids": True},
    )
    assert usage.choices == []
    assert usage.usage.completion_tokens == 10
    for place in range(2):
        first, *others = [part for part in parts if part.choices[0].index == place]
        assert first.prompt_token_ids == [*parse_tokens("Hello")]
        choices = [part.choices[0] for part in (first, *others)]
        roles = [choice.delta.role for choice in choices]
        assert roles == ["assistant", *[None] * len(others)]
        assert "".join(choice.delta.content for choice in choices) == "0 1 2 3 4 "
        assert choices[-1].finish_reason == "stop"
        assert [token_id for choice in choices for token_id in choice.token_ids] == COUNT
        assert [entry.token for choice in choices for entry in choice.logprobs.content] == TEXTS
    assert parts[-1].weir["weight_versions"][1][0]["end"] == 5


def test_texts_and_tokens_are_continued(sdk: openai.OpenAI, rollout: FakeRollout) -> None:
    body: Any = {"model": "tiny", "logprobs": 1, "max_tokens": 2}
    answer: Any = sdk.completions.create(
        **body,
        prompt=["a", "bc"],
        n=2,
    )
    assert sorted(call.text or "" for call in rollout.calls) == ["a", "a", "bc", "bc"]
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == 8
    for choice in answer.choices:
        assert choice.text == "0 1 "
        assert choice.logprobs.tokens == ["0 ", "1 "]
        assert choice.logprobs.token_logprobs == [-0.5] * 2
        assert choice.logprobs.top_logprobs == [{"0 ": -1.0}, {"1 ": -1.0}]
    streamed = sdk.completions.create(
        **body,
        prompt=[[7] * 8000] * 4,
        stream=True,
    )
    choices = [chunk.choices[0] for chunk in streamed]
    assert "".join(choice.text for choice in choices if choice.index == 3) == "0 1 "
    assert rollout.calls[-1].token_ids == (7,) * 8000


def test_tokens_are_generated_as_vllm_does(http: Client, rollout: FakeRollout) -> None:
    sampling = {
        "max_tokens": 2,
        "logprobs": 1,
        "stop_token_ids": [2],
        "skip_special_tokens": False,
    }
    body = {"model": "tiny", "token_ids": [7] * 8000, "sampling_params": sampling}
    answer = http.post(GENERATE, json=body | {"return_token_ids": True}).json()
    (choice,) = answer["choices"]
    assert choice["token_ids"] == COUNT[:2]
    assert choice["finish_reason"] == "length"
    entry = {"token": f"token_id:{COUNTED}", "token_id": COUNTED}
    likely = [entry | {"logprob": -1.0}]
    assert choice["logprobs"]["content"][0] == {
        **entry,
        "logprob": -0.5,
        "top_logprobs": likely,
    }
    assert choice["weight_versions"] == [
        {
            "attempt": 1,
            "version": 7,
            "start": 0,
            "end": 2,
        }
    ]
    assert answer["prompt_token_ids"] == [7] * 8000
    assert answer["request_id"]
    assert rollout.calls[0].sampling.stop_token_ids == (2,)


# ---------------------------------------------------------------------- failures


def test_another_rollout_continues_the_calls_of_a_silent_one(tmp_path: Path) -> None:
    a_models_root(tmp_path)
    with (
        Server(tmp_path) as server,
        a_gateway(server, tmp_path, WEIR_CLAIM_IDLE_S="8") as stack,
        openai.OpenAI(base_url=f"{stack.url}/v1", api_key=KEY, max_retries=0) as sdk,
        a_rollout(stack, name="first", max_tokens=5) as first,
        ThreadPoolExecutor() as pool,
    ):
        whole = pool.submit(ask, sdk, n=2, logprobs=True)
        stream = pool.submit(lambda: list(ask(sdk, stream=True)))
        wait_until(lambda: len(first.calls) == 3 and first.max_tokens == 0)
        with a_rollout(stack, name="second", version=8) as second:
            answer = whole.result(120)
            chunks = stream.result(120)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "0 1 2 3 4 "
    for choice, spans in zip(
        answer.choices,
        answer.weir["weight_versions"],
        strict=True,
    ):
        assert choice.message.content == "0 1 2 3 4 "
        assert [entry.token for entry in choice.logprobs.content] == TEXTS
        assert [span["version"] for span in spans] == [7, 8]
        assert spans[0]["end"] == spans[1]["start"]
    assert answer.weir["rollouts"] == ["first", "second"]
    resumed = {call.id: call for call in reversed(second.calls)}.values()  # in their first tries
    assert sum(len(call.so_far) for call in resumed) == 5


def test_a_call_that_is_given_back_is_asked_again(stack: Stack, sdk: openai.OpenAI) -> None:
    moved = Refusal(status=409, code="moved", message="a job has begun", again=True)
    with a_rollout(stack, refuse=lambda call: moved if call.tries < 2 else None) as rollout:
        assert ask(sdk).choices[0].message.content == "0 1 2 3 4 "
        assert [call.tries for call in rollout.calls] == [0, 1, 2]


def test_a_refusal_is_the_answer_also_in_the_middle_of_a_stream(
    sdk: openai.OpenAI, rollout: FakeRollout
) -> None:
    long = Refusal(status=400, code="context_length_exceeded", message="too long")
    rollout.refuse = lambda _: long
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="too long") as caught:
            ask(sdk, stream=stream)
        assert caught.value.code == "context_length_exceeded"
    broken = Refusal(status=500, code="engine_died", message="it broke")
    rollout.refuse = lambda call: broken if rollout.counts[call.id] else None
    chunks = ask(sdk, stream=True)
    with pytest.raises(openai.APIError, match="it broke") as died:
        list(chunks)
    assert died.value.code == "engine_died"


def test_a_call_under_way_reports_its_wait(stack: Stack, http: Client) -> None:
    session = "/rollout/slow"
    call = http.stream("POST", session + CHAT, json=a_body(stream=True))
    with a_rollout(stack, begins=lambda _: False), call as reply:
        lines = reply.iter_lines()  # httpx closes the response with this iterator
        assert ": counts" in lines
        (waiting,) = http.read(session)["under_way"]
        assert {"created_at", "seconds", "quiet_seconds"} <= waiting.keys()


def test_a_call_whose_client_leaves_is_withdrawn(stack: Stack, http: Client) -> None:
    with a_rollout(stack, begins=lambda _: False) as rollout:
        with http.stream("POST", CHAT, json=a_body(stream=True)):
            wait_until(lambda: rollout.calls)
        wait_until(lambda: rollout.dropped)
        rollout.dropped.clear()
        while not rollout.dropped:
            with pytest.raises(httpx.ReadTimeout):
                http.post(CHAT, json=a_body(), timeout=1)
    with http.stream("POST", CHAT, json=a_body(stream=True)):
        wait_until(lambda: stack.exchange(num_waiting) == 1)
    wait_until(lambda: stack.exchange(num_waiting) == 0)


async def test_requests_are_answered_while_hundreds_of_calls_wait(stack: Stack) -> None:
    client = httpx.AsyncClient(
        base_url=stack.url,
        headers={"Authorization": f"Bearer {KEY}"},
        limits=httpx.Limits(max_connections=None),
        timeout=120,
    )
    async with client as http, connect(stack.server.url, me="test") as exchange:
        waiting = list[asyncio.Task[httpx.Response]]()
        for count in range(20, 201, 20):
            calls = (http.post(CHAT, json=a_body()) for _ in range(20))
            waiting += map(asyncio.create_task, calls)
            await wait_for_calls(exchange, count)
        assert (await http.get("/v1/models")).is_success
        assert not any(task.done() for task in waiting)
        with a_rollout(stack, room=1000):
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}


SERVED = Served(name="it", folder="/it", model=Model(path="/it"))


def a_call(call_id: str) -> Call:
    return Call(
        id=call_id,
        gateway="test",
        served=SERVED,
        text="a",
        sampling=CallSampling(),
    )


async def never() -> Served:
    raise AssertionError("it was not asked again")


async def read_problem(looks: AsyncIterator[None]) -> Problem:
    with pytest.raises(Problem) as caught:
        async for _ in looks:
            pass
    return caught.value


async def test_a_call_too_many_is_refused(exchange: Exchange) -> None:
    desk = PendingCalls(exchange, 60, lambda: ["rollout-1"], max_waiting=2)
    news = asyncio.Event()
    calls = [PendingCall(a_call(call_id), never, news) for call_id in "abc"]
    problem = await read_problem(desk.follow(calls))
    assert problem.status_code == 503
    assert problem.code == "too_many_calls"
    assert (problem.headers or {})["Retry-After"]


async def test_a_call_ends_also_if_it_can_be_neither_withdrawn_nor_recorded(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = AsyncMock(side_effect=RuntimeError("READONLY"))
    monkeypatch.setattr(exchange, "withdraw_call", fails)
    desk = PendingCalls(exchange, 60, lambda: ["rollout-1"])
    answer = PendingCall(a_call("1"), never)
    looks = desk.follow([answer], Mock(side_effect=RuntimeError("no disk")))
    await anext(looks)
    answer.end_try(Refusal(status=400, code="bad", message="it is bad"))
    assert (await read_problem(looks)).status_code == 500


async def test_a_death_counts_once_and_a_call_may_be_asked_again_beyond_the_limit(
    exchange: Exchange,
) -> None:
    looking = list[asyncio.Task[None]]()

    async def meanwhile() -> Served:
        looking.append(asyncio.create_task(desk.renew()))
        await asyncio.sleep(0)  # it begins to ask Redis which calls wait
        return SERVED

    desk = PendingCalls(exchange, 60, lambda: ["rollout-1"], max_waiting=1)
    answer = PendingCall(a_call("1"), meanwhile)
    async with aclosing(desk.follow([answer])) as looks:
        await anext(looks)
        await exchange.take_calls(None, 1)
        await exchange.ask_call(a_call("other"), 1)
        answer.confirmed_at -= 100
        await desk.renew()
        await wait_for_calls(exchange, 2)
        assert answer.losses == 1
        assert answer.call.tries == 1
        assert not await answer.ends_within(0)
    await asyncio.gather(*looking)


@pytest.mark.parametrize(
    ("is_taken", "silent_s", "code"),
    [
        (True, 601, "not_answered"),
        (False, 301, "not_taken"),
    ],
)
async def test_a_silent_call_ends(
    exchange: Exchange, is_taken: bool, silent_s: float, code: str
) -> None:
    living = list[str]()
    desk = PendingCalls(exchange, 60, lambda: living)
    answer = PendingCall(a_call("1"), never)
    looks = desk.follow([answer])
    await anext(looks)
    living.append("rollout-1 loads")  # as one that has just begun, which the call has waited for
    await wait_for_calls(exchange, 1)
    if is_taken:
        await exchange.take_calls(None, 1)
    answer.received_at -= silent_s
    await desk.renew()
    problem = await read_problem(looks)
    assert problem.code == code
    assert "rollout-1 loads" in problem.detail
    assert problem.headers == {"Retry-After": "2"}


def test_fields_without_effect_are_accepted(http: Client, rollout: FakeRollout) -> None:
    idle: Any = {
        "user": "me",
        "frequency_penalty": 0,
        "tool_choice": "none",
        "seed": None,
    }
    messages = [{"role": "assistant", "content": None, "refusal": "no"}, *HELLO]
    options = {"stream_options": {"continuous_usage_stats": False}}
    body = a_body(**idle, **options, messages=messages)
    assert http.post(CHAT, json=body).is_success


def test_messages_reach_templates_in_their_form(http: Client, rollout: FakeRollout) -> None:
    def ask_with(arguments: str) -> httpx.Response:
        calls = [{"id": "1", "function": {"name": "add", "arguments": arguments}}]
        blocks = [{"type": "text", "text": part} for part in "ab"]
        turns = [{"role": "user", "content": blocks}, {"role": "assistant", "tool_calls": calls}]
        return http.post(CHAT, json=a_body(messages=turns))

    assert ask_with('{"a": 1}').is_success
    user, assistant = cast(Any, rollout.calls[0].messages)
    assert user["content"] == "ab"
    assert assistant["content"] == ""
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    refused = ask_with("[" * 100_000)
    assert_refused(refused, 400, "messages.1.tool_calls.0.function.arguments")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"prompt": [7] * 8193}, "context_length_exceeded"),
        ({"prompt": "a" * 8192 * 17}, "context_length_exceeded"),
        ({"prompt": "a", "logprobs": 20, "max_tokens": 8192, "n": 3}, "invalid_value"),
    ],
)
def test_a_request_that_is_too_large_is_refused_at_once(http: Client, body: Any, code: str) -> None:
    reply = http.post("/v1/completions", json={"model": "tiny", **body})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == code


# ---------------------------------------------------------------------- weights


def test_models_and_saved_samplers_answer_during_a_clients_session(
    stack: Stack, sdk: openai.OpenAI, rollout: FakeRollout
) -> None:
    job = f"ftjob-{'5' * 24}"
    record = a_job_record(job, recipe=a_recipe(client={}))
    stack.exchange(lambda exchange: exchange.submit(record))
    train(stack, job)
    assert ask(sdk).model == "tiny"
    folder = a_model(stack.job_folder(job) / "samplers/version-000012")
    State(
        base="tiny",
        dtype="float32",
        lora=None,
        version=12,
    ).write(folder)
    a_model(stack.job_folder(job) / "other")
    os.utime(folder, (1, 1))

    def resolve(name: str) -> Served:
        return stack.as_gateway(lambda jobs: resolve_sampler(job, name, jobs))

    served = resolve("version-000012")
    assert served.folder == str(folder)
    assert served.version == 12
    assert served.attempt == 1
    assert folder.stat().st_mtime > 1
    for name in ("version-000013", "../other", ""):
        with pytest.raises(Problem) as refused:
            resolve(name)
        assert refused.value.status_code == 404
    end(stack, job)


def test_the_newest_weights_answer_while_a_job_trains_and_its_models_after_it(
    stack: Stack, sdk: openai.OpenAI, http: Client
) -> None:
    job = submit_job(http)

    def refusals(*models: str) -> list[str]:
        replies = [http.post(CHAT, json=a_body(model=model)).json() for model in models]
        return [reply["error"]["code"] for reply in replies]

    a_checkpoint(stack, job, 2)
    assert refusals(job, "none") == ["model_not_found"] * 2
    train(stack, job)
    with a_rollout(stack) as rollout:
        assert refusals("tiny", f"{job}@2") == ["engine_busy"] * 2
        assert ask(sdk, model=job).weir["model"] == job
        end(stack, job)
        (stack.job_folder(job) / "checkpoints/step-000002/model/adapter_config.json").touch()
        for model in (job, f"{job}@2", f"ftckpt-{job}-2", "tiny"):
            ask(sdk, model=model)
        newest, result, checkpoint, same, base = [call.served for call in rollout.calls]
    assert newest.key == f"job:{job}"
    assert newest.model.max_context == 64
    assert result.folder == str(stack.job_folder(job) / "model")
    assert (result.base, result.attempt) == ("", 1)
    assert checkpoint.key == same.key
    assert checkpoint.version == 2
    assert (checkpoint.base, checkpoint.attempt) == (newest.model.path, 0)
    assert base.job_id == ""
    assert base.model.prompt_template == "{prompt}"
    assert base.model.dtype == "bfloat16"


# ---------------------------------------------------------------------- sessions


def test_the_turns_of_a_session_are_one_trace(stack: Stack, http: Client) -> None:
    session = "/rollout/s-1"
    failing = Refusal(status=500, code="engine_died", message="it broke")
    reply = {"role": "assistant", "content": "".join(TEXTS)}
    turns = [*HELLO, reply, {"role": "user", "content": "again"}]
    other_ids = [*parse_tokens("other"), *COUNT[:2]]
    with a_rollout(stack, refuse=lambda call: failing if call.sampling.seed == 1 else None):
        for path, changes in (
            (CHAT, {}),
            (CHAT, {"messages": turns}),
            ("/v1/completions", {"prompt": "other", "stream": True, "max_tokens": 2}),
            (CHAT, {"seed": 1}),
            (GENERATE, {"token_ids": other_ids}),
            (GENERATE, {"token_ids": [7] * 8193}),
        ):
            body = a_body() if path == CHAT else {"model": "tiny"}
            http.post(session + path, json=body | changes)
    assert http.read(f"{session}/v1/models") == http.read("/v1/models")
    trace = http.read(session)
    codes = [(call.get("error") or {}).get("code") for call in trace["calls"]]
    assert codes == [None, None, None, "engine_died", None, "context_length_exceeded"]
    chat, other = trace["branches"]
    assert chat["token_ids"] == [
        *parse_tokens("Hello"),
        *COUNT,
        *parse_tokens("again"),
        *COUNT,
    ]
    assert chat["own"] == ([False] * 5 + [True] * 5) * 2
    assert [logprob is not None for logprob in chat["logprobs"]] == chat["own"]
    assert other["token_ids"] == other_ids + COUNT
    assert http.delete(session).json()["deleted"]
    assert http.get(session).status_code == 404
    assert http.get("/rollout/.hidden").status_code == 400


def test_the_terms_of_a_session_decide_how_its_calls_are_sampled(
    stack: Stack, http: Client
) -> None:
    job = submit_job(http)
    train(stack, job)
    sampling = {"temperature": 0.5, "max_tokens": 3, "stop": ["2 "]}
    terms = {
        "job_id": job,
        "purpose": "train",
        "min_version": 2,
        "sampling": sampling,
        "seed": 7,
    }
    session = "/rollout/try-1"
    chat = session + CHAT
    key = http.put(session, json=terms).json()["key"]
    assert_refused(http.put(session, json=terms), 409, "session")
    body = a_body(
        model="mine",
        temperature=2,
        max_tokens=9,
        seed=1,
        stop=["0 "],
    )
    with a_rollout(stack) as rollout:
        for changes in ({}, {"max_tokens": 2}):
            assert http.post(chat, json=body | changes).is_success
        with a_gateway(stack.server, stack.data_dir.parent) as another, another.http(key) as agent:
            assert agent.post(chat, json=body).is_success
        text = {"model": "mine", "prompt": "a"}
        assert http.post(f"{session}/v1/completions", json=text).is_success
    for call in rollout.calls:
        assert call.key == f"work:{job}"
        assert call.served.name == job
        assert call.terms == Terms.model_validate(terms)
        assert call.sampling.temperature == 0.5
        assert call.sampling.stop == ("2 ",)
    assert [call.sampling.max_tokens for call in rollout.calls] == [3, 2, 3, 3]
    assert len({call.sampling.seed for call in rollout.calls} - {1}) >= 3
    trace = http.read(session)
    assert trace["calls"][0]["messages"] == HELLO
    assert [call["text"] for call in trace["calls"]] == ["0 1 "] * 4
    assert http.delete(session).json() == trace | {"deleted": True}
    for reply in (http.post(chat, json=body), http.get(session)):
        assert reply.status_code == 404
    assert http.put(session, json=terms).is_success
    with stack.http(key) as late:
        assert late.post(chat, json=body).status_code == 401
    end(stack, job)
    refused = http.post(chat, json=body)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "job_not_active"


def test_a_rollout_gets_the_tokens_of_the_call_that_a_chat_continues(
    stack: Stack, http: Client
) -> None:
    url = f"/rollout/chats{CHAT}"
    again = {"role": "user", "content": "again"}
    reply = {"role": "assistant", "content": "0 1 2 3 4"}  # without its last blank
    second = [*HELLO, reply, again]
    bodies = [
        a_body(),
        a_body(messages=second),
        a_body(messages=[*second, reply, again]),
        a_body(messages=[*HELLO, again, reply, again]),
        a_body(messages=second, tools=[{"type": "function"}]),
        a_body(messages=second, chat_template_kwargs={"effort": 1}),
    ]
    with a_rollout(stack) as rollout:
        for body in bodies:
            assert http.post(url, json=body).is_success
        with a_gateway(stack.server, stack.data_dir.parent) as another, another.http() as other:
            assert other.post(url, json=bodies[1]).is_success
    tokens = (*parse_tokens("Hello"), *COUNT)
    first = ChatPrefix(num_messages=2, token_ids=tokens)
    both = ChatPrefix(num_messages=4, token_ids=(*tokens, *parse_tokens("again"), *COUNT))
    assert [call.begun for call in rollout.calls] == [
        None,
        first,
        both,
        None,
        None,
        None,
        first,
    ]
