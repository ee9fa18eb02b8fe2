"""The rollout service between a real server and a real engine, in this process."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY
from protocol import weights
from protocol.calls import Call, Terms
from protocol.exchange import Exchange, connect
from protocol.messages import (
    ActiveJob,
    JobRecord,
    ParityReport,
    PolicyVersion,
    Probes,
    RolloutGroup,
)
from protocol.recipe import Sampling
from protocol.streams import REQUESTS, ROLLOUTS
from safetensors.torch import load_file, save_file

from services.chassis import tokenizer_worker
from services.chassis.deployment import Deployment
from services.chassis.parity import digest_prompts
from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service
from services.rollout import worker
from services.rollout.engine import Engine
from services.rollout.samples import EngineDied, IncompatibleEngine
from services.rollout.worker import sample_groups
from tests.builders import a_recipe, a_request
from tests.contract.call_client import CallClient, a_call
from tests.contract.valkey_server import Server
from tests.engine.conftest import ENDLESS, MAX_CONTEXT, TOLERANCE, Reference, make_tokenizer
from tests.inline_prompts import InlinePrompts

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.timeout(600)]


@dataclass
class Line:
    """A job with weights, the service that samples for it, and who takes its groups."""

    exchange: Exchange
    weights_dir: Path
    sampling: asyncio.Task[None]
    service: Service
    door: CallClient

    async def announce(self, number: int, source: Path, attempt: int = 1, **changes: Any) -> None:
        folder = weights.version_folder("job", attempt, number)

        def fill(target: Path) -> None:
            shutil.copytree(source, target, dirs_exist_ok=True)

        digest = weights.write(self.weights_dir, folder, fill)
        version = {"job_id": "job", "attempt": attempt, "number": number, "folder": folder}
        await self.exchange.announce(PolicyVersion(**version, **{"digest": digest, **changes}))

    async def sampled(self, number: int, **changes: Any) -> RolloutGroup:
        request = a_request(number=number, prompt_template="{prompt}", **changes)
        await self.exchange.ask(request)
        while True:
            assert not self.sampling.done(), self.sampling.exception()
            for delivery in await self.exchange.claim([ROLLOUTS], "job", count=1, wait_s=0.2):
                assert delivery.key == request.key
                return delivery.message()

    async def until_counted(self, value: float, name: str, **labels: str) -> None:
        async with asyncio.timeout(60):
            while REGISTRY.get_sample_value(name, labels) != value:
                assert not self.sampling.done(), self.sampling.exception()
                await asyncio.sleep(0.05)


@pytest.fixture
async def line(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Line]:
    """The service starts no engine, but takes the one that is there, and leaves it."""

    async def start(prompts: PromptRenderer, folder: Path, label: str, *_: object) -> Engine:
        await prompts.open(folder)
        shared = Engine(engine.llm, engine.settings, prompts)
        await shared.load(folder, label, keep_kv=False)
        return shared

    monkeypatch.setattr(Engine, "start", start)
    monkeypatch.setattr(worker, "PromptRenderer", InlinePrompts)
    monkeypatch.setattr(Engine, "shut_down", lambda engine: None)
    with Server(tmp_path) as server:
        deployment = Deployment.from_environment(
            {
                "WEIR_REDIS_URL": server.url,
                "WEIR_DATA_DIR": str(tmp_path),
                "WEIR_PORT": "0",
                "WEIR_TURNS": "0",
                "WEIR_DRAIN_S": "0",
            }
        )
        async with (
            connect(server.url, me="learner-1", patience_s=5) as exchange,
            connect(server.url, me="rollout-1", patience_s=5) as own,
            connect(server.url, me="gateway-1", patience_s=5) as gateway,
        ):
            recipe = a_recipe(model={"max_context": MAX_CONTEXT}, rollout={"group_size": 2})
            await exchange.submit(JobRecord(id="job", created_at=0.0, recipe=recipe))
            attempt = await exchange.begin_attempt("job")
            await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=recipe))
            service = Service("rollout", deployment, own)
            sampling = asyncio.create_task(sample_groups(service))
            yield Line(exchange, deployment.weights_dir, sampling, service, CallClient(gateway))
            service.stop()
            await asyncio.wait({sampling}, timeout=60)
            assert sampling.done(), "it does not end when it is told to stop"
            await asyncio.gather(sampling, return_exceptions=True)


def versions(group: RolloutGroup) -> set[tuple[int, int]]:
    """Of which attempt and number the policies were that sampled it."""
    return {(span.attempt, span.version) for r in group.responses for span in r.spans}


async def test_it_answers_follows_the_policy_and_ends_for_one_that_needs_another_engine(
    line: Line, folders: list[Path], reference: Reference, tmp_path: Path
) -> None:
    counted = REGISTRY.get_sample_value("weir_sampled_tokens_total") or 0.0
    async with asyncio.timeout(240):
        await line.announce(0, folders[0])
        first, other = await line.sampled(0, seed=0), await line.sampled(1, seed=1)
        assert first.token_ids.tolist() != other.token_ids.tolist()
        later = asyncio.create_task(line.sampled(2, min_version=1))
        await line.announce(1, folders[1])
        second = await later
        for version, group in enumerate([first, second]):
            assert versions(group) == {(1, version)}
            for start, end in group.bounds():
                ids = group.token_ids[start:end]
                expected = reference(folders[version], group.prompt_ids.tolist(), ids)
                assert np.abs(expected - group.behavior_logprobs[start:end]).max() < TOLERANCE
        tokens = sum(len(group.token_ids) for group in (first, other, second))
        await line.until_counted(counted + tokens, "weir_sampled_tokens_total")
        assert line.service.activity.moved() > 0

        failures = {"name": "weir_weight_sync_failures_total", "why": "damaged"}
        before = REGISTRY.get_sample_value(failures["name"], {"why": "damaged"}) or 0.0
        await line.announce(2, folders[2], digest="0")
        await line.until_counted(before + 1, **failures)
        assert versions(await line.sampled(3)) == {(1, 1)}

        assert await line.exchange.begin_attempt("job") == 2
        await line.announce(0, folders[0], attempt=2)  # a lower number
        await line.until_counted(0, "weir_policy_version")
        assert versions(await line.sampled(4, attempt=2)) == {(2, 0)}

        unlike = shutil.copytree(folders[1], tmp_path / "unlike")
        config = json.loads((unlike / "config.json").read_text())
        (unlike / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
        await line.announce(1, unlike, attempt=2)
        await asyncio.wait({line.sampling})
    error = line.sampling.exception()
    assert isinstance(error, ExceptionGroup)
    assert error.subgroup(IncompatibleEngine)


async def test_calls_are_answered_beside_groups_by_the_newest_weights_through_their_updates(
    line: Line, folders: list[Path], reference: Reference
) -> None:
    door, sampling = line.door, {"max_tokens": ENDLESS, "seed": 1}
    async with asyncio.timeout(240):
        await line.announce(0, folders[0])
        call = a_call(streams=True, sampling=sampling)
        await door.ask(call)
        await door.until_begun(call)
        assert len((await line.sampled(0)).responses) == 2
        await line.announce(1, folders[1])
        assert versions(await line.sampled(1, min_version=1)) == {(1, 1)}
        await door.until_over(call)
    tokens, spans = door.tokens(call), door.pieces[call.id][-1].spans
    ids, logprobs = [token.id for token in tokens], [token.logprob for token in tokens]
    prompt = door.pieces[call.id][0].prompt_ids
    assert prompt is not None
    assert [span.version for span in spans] == [0, 1]
    assert spans[-1].end == len(ids) == ENDLESS
    for span in spans:
        expected = reference(folders[span.version], prompt, np.array(ids))
        own = slice(span.start, span.end)
        assert np.abs(expected - logprobs)[own].max() < 1e-4


TEMPLATE = "{% for turn in messages %}<bos>{{ turn.content[:20] }}<eos>{% endfor %}="


async def test_turns_of_an_episode_are_answered_by_the_version_of_their_terms_and_as_sampled(
    line: Line, folders: list[Path], reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    def a_turn(name: str, messages: list[dict[str, str]], begun: Any = None, **terms: Any) -> Call:
        given = {"job_id": "job", "sampling": Sampling(max_tokens=30), "seed": 1, **terms}
        own = {"terms": Terms(**given), "sampling": {"max_tokens": 30, "seed": 1}}
        return a_call(name, messages=messages, begun=begun, **own)

    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    monkeypatch.setattr(Engine, "tokenizer", tokenizer)
    monkeypatch.setattr(tokenizer_worker, "load", lambda _: None)
    tokenizer_worker._tokenizer = tokenizer
    pinned = {"purpose": "eval", "min_version": 0, "version": 0}
    door, turns = line.door, [{"role": "user", "content": "1+1="}]
    async with asyncio.timeout(240):
        await line.announce(0, folders[0])
        first = await door.answered(a_turn("first", turns, **pinned))
        prompt, sampled = first[0].prompt_ids, [token for each in first for token in each.tokens]
        assert prompt is not None, first
        newer = a_turn("newer", turns, purpose="train", min_version=1)
        await door.ask(newer)
        evaluated = await line.exchange.newest_policy("job")
        await line.announce(1, folders[1], evaluated=evaluated)
        trained = await door.until_over(newer)
        ids = (*prompt, *(token.id for token in sampled))
        reply = {"role": "assistant", "content": "".join(each.text for each in first)}
        turns = [*turns, reply, {"role": "user", "content": "and 2+2="}]
        begun = {"num_messages": 2, "token_ids": ids}
        second = await door.answered(a_turn("second", turns, begun, **pinned))
    spans = [{(span.version, span.end) for span in each[-1].spans} for each in (first, trained)]
    assert spans == [{(0, 30)}, {(1, 30)}]
    assert {span.version for span in second[-1].spans} == {0}
    assert second[0].prompt_ids is not None
    assert second[0].prompt_ids[: len(ids)] == ids
    assert len(second[0].prompt_ids) == len(ids) + len("and 2+2=") + 4
    for pieces in (first, second):
        tokens = [token for each in pieces for token in each.tokens]
        read = np.array([token.id for token in tokens])
        expected = reference(folders[0], pieces[0].prompt_ids, read)
        assert np.abs(expected - [token.logprob for token in tokens]).max() < 1e-4


def as_int8(name: str, weight: torch.Tensor) -> torch.Tensor:
    if weight.dim() < 2:
        return weight
    step = weight.abs().amax(1, keepdim=True).clamp_min(1e-9) / 127
    return (weight / step).round() * step


def doctored(source: Path, target: Path, change: Callable[..., torch.Tensor]) -> Path:
    """A copy of a model's folder whose tensors are changed, given their names and all of them."""
    shutil.copytree(source, target)
    tensors = load_file(source / "model.safetensors")
    changed = {name: change(name, weight, tensors) for name, weight in tensors.items()}
    save_file(changed, target / "model.safetensors", metadata={"format": "pt"})
    return target


