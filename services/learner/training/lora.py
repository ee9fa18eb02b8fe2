"""LoRA: an adapter is trained and the model's own weights stay. Only this module imports peft.

The import of peft takes a second, so only jobs with an adapter import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from protocol.recipe import Lora
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from services.learner.training.folders import write_tensors

_ADAPTER = "default"


def add_adapter(model: PreTrainedModel, lora: Lora, base: str, seed: int) -> None:
    """Add a zero adapter to a model in place, and freeze the model's own weights.

    The adapter names ``base`` as its model; every attempt begins with the matrices of the seed.
    """
    from peft import LoraConfig, inject_adapter_in_model

    names = sorted(lora.targets or linear_layers(model))
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=cast(int, lora.alpha),
        target_modules=names,
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, _ADAPTER)
    config.target_modules = names  # peft made a set of it, which has no order


def linear_layers(model: PreTrainedModel) -> set[str]:
    """Return the last parts of the names of all linear layers except the head."""
    head = model.get_output_embeddings()
    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }


@contextmanager
def disabled_adapter(model: nn.Module) -> Iterator[None]:
    """Compute without the adapter.

    The adapter is scaled to zero and not skipped: ZeRO-3 fetches weights in the order of earlier
    calls of modules.
    """
    from peft.tuners.lora import LoraLayer

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer.set_scale(_ADAPTER, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(_ADAPTER, 1.0)


def save_adapter(model: PreTrainedModel, state: dict[str, Tensor], folder: Path) -> None:
    """Write a model's adapter with the weights ``state`` in the format of peft and vLLM."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    weights = get_peft_model_state_dict(model, state, save_embedding_layers=False)
    named = {f"base_model.model.{name}": weight for name, weight in weights.items()}
    write_tensors(named, folder / "adapter_model.safetensors")
    cast(Any, model).peft_config[_ADAPTER].save_pretrained(folder)


def merge_adapter(base: Path, adapter: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a folder with an adapter added to its weights, on the CPU."""
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True)
    return PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
