"""A rollout and the calls of the door: few beside a job, any model at rest, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from protocol import weights
from protocol.calls import Call, Piece, Served, Terms, Token
from protocol.exchange import connect
from protocol.messages import ActiveJob, Doing, FinishReason, PolicyVersion, Probes, Requested
from protocol.operations import PROBES
from protocol.recipe import Model
from protocol.streams import FAILED, REQUESTS, ROLLOUTS

from services.chassis.consumer import Consumer, work_forever
from services.chassis.deployment import Deployment
from services.chassis.parity import digest_prompts
from services.chassis.service import Service
from services.rollout.calls import CallServer
from services.rollout.engine import Engine
from services.rollout.policy_sync import PolicyFollower
from services.rollout.samples import EngineError, IncompatibleEngine, LoadError
from services.rollout.worker import GroupSampler
from tests.builders import a_job_record, a_recipe
from tests.contract.call_client import CallClient, a_call
from tests.contract.valkey_server import Server
from tests.inline_prompts import InlinePrompts
from tests.unit.rollout.test_policy_sync import write_folder

pytestmark = [pytest.mark.anyio, pytest.mark.redis]
PLACES = 16


class Sampler:
    """Stands in for the engine: a response goes on until it is told to end."""

    has_died = sleeps = False
    places = PLACES
    prompts = InlinePrompts()
    settings = SimpleNamespace(max_context=64)

    def __init__(self) -> None:
        self.under_way: list[str] = []
        self.loaded: list[str] = []
        self.ends, self.may_load = asyncio.Event(), asyncio.Event()
        self.may_load.set()
        self.fault: Exception | None = None
        self.load_s = 0.0  # that a load is said to take

    async def load(self, folder: Path, label: str, *, keep_kv: bool) -> dict[str, float]:
        await self.may_load.wait()
        if self.fault is not None:
            raise self.fault
        self.loaded.append(folder.name)
        return {"load": self.load_s}

    async def score(self, prompt: object, seconds: dict[str, float]) -> list[float]:
        return [-1.0]

    async def answer(self, call: Call, ids: list[int], max_tokens: int) -> AsyncIterator[Piece]:
        self.under_way.append(call.id)
        own: dict[str, Any] = {"call_id": call.id, "tries": call.tries}
        try:
            tokens = tuple(Token(id=each, text=str(each), logprob=-1.0) for each in ids)
            yield Piece(**own, tokens=tokens, text=self.loaded[-1], prompt_ids=tuple(ids))
            await self.ends.wait()
            yield Piece(**own, finish_reason=FinishReason.STOP)
        finally:
            self.under_way.remove(call.id)


def terms_of(**changes: Any) -> Terms:
    values = {"job_id": "job", "purpose": "train", "sampling": {"max_tokens": 8}, "seed": 1}
    return Terms.model_validate(values | changes)


@dataclass
class Line:
    service: Service
    door: CallClient
    engine: Sampler
    follower: PolicyFollower
    answering: CallServer
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.service.deployment.data_dir

    def call(self, call_id: str, model: str = "", **changes: Any) -> Call:
        """For a folder with a model that is the size of its name's, or the newest weights."""
        folder = str(self.model(model)) if model else ""
        served = Served(name=model, job_id="job", folder=folder, model=a_recipe().model)
        return a_call(call_id, served=served, token_ids=(1, 2), **changes)

    def model(self, name: str) -> Path:
        write_folder(self.folder / name, hidden=len(name))
        return self.folder / name

    def sampler(self, name: str, logprob: float) -> Path:
        """As a client's session saves one: the learner's log-prob of the probe is ``logprob``."""
        folder, rendered = self.model(name), digest_prompts((), None, cast(Any, None), {})
        given = {"tasks": (), "rendered": rendered, "token_ids": (1, 2), "most": 0.1}
        probes = Probes(**given, logprobs=(logprob,))
        (folder / PROBES).write_text(probes.model_dump_json())
        weights.seal(folder)
        return folder

    async def begin_job(self, **tables: Any) -> None:
        exchange, recipe = self.door.exchange, a_recipe(**tables)
        await exchange.submit(a_job_record(recipe=recipe))
        await exchange.begin_attempt("job")
        await exchange.activate(ActiveJob(job_id="job", attempt=1, recipe=recipe))
        if recipe.client is None:
            await self.announce(0)

    async def announce(self, number: int, **told: Any) -> None:
        folder = weights.version_folder("job", 1, number)
        root = self.service.deployment.weights_dir
        digest = weights.write(root, folder, lambda target: write_folder(target))
        version = {"job_id": "job", "attempt": 1, "number": number, "folder": folder}
        await self.door.exchange.announce(PolicyVersion(**version, digest=digest, **told))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await self.door.listen()


