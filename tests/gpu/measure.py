"""One measurement in a process of its own: ``python -m tests.gpu.measure WHAT SETTINGS``.

SETTINGS is JSON; what was measured is the last line of the output, as JSON: bytes and seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from protocol.recipe import Recipe, parse_recipe
from transformers import AutoModelForCausalLM

from services.learner.planning.footprint import ModelShape, learner_footprint
from services.learner.training.attention import PACKED
from services.learner.training.batching import largest_micro_batches
from services.learner.training.engine import init_ranks, leave_ranks
from services.learner.training.models import Models
from services.learner.training.samples import placed
from services.learner.training.trainer import Trainer

Json = dict[str, Any]


def step(model: str, shape: Json, recipe: Json) -> Json:
    """The largest micro-batch that a recipe allows, forward, backward and update."""
    made, folder = _recipe(model, recipe), Path(model)
    init_ranks()
    trainer = Trainer(made, Models(made, folder, folder))
    samples = placed(largest_micro_batches(made, num_ranks=1))
    trainer.train(samples)  # whatever is made once
    seconds = _timed(lambda: trainer.train(samples))
    planned = learner_footprint(made, ModelShape(**shape), None, num_gpus=1).peak
    leave_ranks()
    return {"seconds": seconds, "peak": _peak(), "planned": planned}


def attention(model: str, shape: Json, tokens: int) -> Json:
    """One sample, forward and backward: padded with a mask, as it is, and packed."""
    found: Json = {}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ids = torch.arange(tokens, device=device)[None] % shape["vocabulary"]
    mask = torch.ones_like(ids)
    mask[0, -1] = 0  # one position of padding is enough to lose the kernel
    bounds = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    packed = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    packed |= {"max_length_q": tokens, "max_length_k": tokens}
    ways: dict[str, tuple[str, Json]] = {
        "mask": ("sdpa", {"attention_mask": mask}),
        "no mask": ("sdpa", {}),
        "packed": (PACKED, packed),
    }
    gradients = {}
    for name, (implementation, inputs) in ways.items():
        with device:
            loaded = AutoModelForCausalLM.from_pretrained(
                model, attn_implementation=implementation, dtype=torch.bfloat16
            )

        def passes(loaded: Any = loaded, inputs: Json = inputs) -> None:
            loaded.zero_grad()
            states = loaded.model(input_ids=ids, use_cache=False, **inputs).last_hidden_state
            states[:, :-1].float().pow(2).mean().backward()

        passes()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found[name] = {"seconds": _timed(passes), "peak": _peak()}
        gradients[name] = loaded.model.layers[0].self_attn.q_proj.weight.grad.float()
        del loaded
    norm = gradients["no mask"].norm()
    found["gap"] = float((gradients["packed"] - gradients["no mask"]).norm() / norm)
    return found


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
    recipe["training"] = {"steps": 1, "groups_per_step": 1, **recipe.get("training", {})}
    return parse_recipe(recipe)


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


if __name__ == "__main__":
    measured = {"step": step, "attention": attention}[sys.argv[1]]
    print(json.dumps(measured(**json.loads(sys.argv[2]))))
