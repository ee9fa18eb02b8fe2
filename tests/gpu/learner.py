"""What `learner.toml` measures. Models have random weights."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copytree
from tempfile import gettempdir
from time import perf_counter
from typing import Any

import numpy as np
import torch
from protocol import weights
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config

from services.learner.algorithms.logprobs import chunked_token_logprobs
from services.learner.planning.footprint import learner_footprint
from services.learner.training import shares
from services.learner.training.batching import blank_sample
from services.learner.training.engine import init_ranks, name_of_device
from services.learner.training.flops import Flops
from services.learner.training.models import Models
from services.learner.training.samples import Sample, assign_places
from services.learner.training.trainer import Trainer
from tests.architecture.project import ROOT
from tests.builders import a_recipe
from tests.engine import train_some_steps
from tests.gpu.driver import REHEARSES, Json, read_table

ON_GPU = torch.cuda.is_available()
DEMO = ROOT / "examples/arithmetic/base-model"
_SMALL = 64 if REHEARSES else 1  # a CPU rehearses with fewer tokens
_DEVICE = "cuda" if ON_GPU else "cpu"
_KIND: Json = {"device": _DEVICE, "dtype": torch.bfloat16}


def write_model(name: str) -> Path:
    """Write a model of the table, where there is none yet."""
    config = Qwen2Config(**read_table("learner")["models"]["tiny" if REHEARSES else name])
    folder = Path(gettempdir(), name)
    if not folder.exists():
        copytree(DEMO, folder)  # its tokenizer
        with torch.device(_DEVICE):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
    return folder


def make_trainer(folder: Path, context: int, num_ids: int | None = None, **tables: Any) -> Trainer:
    """Return a trainer with micro-batches of the whole context; tables change the recipe."""
    changes: Json = {
        "model": {"path": str(folder), "dtype": "bfloat16", "max_context": context},
        "rollout": {"sampling": {"max_tokens": context - 1}},
        "training": {"micro_batch_tokens": context, "recompute_activations": True},
        "optimizer": {"zero_stage": 1},
    }
    recipe = a_recipe(**{name: changes[name] | tables.get(name, {}) for name in changes})
    init_ranks()
    return Trainer(recipe, Models(recipe, folder, folder, num_ids))


def make_samples(lengths: list[int], num_ids: int) -> list[Sample]:
    random = np.random.default_rng(0)
    return assign_places(
        [
            replace(
                blank_sample(length, length - 1),
                token_ids=random.integers(3, num_ids, length - 1, dtype=np.int32),
            )
            for length in lengths
        ]
    )


def measure_machine() -> Json:
    size = 8192 // _SMALL
    first, second = torch.randn(2, size, size, **_KIND)
    host = torch.empty(2**30 // _SMALL**2, dtype=torch.uint8, pin_memory=ON_GPU)
    there = host.to(_DEVICE)
    gigabytes = host.numel() / 1e9
    return {
        "TFLOP/s": _rate(2 * size**3 / 1e12, lambda: first @ second),
        "GB/s from pinned memory": _rate(gigabytes, lambda: there.copy_(host)),
        "GB/s on the device": _rate(2 * gigabytes, there.clone),
    }


def compare_updates(dtype: str) -> Json:
    """Compare log-probs of the demo's model after two steps with those of a CPU."""
    settings = {"zero_stage": 1, "micro_batch_tokens": 4096, "dtype": dtype}
    here, cpu = (f"{gettempdir()}/{dtype}-{name}" for name in ("here", "cpu"))
    subprocess.run(
        [sys.executable, "-m", train_some_steps.__name__, DEMO, cpu, json.dumps(settings)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"},
        check=True,
    )
    train_some_steps.train(str(DEMO), here, **settings)
    first, second = (np.load(f"{out}/2 logprobs.npy") for out in (here, cpu))
    return {"gap of log-probs": np.nanmean(np.abs(first - second)).item()}


def measure_step(
    policy: str,
    tokens: int,
    batches: int = 4,
    *,
    profiles: bool = False,
    **tables: Any,
) -> Json:
    """Measure the faster of two steps on log-normal lengths, after one that is slower."""
    folder = write_model(policy)
    tokens //= _SMALL
    trainer = make_trainer(folder, tokens, **tables)
    flops: Any = Flops.from_models(trainer.recipe, folder, None, 1, name_of_device())
    drawn = np.random.default_rng(0).lognormal(math.log(tokens / 8), 0.8, 16 * batches)
    whole = drawn.clip(16, tokens // 2).astype(int)
    lengths = whole[whole.cumsum() < 0.95 * tokens * batches].tolist()
    train = partial(trainer.train, make_samples(lengths, flops.policy.vocabulary))
    first, *others = (measure_time(train) for _ in range(3))
    seconds = min(others)
    peak = torch.cuda.max_memory_allocated() if ON_GPU else math.nan
    planned = learner_footprint(trainer.recipe, flops.policy, None, num_ranks=1).peak
    return {
        "MFU": flops.of(lengths, seconds).get("mfu", math.nan),
        "tokens/s": sum(lengths) / seconds,
        "first step, s": first,
        "peak / plan": peak / planned,
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    } | (_profile(train, batches) if profiles else {})


def _profile(train: Callable[[], object], batches: int) -> Json:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        set_mode: Any = torch.cuda.set_sync_debug_mode if ON_GPU else str
        set_mode("warn")
        train()
        set_mode("default")
    waits = sum("synchroniz" in str(warning.message) for warning in caught)
    activity = getattr(torch.profiler.ProfilerActivity, _DEVICE.upper())
    with torch.profiler.profile(activities=[activity]) as profiler:
        seconds = measure_time(train)
    time = "self_device_time_total" if ON_GPU else "self_cpu_time_total"
    spent = {event.key: getattr(event, time) / 1e6 for event in profiler.key_averages()}
    most = sorted(spent, key=spent.__getitem__, reverse=True)[:20]
    return {
        "busy": sum(spent.values()) / seconds,
        "waits of a micro-batch": waits / batches,
        **{f"s of {name}": spent[name] for name in most},
    }


def measure_publish(policy: str, *, registers: bool) -> Json:
    """Measure a publish into memory that CUDA may know of, and what an engine does with it."""
    models = make_trainer(write_model(policy), 8192 // _SMALL).models
    folder = Path(gettempdir(), f"slot-{registers}")
    folder.mkdir()
    if not registers:
        shares._register = lambda _: None
    models.publish(folder, 0)  # it finds its memory
    gigabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    works: dict[str, Callable[[], object]] = {
        "published": partial(models.publish, folder, 0),
        "sealed": partial(weights.seal, folder),
        "verified": partial(weights.verify, folder),
        "read": lambda: [load_file(f, device=_DEVICE) for f in folder.glob("*.safetensors")],
    }
    return {f"GB/s {what}": gigabytes / measure_time(work) for what, work in works.items()}


def measure_head(chunk: int, *, compiles: bool = False) -> Json:
    """Measure log-probs over 152k words, forward and backward."""
    width, words, tokens = (64, 512, 128) if REHEARSES else (1536, 151936, 8192)
    hidden, weight = (torch.randn(n, width, **_KIND, requires_grad=True) for n in (tokens, words))
    targets = torch.randint(words, (tokens,), device=_DEVICE)

    def work() -> None:
        inputs = (hidden, weight, None, targets, 40.0, chunk)
        chunked_token_logprobs(*inputs, compiles=compiles)[0].sum().backward()

    return {"ms for 1,000 tokens": 1e6 / _rate(tokens, work)}


def _rate(amount: float, work: Callable[[], object]) -> float:
    work()
    return 10 * amount / measure_time(lambda: [work() for _ in range(10)])


def measure_time(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    if ON_GPU:
        torch.cuda.synchronize()
    return perf_counter() - began