@pytest.fixture
async def line(server: Server, tmp_path: Path) -> AsyncIterator[Line]:
    engine = Sampler()

    async def start(folder: Path, label: str, *_: object) -> Engine:
        await engine.load(folder, label, keep_kv=False)
        return cast("Engine", engine)

    environment = {"WEIR_REDIS_URL": server.url, "WEIR_DATA_DIR": str(tmp_path), "WEIR_PORT": "0"}
    deployment = Deployment.from_environment(environment)
    async with (
        connect(server.url, me="rollout-1", patience_s=5) as own,
        connect(server.url, me="gateway-1", patience_s=5) as gateway,
    ):
        service = Service("rollout", deployment, own)
        follower = PolicyFollower(service, start)
        line = Line(service, CallClient(gateway), engine, follower, CallServer(follower))
        line.tasks = [
            asyncio.create_task(line.answering.answer_forever()),
            asyncio.create_task(follower.follow_policy_forever()),
        ]
        yield line
        service.stop()
        await asyncio.wait(line.tasks, timeout=60)
        for task in line.tasks:
            task.cancel()


async def test_at_rest_a_rollout_serves_one_model_after_the_other(line: Line) -> None:
    door, engine = line.door, line.engine
    one, another = line.call("one", "aaaa"), line.call("another", "bbbb")
    engine.may_load.clear()
    await door.ask(one)
    await line.until(lambda: any(message.doing == "loads aaaa" for message in door.messages))
    engine.may_load.set()
    await door.until_begun(one)
    assert line.service.activity.now.doing is Doing.ANSWERS
    await door.ask(another)
    for _ in range(20):
        await door.listen()
    assert engine.under_way == ["one"], "what is answered was cut by another model's call"
    engine.ends.set()
    for call in (one, another):
        (*_, last) = await door.until_over(call)
        assert last.finish_reason is FinishReason.STOP
    assert (await door.answered(line.call("again", "bbbb")))[0].text == "bbbb"
    assert engine.loaded == ["aaaa", "bbbb"]


async def test_beside_a_clients_session_its_samplers_are_served_as_far_as_they_are_sound(
    line: Line,
) -> None:
    door, engine, follower = line.door, line.engine, line.follower
    await line.begin_job(client={})
    worker = GroupSampler(follower)
    streams = {"inputs": (REQUESTS,), "output": ROLLOUTS, "failures": FAILED}
    stage = Consumer(
        **streams, handle=worker.sample_group, free_slots=worker.room, is_open=follower.serves
    )
    line.tasks.append(asyncio.create_task(work_forever(line.service, stage)))
    engine.ends.set()
    for name, logprob in (("one1", -1.0), ("two2", -1.02), ("off3", -2.0), ("bad4", -1.0)):
        folder = line.sampler(name, logprob)
    with (folder / PROBES).open("a") as file:
        file.write(" ")
    for name in ("one1", "off3", "two2", "bad4", "off3", "one1"):
        told = await door.answered(line.call(f"{name}-{len(engine.loaded)}", name))
        *_, last = told
        if name in {"one1", "two2"}:
            assert (told[0].text, last.finish_reason) == (name, FinishReason.STOP)
            assert line.service.readiness.ready
            continue
        assert last.refusal is not None
        assert not last.refusal.again
        code, words = ("parity", "gap") if name == "off3" else ("model_not_served", "damaged")
        assert last.refusal.code == code
        assert words in last.refusal.message
    assert engine.loaded == ["one1", "off3", "two2", "off3", "one1"]
    agree = [report.agrees for report in line.service.activity.parity]
    assert agree == [True, False, True, False, True]
    (*_, last) = await door.answered(line.call("newest"))
    assert last.refusal is not None
    assert last.refusal.again
    assert not any(task.done() for task in line.tasks)


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_model_that_vllm_cannot_serve_is_refused_with_its_words(
    line: Line, is_first: bool
) -> None:
    line.engine.ends.set()
    if not is_first:
        await line.door.answered(line.call("good", "aaaa"))
    line.engine.fault = EngineError("no such model") if is_first else LoadError("no such model")
    (*_, last) = await line.door.answered(line.call("bad", "bbbb"))
    assert last.refusal is not None
    assert (last.refusal.status, last.refusal.again) == (500, False)
    assert "no such model" in last.refusal.message
    (*_, last) = await line.door.answered(
        a_call("none", served=Served(name="?", folder="/nowhere", model=Model(path="p")))
    )
    assert last.refusal is not None
    line.engine.fault = None
    assert (await line.door.answered(line.call("next", "cccc")))[0].text == "cccc"


async def test_a_model_that_needs_another_engine_has_its_calls_given_back(line: Line) -> None:
    line.engine.ends.set()
    await line.door.answered(line.call("first", "aaaa"))
    (*_, last) = await line.door.answered(line.call("wider", "aaaaaaaa"))
    assert last.refusal is not None
    assert last.refusal.again
    await asyncio.wait({line.tasks[0]}, timeout=60)
    assert isinstance(line.tasks[0].exception(), IncompatibleEngine)


