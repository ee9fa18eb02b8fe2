"""The rollout service between a real server and a real engine, in this process."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY
from protocol import weights
from protocol.exchange import Exchange, connect
from protocol.messages import ActiveJob, PolicyVersion, Probes, RolloutGroup
from protocol.recipe import Sampling
from protocol.streams import REQUESTS, ROLLOUTS
from safetensors.torch import load_file, save_file

from services.chassis.deployment import Deployment
from services.chassis.parity import digest_prompts
from services.chassis.renderer import PromptRenderer
from services.chassis.service import Service
from services.rollout import worker
from services.rollout.engine import Engine, EngineDied
from services.rollout.samples import IncompatibleEngine
from services.rollout.worker import sample_groups
from tests.builders import a_job_record, a_recipe, a_request
from tests.contract.valkey_server import Server
from tests.engine.conftest import ENDLESS, MAX_CONTEXT, TOLERANCE, compute_logprobs
from tests.inline_prompts import InlinePrompts

pytestmark = [pytest.mark.engine, pytest.mark.anyio, pytest.mark.timeout(600)]
PROBE = [1, *(3 + (5 * i + i // 40) % 40 for i in range(50))]
RENDERED = digest_prompts((), None, cast(Any, None), {})


@dataclass
class Line:
    """A job with weights, the service that samples for it, and who takes its groups."""

    exchange: Exchange
    service: Service
    sampling: asyncio.Task[None]

    async def announce(
        self,
        number: int,
        source: Path,
        attempt: int = 1,
        **changes: Any,
    ) -> None:
        folder = weights.version_folder("job", attempt, number)

        def fill(target: Path) -> None:
            shutil.copytree(source, target, dirs_exist_ok=True)

        digest = weights.write(self.service.deployment.weights_dir, folder, fill)
        version = {"job_id": "job", "attempt": attempt, "number": number, "folder": folder}
        await self.exchange.announce(PolicyVersion(**version, **{"digest": digest, **changes}))

    async def sampled(self, number: int, **changes: Any) -> RolloutGroup:
        request = a_request(number=number, prompt_template="{prompt}", **changes)
        await self.exchange.ask(request)
        while True:
            await self.wait()
            for delivery in await self.exchange.claim(
                [ROLLOUTS],
                "job",
                count=1,
                wait_s=0.2,
            ):
                assert delivery.key == request.key
                return delivery.message()

    async def until_counted(self, value: float, name: str, **labels: str) -> None:
        while REGISTRY.get_sample_value(name, labels) != value:
            await self.wait()

    async def wait(self) -> None:
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
        ):
            recipe = a_recipe(model={"max_context": MAX_CONTEXT}, rollout={"group_size": 2})
            await exchange.submit(a_job_record(recipe=recipe))
            attempt = await exchange.begin_attempt("job")
            await exchange.activate(ActiveJob(job_id="job", attempt=attempt, recipe=recipe))
            service = Service("rollout", deployment, own)
            sampling = asyncio.create_task(sample_groups(service))
            yield Line(exchange, service, sampling)
            service.stop()
            await asyncio.wait({sampling}, timeout=60)
            assert sampling.done(), "it does not end when it is told to stop"
            await asyncio.gather(sampling, return_exceptions=True)


def versions(group: RolloutGroup) -> set[tuple[int, int]]:
    """Of which attempt and number the policies were that sampled it."""
    return {(span.attempt, span.version) for r in group.responses for span in r.spans}


async def test_it_answers_follows_the_policy_and_ends_for_one_that_needs_another_engine(
    line: Line, folders: list[Path], tmp_path: Path
) -> None:
    name = "weir_sampled_tokens_total"
    counted = REGISTRY.get_sample_value(name) or 0.0
    await line.announce(0, folders[0])
    first, other = await line.sampled(0, seed=0), await line.sampled(1, seed=1)
    assert first.token_ids.tolist() != other.token_ids.tolist()
    later = asyncio.create_task(line.sampled(2, min_version=1))
    await line.announce(1, folders[1])
    second = await later
    for version, group in enumerate([first, second]):
        assert versions(group) == {(1, version)}
        for start, end in group.bounds():
            ids, prompt = group.token_ids[start:end], group.prompt_ids.tolist()
            gaps = compute_logprobs(folders[version], prompt, ids)
            gaps -= group.behavior_logprobs[start:end]
            assert np.abs(gaps).max() < TOLERANCE
    tokens = sum(len(group.token_ids) for group in (first, other, second))
    await line.until_counted(counted + tokens, name)
    assert line.service.activity.moved() > 0

    name, labels = "weir_weight_sync_failures_total", {"why": "damaged"}
    before = REGISTRY.get_sample_value(name, labels) or 0.0
    await line.announce(2, folders[2], digest="0")
    await line.until_counted(before + 1, name, **labels)
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


Tensors = dict[str, torch.Tensor]


def quantize(name: str, tensors: Tensors) -> torch.Tensor:
    """As in int8."""
    weight = tensors[name]
    if weight.dim() < 2:
        return weight
    step = weight.abs().amax(1, keepdim=True).clamp_min(1e-9) / 127
    return ((weight / step).round() * step).contiguous()


def swap_layers(name: str, tensors: Tensors) -> torch.Tensor:
    return tensors[name.replace("layers.0.", "layers.1.")].clone()


INJECTED: dict[str, Callable[[str, Tensors], torch.Tensor]] = {
    "quantized": quantize,
    "a layer swapped": swap_layers,
}


@pytest.mark.parametrize("fault", ["not loaded", "an old slot", "other prompts", *INJECTED])
async def test_weights_that_do_not_answer_as_the_learners_do_are_reported_and_sample_nothing(
    line: Line,
    folders: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fault: str,
) -> None:
    last = 2 if fault == "an old slot" else 1
    learners = [compute_logprobs(folder, PROBE[:1], PROBE[1:]).tolist() for folder in folders]

    async def announce(number: int, rendered: str = RENDERED) -> None:
        probes = Probes(
            tasks=(),
            rendered=rendered,
            token_ids=tuple(PROBE),
            most=1e-3,
            logprobs=learners[number],
            earlier=dict(enumerate(learners[:number])),
        )
        await line.announce(number, folders[number], probes=probes)

    for number in range(last):
        await announce(number)
        await line.sampled(number, min_version=number)
    served = folders[0] if fault == "an old slot" else folders[last]
    if fault in INJECTED:
        tensors = load_file(served / "model.safetensors")
        served = shutil.copytree(served, tmp_path / "doctored")
        changed = {name: INJECTED[fault](name, tensors) for name in tensors}
        save_file(changed, served / "model.safetensors", metadata={"format": "pt"})
    exchange = Engine._exchange

    async def exchange_otherwise(engine: Engine, folder: Path) -> None:
        if fault != "not loaded":
            await exchange(engine, served)

    monkeypatch.setattr(Engine, "_exchange", exchange_otherwise)
    await announce(last, "others" if fault == "other prompts" else RENDERED)
    while len(line.service.activity.parity) <= last:
        await line.wait()
    *good, bad = line.service.activity.parity
    waiting = asyncio.create_task(line.sampled(last, min_version=last))
    assert not (await asyncio.wait({waiting}, timeout=1.0))[0]
    waiting.cancel()
    assert all(report.agrees for report in good)
    assert (bad.version, bad.agrees) == (last, False)
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