INJECTED: dict[str, Callable[..., torch.Tensor]] = {
    "quantized": lambda name, weight, _: as_int8(name, weight).contiguous(),
    "a layer swapped": lambda name, _, of: of[name.replace("layers.0.", "layers.1.")].clone(),
}


@pytest.mark.parametrize("fault", ["not loaded", "an old slot", "other prompts", *INJECTED])
async def test_weights_that_do_not_answer_as_the_learners_do_are_reported_and_sample_nothing(
    line: Line,
    folders: list[Path],
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fault: str,
) -> None:
    async def announce(number: int, rendered: str = digest_prompts((), None, None, {})) -> None:  # type: ignore[arg-type]
        ids = [1, *(3 + (5 * i + i // 40) % 40 for i in range(50))]
        own, *earlier = (
            reference(folders[version], ids[:1], np.array(ids[1:])).tolist()
            for version in range(number, -1, -1)
        )
        known = {"tasks": (), "rendered": rendered, "token_ids": ids, "most": 1e-3}
        known["earlier"] = dict(enumerate(reversed(earlier)))
        probes = Probes(**known, logprobs=own)
        await line.announce(number, folders[number], probes=probes)

    async def reports(count: int) -> list[ParityReport]:
        while len(told := [*line.service.activity.parity]) < count:
            assert not line.sampling.done(), line.sampling.exception()
            await asyncio.sleep(0.1)
        return told

    exchange, last = Engine._exchange, 2 if fault == "an old slot" else 1
    async with asyncio.timeout(240):
        for number in range(last):
            await announce(number)
            await line.sampled(number, min_version=number)
        served = {"an old slot": folders[0]}.get(fault, folders[last])
        if fault in INJECTED:
            served = doctored(served, tmp_path / "doctored", INJECTED[fault])

        async def exchange_otherwise(engine: Engine, folder: Path) -> None:
            if fault != "not loaded":
                await exchange(engine, served)

        monkeypatch.setattr(Engine, "_exchange", exchange_otherwise)
        await announce(last, **({"rendered": "others"} if fault == "other prompts" else {}))
        *good, bad = await reports(last + 1)
        waiting = asyncio.create_task(line.sampled(last, min_version=last))
        *_, done = await asyncio.wait({waiting}, timeout=1.0), waiting.done()
    waiting.cancel()
    assert all(report.agrees for report in good)
    assert (bad.version, bad.agrees, done) == (last, False, False)
    assert bad.same_prompts == (fault != "other prompts")
    assert bad.holds == (0 if fault in {"not loaded", "an old slot"} else None)


async def test_what_it_held_when_its_engine_died_may_have_killed_it(
    line: Line, engine: Engine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(240):
        await line.announce(0, folders[0])
        endless = Sampling(max_tokens=ENDLESS)
        await line.exchange.ask(a_request(prompt_template="{prompt}", sampling=endless))
        while (await line.exchange.backlog(REQUESTS, "job")).claimed == 0:
            await asyncio.sleep(0.01)
        with monkeypatch.context() as patched:
            patched.setattr(type(engine.llm), "errored", property(lambda _: True))
            await asyncio.wait({line.sampling})
        (left,) = await line.exchange.reclaim(REQUESTS, "job", count=9)
    error = line.sampling.exception()
    assert isinstance(error, ExceptionGroup)
    assert error.subgroup(EngineDied)
    assert (len(left.deaths), left.failures) == (1, ())
