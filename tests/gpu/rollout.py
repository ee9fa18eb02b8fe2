"""What `rollout.toml` measures: the rollout's engine, and a learner whose policy it follows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import torch
from protocol.recipe import Sampling

import services.rollout.engine as rollout  # before torch: vLLM sets its environment
from services.chassis.renderer import Vocabulary
from services.rollout.samples import Sample
from services.rollout.settings import EngineSettings
from tests.gpu.driver import REHEARSES, Json
from tests.gpu.learner import DEMO, ON_GPU, make_samples, make_trainer, measure_time, write_model

_CONTEXT, _TOKENS, _SMALL = (128, 48, 8) if REHEARSES else (4096, 512, 1)
_DTYPE = "float32" if REHEARSES else "bfloat16"
_IDS = 96  # of the demo's tokenizer
_GROUP = 8
# It takes as many bytes of the GPU as each line says.
_HOLDER = """
import sys, torch
for line in sys.stdin:
    held = None
    torch.cuda.empty_cache()
    held = torch.ones(int(line), dtype=torch.uint8, device="cuda")
    print(flush=True)
"""
_bench: Any = SimpleNamespace(runner=asyncio.Runner(), engine=None)


def start(model: str, *, eagerly: bool = False) -> Json:
    """Start the engine as a service does, or without compilation if it has not started."""
    if _bench.engine:
        return {}
    _bench.folder = DEMO if REHEARSES else write_model(model)
    settings = EngineSettings(
        _DTYPE, _CONTEXT, max_sequences=1024 // _SMALL, gpu_memory=0.45, takes_turns=True
    )
    prompts = AsyncMock()  # without the confined processes of a service
    prompts.describe.return_value = Vocabulary("", _IDS - 1, None)
    if eagerly:
        plain = rollout._arguments
        rollout._arguments = lambda *inputs: replace(plain(*inputs), enforce_eager=True)
    starts = rollout.Engine.start(prompts, _bench.folder, "1.0", settings)
    _bench.engine = _bench.runner.run(starts)
    return {}


def sample(responses: int) -> Json:
    samples: list[Sample] = []
    seconds = measure_time(lambda: samples.extend(_bench.runner.run(_sample(responses))))
    return {"tokens/s": sum(len(sample.token_ids) for sample in samples) / seconds}


async def _sample(responses: int) -> list[Sample]:
    random = np.random.default_rng(responses)
    prompts = random.integers(3, _IDS, (responses // _SMALL // _GROUP, 24)).tolist()
    sampling = Sampling(max_tokens=_TOKENS)
    generate = _bench.engine.generate
    groups = [generate(ids, sampling, _GROUP, seed) for seed, ids in enumerate(prompts)]
    return [sample for group in await asyncio.gather(*groups) for sample in group]


def start_learner() -> Json:
    tables = {"model": {"dtype": _DTYPE}, "optimizer": {"learning_rate": 1e-3, "warmup_steps": 0}}
    _bench.trainer = make_trainer(_bench.folder, _CONTEXT, _IDS, **tables)
    _bench.learned = 0
    return {}


def compare_logprobs() -> Json:
    """Compare the engine's log-probs with the learner's, and its decoding with its prefill.

    The change is that of the learner's since the last time.
    """
    samples = make_samples([_CONTEXT // 2] * 4, _IDS)
    learned = _bench.trainer.score(samples, 1.0, use_snapshot=False).tokens["logprobs"]
    ids = [[*s.prompt_ids.tolist(), *s.token_ids.tolist()] for s in samples]
    scores = np.array([_bench.runner.run(_bench.engine.score(each, {})) for each in ids])
    scored, decoded = np.split(scores, [_CONTEXT // 2 - 1], axis=1)
    gaps = np.abs(scored - learned.reshape(scored.shape))
    change = np.abs(learned - _bench.learned).mean()
    _bench.learned = learned
    return {
        "change": change.item(),
        "mean gap": gaps.mean().item(),
        "mean gap of decoding": decoded.mean().item(),
    }


def publish() -> Json:
    """Train a step, and publish the policy into memory twice."""
    _bench.trainer.train(make_samples([_CONTEXT] * 8, _IDS))
    _bench.slot = Path(gettempdir(), "slot")
    _bench.slot.mkdir()
    publishes = partial(_bench.trainer.models.publish, _bench.slot, 0)
    publishes()  # it finds its memory
    return {"s": measure_time(publishes)}


def load(label: str, responses: int = 0, *, keep_kv: bool = False) -> Json:
    """Load the published policy, perhaps while responses are sampled."""

    async def load_while_sampling() -> Json:
        sampling = asyncio.ensure_future(_sample(responses))
        await asyncio.sleep(0.3 if REHEARSES else 2)
        seconds = await _bench.engine.load(_bench.slot, label, keep_kv=keep_kv)
        versions = max((len(sample.spans) for sample in await sampling), default=0)
        return {f"{phase}, s": value for phase, value in seconds.items()} | {"versions": versions}

    return _bench.runner.run(load_while_sampling())


def sleep() -> Json:
    """Sleep and wake up while another process holds the rest of the GPU's memory.

    Between them that process holds the engine's memory, too.
    """
    if not ON_GPU:
        return {}
    run, engine = _bench.runner.run, _bench.engine
    holder: Any = subprocess.Popen(
        [sys.executable, "-c", _HOLDER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def hold(num_bytes: int) -> None:
        print(num_bytes, file=holder.stdin, flush=True)
        assert holder.stdout.readline(), "another process did not get the memory; see above"

    rest = torch.cuda.mem_get_info()[0] - 4 * 2**30
    hold(rest)
    before, _ = torch.cuda.mem_get_info()
    asleep = measure_time(lambda: run(engine.sleep()))
    freed = torch.cuda.mem_get_info()[0] - before
    hold(rest + freed)
    hold(rest)
    awake = measure_time(lambda: run(engine.wake_up()))
    holder.kill()
    return {"sleep, s": asleep, "wake up, s": awake, "freed, GB": freed / 1e9}
