"""One measurement in a process of its own: ``python -m tests.gpu.measure WHAT SETTINGS``.

SETTINGS is JSON; so is the last line of the output: ``figures``, or the ``error``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as in a learner

import numpy as np
import torch
from protocol.recipe import Recipe, parse_recipe
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config

from services.learner.planning.footprint import learner_footprint
from services.learner.planning.seconds import FLOPS_USED, LEARNER_COPIES, LINK
from services.learner.planning.shapes import ModelShape
from services.learner.planning.units import GIB
from services.learner.training import shares
from services.learner.training.attention import PACKED
from services.learner.training.batching import blank_sample, largest_micro_batches
from services.learner.training.engine import init_ranks, leave_ranks, name_of_device
from services.learner.training.flops import Flops
from services.learner.training.models import Models
from services.learner.training.samples import assign_places
from services.learner.training.trainer import Trainer
from tests.engine import train_some_steps
from tests.gpu.report import Figure, Json, shown

_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_LAYERS = 8  # of the model whose attention is measured: all of them would not fit without recompute
# What prime-rl publishes in its benchmarks/baselines for a context of 16k: 0.11 of one H100 for RL
# of a Qwen3-0.6B, 0.14 of eight for RL of a Qwen3-4B, 0.27 for SFT of it. A 3B whose gradients
# cross no network is to reach the lesser of a 4B's; 0.3 would fail with nothing wrong.
_LEAST_MFU = 0.14
_PUBLISHED = "prime-rl: RL 0.11 (0.6B) and 0.14 (4B), SFT 0.27 (4B)"


def write_model(shape: ModelShape, folder: Path) -> None:
    """Random weights in bfloat16, where there are none."""
    if folder.exists():
        return
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=shape.tied,
    )
    torch.manual_seed(0)
    with _DEVICE:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    unfinished = folder.with_suffix(".unfinished")
    model.save_pretrained(unfinished)
    unfinished.rename(folder)


def memory(model: str, shape: ModelShape, recipe: Json) -> Iterator[Figure]:
    """The largest micro-batch that a recipe allows, forward, backward and update."""
    parsed = _recipe(model, recipe)
    trainer = Trainer(parsed, _models(parsed))
    samples = assign_places(largest_micro_batches(parsed, num_ranks=1))
    trainer.train(samples)  # whatever is made once
    seconds = _timed(lambda: trainer.train(samples))
    planned = learner_footprint(parsed, shape, None, num_ranks=1).peak / GIB
    source = f"`weir plan`: {shown(planned)} GiB, give or take a tenth"
    yield Figure("peak", _peak() / GIB, "GiB", 0.9 * planned, 1.1 * planned, source)
    yield Figure("step", seconds, "s")


def speed(model: str, shape: ModelShape, recipe: Json, longest: int) -> Iterator[Figure]:
    """A step on 32 samples of log-normal lengths, the first time and again."""
    parsed, random = _recipe(model, recipe), np.random.default_rng(0)
    trainer = Trainer(parsed, _models(parsed))
    drawn = random.lognormal(
        np.log(longest / 6),
        0.9,
        size=32,
    ).clip(2, longest - 1)
    lengths = drawn.astype(int).tolist()
    ids = [
        random.integers(
            shape.vocabulary,
            size=n - 1,
            dtype=np.int32,
        )
        for n in lengths
    ]
    blank = [blank_sample(length, length - 1) for length in lengths]
    samples = assign_places(
        [
            replace(b, token_ids=i)
            for b, i in zip(
                blank,
                ids,
                strict=True,
            )
        ]
    )
    first, seconds = (_timed(lambda: trainer.train(samples)) for _ in range(2))
    flops = Flops.from_models(parsed, Path(model), None, 1, name_of_device()).of(lengths, seconds)
    source = f"{_PUBLISHED}; `weir plan` assumes {FLOPS_USED}"
    yield Figure(
        "MFU",
        flops.get("mfu", math.nan),
        least=_LEAST_MFU,
        source=source,
    )
    yield Figure("tokens a second", sum(lengths) / seconds)
    yield Figure("step", seconds, "s")
    yield Figure("first step", first, "s")


def publish(model: str, shape: ModelShape, recipe: Json) -> Iterator[Figure]:
    """The policy as a folder, and into slots that CUDA knows of and others."""
    models = _models(_recipe(model, recipe))
    gigabytes = 2 * shape.parameters / 1e9
    ways = {
        "pageable": (lambda mapped: None, LEARNER_COPIES),
        "registered": (shares._register, LINK),
    }
    with tempfile.TemporaryDirectory() as folder:
        seconds = _timed(lambda: models.export(Path(folder, "out")))
    yield Figure("folder on the disk", gigabytes / seconds, "GB/s")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as slots:
        for number, (way, (register, assumed)) in enumerate(ways.items()):
            publishes = partial(models.publish, Path(slots, way), number)
            with patch.object(shares, "_register", register):
                publishes()  # the first finds its memory
            rate, source = gigabytes / _timed(publishes), "assumed by `weir plan`"
            yield Figure(f"{way} slot", rate, "GB/s", assumed / 1e9, source=source)


def attention(model: str, shape: ModelShape, tokens: int) -> Iterator[Figure]:
    """One sample, forward and backward: padded with a mask, as it is, and packed."""
    seconds: dict[str, float] = {}
    peaks: dict[str, float] = {}
    ids = torch.arange(tokens, device=_DEVICE)[None] % shape.vocabulary
    mask = torch.ones_like(ids)
    mask[0, -1] = 0  # one position of padding is enough to lose the kernel
    bounds = torch.tensor(
        [0, tokens],
        dtype=torch.int32,
        device=_DEVICE,
    )
    packed = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    packed |= {"max_length_q": tokens, "max_length_k": tokens}
    ways: dict[str, tuple[str, Json]] = {
        "mask": ("sdpa", {"attention_mask": mask}),
        "no mask": ("sdpa", {}),
        "packed": (PACKED, packed),
    }
    gradients = {}
    for name, (implementation, inputs) in ways.items():
        with _DEVICE:
            loaded = AutoModelForCausalLM.from_pretrained(
                model,
                attn_implementation=implementation,
                dtype=torch.bfloat16,
                num_hidden_layers=min(_LAYERS, shape.layers),
            )

        def passes(loaded: Any = loaded, inputs: Json = inputs) -> None:
            loaded.zero_grad()
            states = loaded.model(input_ids=ids, use_cache=False, **inputs).last_hidden_state
            states[:, :-1].float().pow(2).mean().backward()

        passes()
        if _DEVICE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds[name] = _timed(passes)
        peaks[name] = _peak() / GIB
        gradients[name] = loaded.model.layers[0].self_attn.q_proj.weight.grad.float()
        del loaded
    gap = (gradients["packed"] - gradients["no mask"]).norm() / gradients["no mask"].norm()
    source = "rounding of bfloat16"
    yield Figure(
        "gap of gradients",
        float(gap),
        most=0.02,
        source=source,
        on_cpus=True,
    )
    for what, unit, values in (("seconds", "s", seconds), ("peak", "GiB", peaks)):
        masked, plain, packed_value = values.values()
        ratio = packed_value / plain
        yield Figure(f"{what}, packed", packed_value, unit)
        yield Figure(f"{what}, packed ÷ unmasked", ratio, most=1.1, source="the same kernel")
        yield Figure(f"{what}, masked ÷ packed", masked / packed_value)


def updates(model: str, shape: ModelShape) -> Iterator[Figure]:
    """Parameters after three steps here and on a CPU, in float32."""
    settings = {"zero_stage": 1, "micro_batch_tokens": 4096, "steps": 3}
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # or torch refuses it as not deterministic
    with tempfile.TemporaryDirectory() as folder:
        here, there = f"{folder}/here", f"{folder}/cpu"
        program = [sys.executable, "-m", train_some_steps.__name__]
        subprocess.run(
            [*program, model, there, json.dumps(settings)],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"},
            check=True,
            stdout=sys.stderr,
        )
        train_some_steps.train(model, here, **settings)
        own, cpu = (load_file(f"{out}/model.safetensors") for out in (here, there))
    gap = max((own[name] - cpu[name]).abs().max().item() for name in cpu)
    source = "float32; two CPUs that round in other ways differ by 6.7e-7"
    yield Figure("largest gap to a CPU's", gap, most=2e-6, source=source, on_cpus=True)


def _recipe(model: str, tables: Json) -> Recipe:
    recipe: Json = {
        "name": "measured",
        "tasks": {"train": "none"},
        "algorithm": {"advantage": "grpo"},
        **tables,
    }
    context = recipe.pop("context")
    recipe["model"] = {"path": model, "max_context": context}
    recipe["rollout"] = {"sampling": {"max_tokens": context - 1}}
    recipe["training"] = {
        "steps": 1,
        "groups_per_step": 1,
        **recipe.get("training", {}),
    }
    return parse_recipe(recipe)


def _models(recipe: Recipe) -> Models:
    init_ranks()
    return Models(recipe, Path(recipe.model.path), Path(recipe.model.path))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _peak() -> float:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else math.nan


def main(what: str, model: str, shape: Json, **settings: Any) -> Json:
    ways = {way.__name__: way for way in (memory, speed, publish, attention, updates)}
    try:
        model_shape = ModelShape(**shape)
        write_model(model_shape, Path(model))
        figures = [asdict(figure) for figure in ways[what](model, model_shape, **settings)]
        output: Json = {"figures": figures}
    except Exception as error:
        traceback.print_exc()
        output = {"error": f"{type(error).__name__}: {error}"}
    if torch.distributed.is_initialized():
        leave_ranks()
    return output


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], **json.loads(sys.argv[2]))))