async def test_a_job_that_begins_or_ends_cuts_calls_for_other_weights(line: Line) -> None:
    door, engine = line.door, line.engine
    other = line.call("other", "aaaa")
    await door.ask(other)
    await door.until_begun(other)
    await line.begin_job()
    (*_, last) = await door.until_over(other)
    assert last.refusal is not None
    assert last.refusal.again
    own = line.call("own")
    await door.ask(own)
    await door.until_begun(own)
    assert engine.under_way == ["own"]
    assert engine.loaded == ["aaaa", "1.0"]
    (*_, last) = await door.answered(line.call("another", "bbbb"))
    assert last.refusal is not None
    assert (last.refusal.status, last.refusal.again) == (409, True)
    assert line.service.activity.now.doing is not Doing.ANSWERS
    await door.exchange.request_state("job", Requested.PAUSE)
    await door.exchange.pause_job("job", 1, None)
    (*_, last) = await door.until_over(own)
    assert last.refusal is not None
    assert last.refusal.again
    engine.ends.set()
    assert (await door.answered(line.call("later", "aaaa")))[0].text == "aaaa"


async def test_beside_a_job_few_are_answered_at_once_and_one_that_nobody_wants_makes_room(
    line: Line,
) -> None:
    door, engine = line.door, line.engine
    await line.begin_job()
    calls = [line.call(f"call-{number}") for number in range(4)]
    await door.ask(*calls)
    await line.until(lambda: len(engine.under_way) == PLACES // 8)
    for _ in range(20):
        await door.listen()
    assert engine.under_way == ["call-0", "call-1"]
    del door.waiting["call-0"]
    await door.exchange.withdraw_call("call-0")
    await line.until(lambda: engine.under_way == ["call-1", "call-2"])


async def test_an_episodes_calls_may_have_all_places_and_wait_for_the_version_of_their_terms(
    line: Line,
) -> None:
    door, engine = line.door, line.engine
    await line.begin_job()
    await door.ask(line.call("client"))
    calls = [line.call(f"turn-{number}", terms=terms_of()) for number in range(PLACES)]
    await door.ask(*calls)
    await line.until(lambda: len(engine.under_way) >= PLACES)
    assert line.service.activity.now.doing is Doing.ANSWERS
    assert line.answering.num_episode_calls == len({*engine.under_way} - {"client"})
    engine.ends.set()
    for call in calls:
        (*_, last) = await door.until_over(call)
        assert last.finish_reason is FinishReason.STOP
    newer = line.call("newer", terms=terms_of(min_version=1))
    await door.ask(newer)
    await line.until(lambda: any("newer" in message.held for message in door.messages))
    assert not door.pieces["newer"]
    await line.announce(1)
    assert (await door.until_over(newer))[0].text == "1.1"


async def test_between_an_evaluations_calls_it_stays_where_a_load_would_take_longer(
    line: Line,
) -> None:
    door, engine = line.door, line.engine
    engine.load_s = 60.0
    engine.ends.set()
    await line.begin_job()
    await line.until(lambda: engine.loaded == ["1.0"])
    await line.announce(1)
    await line.until(lambda: engine.loaded == ["1.0", "1.1"])
    measured = await door.exchange.newest_policy("job")
    for number in range(2):
        call = line.call(f"eval-{number}", terms=terms_of(purpose="eval", version=1))
        assert (await door.answered(call))[0].text == "1.1"
        await line.announce(2, evaluated=measured)
        for _ in range(20):  # the environment thinks
            await door.listen()
    assert engine.loaded == ["1.0", "1.1"]
    await line.announce(2)
    await line.until(lambda: engine.loaded == ["1.0", "1.1", "1.2"])


async def test_what_weights_sample_that_are_refused_is_no_answer(line: Line) -> None:
    door, engine = line.door, line.engine
    await line.begin_job()
    call = line.call("turn", terms=terms_of())
    await door.ask(call)
    await line.until(lambda: engine.under_way == ["turn"])
    rendered = digest_prompts((), None, cast(Any, None), {})
    given = {"tasks": (), "rendered": rendered, "token_ids": (1, 2), "most": 0.1}
    engine.may_load.clear()
    await line.announce(1, probes=Probes(**given, logprobs=(-2.0,)))
    await line.until(lambda: line.follower.serving is None)
    engine.ends.set()
    engine.may_load.set()
    (*_, last) = await door.until_over(call)
    assert last.refusal is not None
    assert last.refusal.again


async def test_a_rollout_that_stops_gives_back_what_it_holds(line: Line) -> None:
    call = line.call("call", "aaaa")
    await line.door.ask(call)
    await line.door.until_begun(call)
    line.service.stop()
    (*_, last) = await line.door.until_over(call)
    assert last.refusal is not None
    assert last.refusal.again


async def test_a_call_that_fits_not_is_refused_by_name(line: Line) -> None:
    line.engine.ends.set()
    long = line.call("long", "aaaa", sampling={"max_tokens": 63})
    (*_, last) = await line.door.answered(long)
    assert last.refusal is not None
    assert (last.refusal.status, last.refusal.code) == (400, "context_length_exceeded")
