"""Weights with an adapter in plain torch: ``W + alpha / rank * B A``, without peft."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel


class _Adapted(nn.Module):
    def __init__(self, a: Tensor, b: Tensor, scale: float) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Parameter(a), nn.Parameter(b), scale

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * self.b @ self.a


def adapt(model: PreTrainedModel, adapter: Path, scale: float) -> None:
    """Freeze a model and give it the adapter of a file."""
    model.requires_grad_(requires_grad=False)
    weights = load_file(adapter)
    for name in {key.partition(".lora_")[0] for key in weights}:
        a, b = (weights[f"{name}.lora_{matrix}.weight"] for matrix in "AB")
        layer = model.get_submodule(name.removeprefix("base_model.model."))
        parametrize.register_parametrization(layer, "weight", _Adapted(a, b, scale))


def adapter_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """The adapter, by the names that peft gives its weights."""
    weights = {}
    for path, module in model.named_modules():
        if isinstance(module, _Adapted):
            name = f"base_model.model.{path.removesuffix('.parametrizations.weight.0')}"
            weights[f"{name}.lora_A.weight"] = module.a.detach()
            weights[f"{name}.lora_B.weight"] = module.b.detach()
    return weights


def trained_parameters(model: PreTrainedModel) -> list[nn.Parameter]:
    """Those that the optimizer is to move."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
