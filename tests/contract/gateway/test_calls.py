"""Calls by the openai SDK, answered by rollouts that count, over the real gateway and exchange."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from protocol import streams
from protocol.calls import Call, CallSampling, Refusal, Served
from protocol.exchange import Exchange, connect
from protocol.messages import JobState
from protocol.operations import State
from protocol.recipe import Model

from services.chassis.deployment import Deployment
from services.chassis.service import Service
from services.gateway.core.calls.model_resolution import resolve_sampler
from services.gateway.core.calls.pending import PendingCall, PendingCalls
from services.gateway.core.files.store import FileStore
from services.gateway.core.jobs.service import JobService
from services.gateway.errors import Problem
from tests.builders import a_job_record, a_recipe
from tests.contract.gateway.conftest import a_models_root
from tests.contract.gateway.fake_rollout import COUNTED, FakeRollout, a_rollout, parse_tokens
from tests.contract.gateway.stack import (
    KEY,
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
        wait_until(lambda: asyncio.run(is_asked(stack)))
        yield


async def is_asked(stack: Stack) -> bool:
    """Whether the gateway sees a rollout, so that a call waits for it until its client leaves."""
    async with a_client(stack) as http, connect(stack.server.url, me="test") as exchange:
        request = asyncio.create_task(http.post(CHAT, json=a_body()))
        while not request.done():
            if await num_waiting(exchange):
                request.cancel()
                await wait_for_calls(exchange, 0)
                return True
            await asyncio.sleep(0.02)
        return False


@pytest.fixture
def rollout(stack: Stack) -> Iterator[FakeRollout]:
    with a_rollout(stack) as rollout:
        yield rollout


def ask(sdk: openai.OpenAI, **values: Any) -> Any:
    return sdk.chat.completions.create(**{"model": "tiny", "messages": HELLO, **values})


def a_body(**values: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [dict(HELLO[0])], **values}


def a_client(stack: Stack) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {KEY}"}
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=stack.url, headers=headers, limits=limits, timeout=120)


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


def test_a_chat_is_answered(sdk: openai.OpenAI, rollout: FakeRollout) -> None:
    answer = ask(sdk, logprobs=True, top_logprobs=2, temperature=0, extra_body={"top_k": 5})
    assert answer.model == "tiny"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "0 1 2 3 4 "
    assert choice.finish_reason == "stop"
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == 5
    first = choice.logprobs.content[0]
    assert first.token == "0 "
    assert first.logprob == -0.5
    assert bytes(first.bytes) == b"0 "
    assert [token.token for token in first.top_logprobs] == ["0 ", "1 "]
    spans = [{"attempt": 1, "version": 7, "start": 0, "end": 5}]
    assert answer.weir["weight_versions"] == [spans]
    assert answer.weir["rollouts"] == ["rollout-1"]
    assert answer.weir["model"] == "tiny"
    (call,) = rollout.calls
    assert call.served.folder.endswith("/models/tiny")
    assert call.sampling.temperature == 0
    assert call.sampling.top_k == 5
    assert not call.streams


def test_a_chat_is_streamed_as_it_comes(sdk: openai.OpenAI, rollout: FakeRollout) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
    chunks = list(ask(sdk, **options, n=2, extra_body={"return_token_ids": True}))
    *parts, usage = chunks
    assert usage.choices == []
    assert usage.usage.completion_tokens == 10
    assert len(parts) > 2
    for place in range(2):
        chunks_of_place = [chunk for chunk in parts if chunk.choices[0].index == place]
        choices = [chunk.choices[0] for chunk in chunks_of_place]
        assert "".join(choice.delta.content for choice in choices) == "0 1 2 3 4 "
        assert [choice.delta.role for choice in choices] == ["assistant"] + [None] * (
            len(chunks_of_place) - 1
        )
        assert choices[-1].finish_reason == "stop"
        assert chunks_of_place[0].prompt_token_ids == [*parse_tokens("Hello")]
        assert [token_id for choice in choices for token_id in choice.token_ids] == COUNT
        assert [entry.token for choice in choices for entry in choice.logprobs.content] == TEXTS
    assert parts[-1].weir["weight_versions"][1][0]["end"] == 5


def test_each_response_is_a_call_with_its_seed_and_stops(
    sdk: openai.OpenAI, rollout: FakeRollout
) -> None:
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    extra = {"return_token_ids": True, "chat_template_kwargs": {"enable_thinking": False}}
    answer = ask(sdk, n=3, seed=8, stop=["3"], tools=tools, extra_body=extra)
    assert [choice.message.content for choice in answer.choices] == ["0 1 2 "] * 3
    assert {choice.stop_reason for choice in answer.choices} == {"3"}
    assert [choice.token_ids for choice in answer.choices] == [COUNT[:4]] * 3
    assert sorted(call.sampling.seed or 0 for call in rollout.calls) == [8, 9, 10]
    call = rollout.calls[0]
    assert [dict(tool) for tool in call.tools] == tools
    assert call.chat_template_options == {"enable_thinking": False}
    assert answer.usage.prompt_tokens == len(answer.prompt_token_ids)
    cut = ask(sdk, max_completion_tokens=2).choices[0]
    assert cut.message.content == "0 1 "
    assert cut.finish_reason == "length"


def test_texts_and_tokens_are_continued(sdk: openai.OpenAI, rollout: FakeRollout) -> None:
    body: Any = {"model": "tiny", "logprobs": 1, "max_tokens": 2}
    answer = sdk.completions.create(**body, prompt=["a", "bc"], n=2)
    assert [choice.text for choice in answer.choices] == ["0 1 "] * 4
    assert sorted(call.text or "" for call in rollout.calls) == ["a", "a", "bc", "bc"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == 8
    logprobs: Any = answer.choices[0].logprobs
    assert logprobs.tokens == ["0 ", "1 "]
    assert logprobs.token_logprobs == [-0.5] * 2
    assert logprobs.top_logprobs == [{"0 ": -1.0}, {"1 ": -1.0}]
    prompts = [[7] * 8000] * 4
    streamed = list(sdk.completions.create(**body, prompt=prompts, stream=True))
    assert (
        "".join(chunk.choices[0].text for chunk in streamed if chunk.choices[0].index == 3)
        == "0 1 "
    )
    assert rollout.calls[-1].token_ids == (7,) * 8000


def test_tokens_are_generated_as_vllm_does(http: httpx.Client, rollout: FakeRollout) -> None:
    sampling = {"max_tokens": 2, "logprobs": 1, "stop_token_ids": [2], "skip_special_tokens": False}
    body = {"model": "tiny", "token_ids": [7] * 8000, "sampling_params": sampling}
    answer = http.post("/inference/v1/generate", json=body | {"return_token_ids": True}).json()
    (choice,) = answer["choices"]
    assert choice["token_ids"] == COUNT[:2]
    assert choice["finish_reason"] == "length"
    entry = {"token": f"token_id:{COUNTED}", "token_id": COUNTED}
    likely = [entry | {"logprob": -1.0}]
    assert choice["logprobs"]["content"][0] == {**entry, "logprob": -0.5, "top_logprobs": likely}
    assert choice["weight_versions"] == [{"attempt": 1, "version": 7, "start": 0, "end": 2}]
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
    for choice, spans in zip(answer.choices, answer.weir["weight_versions"], strict=True):
        assert choice.message.content == "0 1 2 3 4 "
        assert [entry.token for entry in choice.logprobs.content] == TEXTS
        assert [span["version"] for span in spans] == [7, 8]
        assert spans[0]["start"] == 0
        assert spans[0]["end"] == spans[1]["start"]
        assert spans[1]["end"] == 5
    assert answer.weir["rollouts"] == ["first", "second"]
    resumed = {call.id: call for call in reversed(second.calls)}.values()  # in their first tries
    assert len(resumed) == 3
    assert min(call.tries for call in resumed) == 1
    assert sum(len(call.so_far) for call in resumed) == 5


def test_a_call_that_is_given_back_is_asked_again(stack: Stack, sdk: openai.OpenAI) -> None:
    moved = Refusal(status=409, code="moved", message="a job has begun", again=True)
    with a_rollout(stack, refuse=lambda call: moved if call.tries < 2 else None) as rollout:
        assert ask(sdk).choices[0].message.content == "0 1 2 3 4 "
        assert [call.tries for call in rollout.calls] == [0, 1, 2]


def test_a_refusal_is_the_answer_also_in_the_middle_of_a_stream(
    stack: Stack, sdk: openai.OpenAI, http: httpx.Client
) -> None:
    refusal = Refusal(status=400, code="context_length_exceeded", message="too long")
    with a_rollout(stack, refuse=lambda _: refusal):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="too long") as caught:
                ask(sdk, stream=stream)
            assert caught.value.code == "context_length_exceeded"
    broken = Refusal(status=500, code="engine_died", message="it broke")
    with a_rollout(stack, refuse=lambda call: broken if call.id in begun else None) as rollout:
        begun = set[str]()
        with http.stream("POST", CHAT, json=a_body(stream=True)) as reply:
            events = reply.iter_lines()
            assert json.loads(next(events)[6:])["choices"][0]["delta"]["content"]
            begun |= {call.id for call in rollout.calls}
            *_, last = filter(None, events)
        if last != "data: [DONE]":  # else all had come before
            assert json.loads(last[6:])["error"]["code"] == "engine_died"


def test_a_call_under_way_reports_its_wait(stack: Stack, http: httpx.Client) -> None:
    session = "/rollout/slow"
    call = http.stream("POST", session + CHAT, json=a_body(stream=True))
    with a_rollout(stack, begins=lambda _: False), call as reply:
        lines = reply.iter_lines()  # httpx closes the response with this iterator
        assert ": counts" in lines
        (waiting,) = http.get(session).json()["under_way"]
        assert {"created_at", "seconds", "quiet_seconds"} <= waiting.keys()


async def test_a_call_whose_client_leaves_is_withdrawn(stack: Stack) -> None:
    async with a_client(stack) as http:
        with a_rollout(stack, begins=lambda _: False) as rollout:
            for number, stream in enumerate((False, True), start=1):
                leaving = asyncio.create_task(http.post(CHAT, json=a_body(stream=stream)))
                await asyncio.to_thread(wait_until, lambda n=number: len(rollout.calls) == n)
                leaving.cancel()
                await asyncio.to_thread(wait_until, lambda n=number: len(rollout.dropped) == n)
        leaving = asyncio.create_task(http.post(CHAT, json=a_body()))
        async with connect(stack.server.url, me="test") as exchange:
            await wait_for_calls(exchange, 1)
            leaving.cancel()
            await wait_for_calls(exchange, 0)


async def test_requests_are_answered_while_hundreds_of_calls_wait(stack: Stack) -> None:
    async with a_client(stack) as http, connect(stack.server.url, me="test") as exchange:
        waiting = list[asyncio.Task[httpx.Response]]()
        for count in range(20, 201, 20):
            waiting += (asyncio.create_task(http.post(CHAT, json=a_body())) for _ in range(20))
            await wait_for_calls(exchange, count)
        assert (await http.get("/v1/models")).is_success
        assert not any(task.done() for task in waiting)
        with a_rollout(stack, room=1000):
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}


SERVED = Served(name="it", folder="/it", model=Model(path="/it"))


def a_call(call_id: str) -> Call:
    return Call(id=call_id, gateway="test", served=SERVED, text="a", sampling=CallSampling())


async def exhaust(looks: AsyncIterator[None]) -> None:
    async for _ in looks:
        pass


async def never() -> Served:
    raise AssertionError("it was not asked again")


async def test_a_call_too_many_is_refused(exchange: Exchange) -> None:
    desk = PendingCalls(exchange, 60, lambda: ["rollout-1"], max_waiting=2)
    news = asyncio.Event()
    answers = [PendingCall(a_call(str(n)), never, news) for n in range(3)]
    with pytest.raises(Problem) as caught:
        await exhaust(desk.follow(answers))
    assert caught.value.status_code == 503
    assert caught.value.code == "too_many_calls"
    assert (caught.value.headers or {})["Retry-After"]


async def test_a_call_ends_also_if_it_can_be_neither_withdrawn_nor_recorded(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: str) -> None:
        raise RuntimeError("READONLY")

    def never_recorded(_: PendingCall) -> None:
        raise RuntimeError("no disk")

    monkeypatch.setattr(exchange, "withdraw_call", fails)
    desk = PendingCalls(exchange, 60, lambda: ["rollout-1"])
    answer = PendingCall(a_call("1"), never)
    looks = desk.follow([answer], never_recorded)
    await anext(looks)
    answer.end_try(Refusal(status=400, code="bad", message="it is bad"))
    with pytest.raises(Problem, match="the gateway failed"):
        await exhaust(looks)


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
    ("is_taken", "silent_s", "code"), [(True, 601, "not_answered"), (False, 301, "not_taken")]
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
    with pytest.raises(Problem, match="rollout-1 loads") as caught:
        await exhaust(looks)
    assert caught.value.code == code
    assert caught.value.headers == {"Retry-After": "2"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("frequency_penalty", 0.5),
        ("tool_choice", "required"),
        ("temprature", 1),
        ("temperature", -1),
        ("n", 0),
        ("top_logprobs", 3),
        ("max_tokens", "5"),
        ("messages.0.content", [{"type": "image_url", "image_url": {"url": "x"}}]),
        ("messages.0.role", ["narrator"]),
        ("messages.0.tool_calls", 5),
        ("messages.0.tool_calls", True),
        ("stop", ["x"] * 17),
    ],
)
def test_a_field_that_is_wrong_is_named(http: httpx.Client, field: str, value: Any) -> None:
    body = a_body()
    *path, name = field.split(".")
    part: Any = body["messages"][0] if path else body
    part[name] = value
    assert_refused(http.post(CHAT, json=body), 400, field)


def test_fields_without_effect_are_accepted(http: httpx.Client, rollout: FakeRollout) -> None:
    idle: Any = {"user": "me", "frequency_penalty": 0, "tool_choice": "none", "seed": None}
    messages = [{"role": "assistant", "content": None, "refusal": "no"}, *HELLO]
    options = {"stream_options": {"continuous_usage_stats": False}}
    body = a_body(**idle, **options, messages=messages)
    assert http.post(CHAT, json=body).is_success
    sampling = {"sampling_params": {"prompt_logprobs": 1}, "token_ids": [1], "model": "tiny"}
    refused = http.post("/inference/v1/generate", json=sampling)
    assert_refused(refused, 400, "sampling_params.prompt_logprobs")


def test_messages_reach_templates_in_their_form(http: httpx.Client, rollout: FakeRollout) -> None:
    def turns(arguments: str) -> list[dict[str, Any]]:
        calls = [{"id": "1", "function": {"name": "add", "arguments": arguments}}]
        blocks = [{"type": "text", "text": part} for part in ("a", "b")]
        return [{"role": "user", "content": blocks}, {"role": "assistant", "tool_calls": calls}]

    assert http.post(CHAT, json=a_body(messages=turns('{"a": 1}'))).is_success
    user, assistant = cast(Any, rollout.calls[0].messages)
    assert user["content"] == "ab"
    assert assistant["content"] == ""
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    for text in ("[1]", "{", "[" * 100_000):
        reply = http.post(CHAT, json=a_body(messages=turns(text)))
        assert_refused(reply, 400, "messages.1.tool_calls.0.function.arguments")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"prompt": [7] * 8193}, "context_length_exceeded"),
        ({"prompt": "a" * 8192 * 17}, "context_length_exceeded"),
        ({"prompt": "a", "logprobs": 20, "max_tokens": 8192, "n": 3}, "invalid_value"),
    ],
)
def test_a_request_that_is_too_large_is_refused_at_once(
    http: httpx.Client, body: Any, code: str
) -> None:
    reply = http.post("/v1/completions", json={"model": "tiny", **body})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == code


# ---------------------------------------------------------------------- weights


def test_models_and_saved_samplers_answer_during_a_clients_session(
    stack: Stack, sdk: openai.OpenAI, rollout: FakeRollout
) -> None:
    job = f"ftjob-{'5' * 24}"
    stack.exchange(lambda exchange: exchange.submit(a_job_record(job, recipe=a_recipe(client={}))))
    train(stack, job)
    assert ask(sdk).model == "tiny"
    folder = a_model(stack.job_folder(job) / "samplers/version-000012")
    State(base="tiny", dtype="float32", lora=None, version=12).write(folder)
    a_model(stack.job_folder(job) / "other")
    os.utime(folder, (1, 1))

    async def sampler(name: str, exchange: Exchange) -> Served:
        values = {"WEIR_REDIS_URL": stack.server.url, "WEIR_DATA_DIR": str(stack.data_dir)}
        deployment = Deployment.from_environment(values | {"WEIR_PORT": "1"})
        jobs = JobService(Service("gateway", deployment, exchange), FileStore(stack.data_dir))
        return await resolve_sampler(job, name, jobs)

    served = stack.exchange(partial(sampler, "version-000012"))
    assert served.folder == str(folder)
    assert served.base == ""
    assert served.version == 12
    assert served.attempt == 1
    assert served.model.lora is None
    assert folder.stat().st_mtime > 1
    for name in ("version-000013", "../other", ""):
        with pytest.raises(Problem) as refused:
            stack.exchange(partial(sampler, name))
        assert refused.value.status_code == 404
    end(stack, job)


def test_the_newest_weights_answer_while_a_job_trains_and_its_models_after_it(
    stack: Stack, sdk: openai.OpenAI, http: httpx.Client
) -> None:
    job = submit_job(http)

    def refusal(model: str) -> tuple[int, str]:
        reply = http.post(CHAT, json=a_body(model=model))
        return reply.status_code, reply.json()["error"]["code"]

    a_checkpoint(stack, job, 2)
    assert refusal(job) == (404, "model_not_found")
    assert f"ftckpt-{job}-2" in http.post(CHAT, json=a_body(model=job)).json()["detail"]
    train(stack, job)
    with a_rollout(stack) as rollout:
        for other in ("tiny", f"{job}@2"):
            assert refusal(other) == (503, "engine_busy")
        assert refusal("none") == (404, "model_not_found")
        assert ask(sdk, model=job).weir["model"] == job
        end(stack, job)
        (stack.job_folder(job) / "checkpoints/step-000002/model/adapter_config.json").touch()
        for model in (job, f"{job}@2", f"ftckpt-{job}-2", "tiny"):
            ask(sdk, model=model)
        newest, result, checkpoint, same, base = [call.served for call in rollout.calls]
    assert newest.key == f"job:{job}"
    assert newest.model.max_context == 64
    assert result.folder == str(stack.job_folder(job) / "model")
    assert result.base == ""
    assert checkpoint.key == same.key
    assert checkpoint.version == 2
    assert checkpoint.base == newest.model.path
    assert result.attempt == 1
    assert checkpoint.attempt == 0
    assert base.job_id == ""
    assert base.model.prompt_template == "{prompt}"
    assert base.model.dtype == "bfloat16"


# ---------------------------------------------------------------------- sessions


def test_the_turns_of_a_session_are_one_trace(stack: Stack, http: httpx.Client) -> None:
    session = "/rollout/s-1"
    generate = f"{session}/inference/v1/generate"
    failing = Refusal(status=500, code="engine_died", message="it broke")
    with (
        openai.OpenAI(base_url=f"{stack.url}{session}/v1", api_key=KEY, max_retries=0) as sdk,
        a_rollout(stack, refuse=lambda call: failing if call.sampling.seed == 1 else None),
    ):
        answer = {"role": "assistant", "content": "".join(TEXTS)}
        turns = [*HELLO, answer, {"role": "user", "content": "again"}]
        for messages in (HELLO, turns):
            assert ask(sdk, messages=messages).choices[0].message.content == "0 1 2 3 4 "
        list(sdk.completions.create(model="tiny", prompt="other", stream=True, max_tokens=2))
        with pytest.raises(openai.InternalServerError):
            ask(sdk, seed=1)
        body = {"model": "tiny", "token_ids": [*parse_tokens("other"), *COUNT[:2]]}
        assert http.post(generate, json=body).is_success
        assert http.post(generate, json=body | {"token_ids": [7] * 8193}).status_code == 400
    assert http.get(f"{session}/v1/models").json() == http.get("/v1/models").json()
    trace = http.get(session).json()
    errors = [call["error"]["code"] for call in trace["calls"] if call.get("error")]
    assert errors == ["engine_died", "context_length_exceeded"]
    assert len(trace["calls"]) == 6
    chat, other = trace["branches"]
    assert trace["num_branches"] == 2
    hello = parse_tokens("Hello")
    again = parse_tokens("again")
    assert chat["token_ids"] == [*hello, *COUNT, *again, *COUNT]
    is_sampled = [False] * 5 + [True] * 5
    assert chat["own"] == is_sampled * 2
    assert [logprob is not None for logprob in chat["logprobs"]] == chat["own"]
    assert other["token_ids"] == [*parse_tokens("other"), *COUNT[:2], *COUNT]
    assert http.delete(session).json()["deleted"]
    assert http.get(session).status_code == 404
    assert http.get("/rollout/.hidden").status_code == 400


def test_the_terms_of_a_session_decide_how_its_calls_are_sampled(
    stack: Stack, http: httpx.Client
) -> None:
    job = submit_job(http)
    train(stack, job)
    sampling = {"temperature": 0.5, "max_tokens": 3, "stop": ["2 "]}
    terms = {"job_id": job, "purpose": "train", "min_version": 2, "sampling": sampling, "seed": 7}
    session = "/rollout/try-1"
    chat = session + CHAT
    key = http.put(session, json=terms).json()["key"]
    assert_refused(http.put(session, json=terms), 409, "session")
    assert_refused(http.put(session, json={**terms, "version": "new"}), 400, "version")
    for stop, field in (([*map(str, range(17))], "sampling.stop"), ([""], "sampling.stop.0")):
        changed = {**terms, "sampling": {**sampling, "stop": stop}}
        assert_refused(http.put(session, json=changed), 400, field)
    body = a_body(model="mine", temperature=2, max_tokens=9, seed=1, stop=["0 "])
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
        assert call.terms is not None
        assert call.terms.model_dump(mode="json", exclude_defaults=True) == terms
        assert call.sampling.temperature == 0.5
        assert call.sampling.stop == ("2 ",)
    assert [call.sampling.max_tokens for call in rollout.calls] == [3, 2, 3, 3]
    assert len({call.sampling.seed for call in rollout.calls} - {1}) >= 3
    trace = http.get(session).json()
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
    stack: Stack, http: httpx.Client
) -> None:
    url = f"/rollout/chats{CHAT}"
    again = {"role": "user", "content": "again"}
    reply = {"role": "assistant", "content": "0 1 2 3 4"}  # without its last blank
    second = [*HELLO, reply, again]
    tokens = (*parse_tokens("Hello"), *COUNT)
    longer = (*tokens, *parse_tokens("again"), *COUNT)
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
    starts = [call.begun and call.begun.token_ids for call in rollout.calls]
    assert starts == [None, tokens, longer, None, None, None, tokens]
    nums_messages = [call.begun.num_messages for call in rollout.calls if call.begun]
    assert nums_messages == [2, 4, 2]
