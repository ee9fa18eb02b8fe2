"""A model as a Hugging Face folder: the files of its source, with other weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from protocol.model_folder import CONFIG, read_config
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from services.learner.training.shares import Shape

_WEIGHTS = {".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors"}


def module_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a `state_dict`, trained or not; a tensor with two names once."""
    names = module.state_dict().keys()
    buffers = {name: buffer for name, buffer in module.named_buffers() if name in names}
    return dict(module.named_parameters()) | buffers


def write_folder(
    model: PreTrainedModel, state: Mapping[str, Tensor], source: Path, folder: Path
) -> None:
    """Write a model with the weights of ``state``, which was read from the folder ``source``."""
    write_settings(model, source, folder)
    tensors = to_stored(model, state)
    split = split_torch_state_dict_into_shards(tensors)
    for name, parts in split.filename_to_tensors.items():
        shard = {part: tensors[part].contiguous() for part in parts}
        write_tensors(shard, folder / name)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file with the permissions of its folder; the library's is private."""
    save_file(dict(tensors), path, {"format": "pt"})
    path.chmod(path.parent.stat().st_mode & 0o666)


def write_settings(model: PreTrainedModel, source: Path, folder: Path) -> None:
    """Write the files of ``source`` except the weights, with an updated config.

    The libraries would check and complete these files, and refuse some that they can read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and not _WEIGHTS.intersection(path.suffixes):
            shutil.copy(path, folder / path.name)
    config = read_config(source)
    if config.get("model_type") != model.config.model_type:  # the model is a part of the folder's
        config = json.loads(model.config.to_json_string(use_diff=False))
    config.pop("torch_dtype", None)
    config["dtype"] = str(model.dtype).removeprefix("torch.")
    config["architectures"] = [type(model).__name__]
    tied = is_tied(model)
    if tied != getattr(model.config, "tie_word_embeddings", tied):
        config["tie_word_embeddings"] = tied
        config.get("text_config", {})["tie_word_embeddings"] = tied
    content = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / CONFIG).write_text(f"{content}\n", encoding="utf-8")


def is_tied(model: PreTrainedModel) -> bool:
    """Whether the head is the embedding, regardless of the config; true without a head."""
    head = model.get_output_embeddings()
    return head is None or head.weight is model.get_input_embeddings().weight


def to_stored(model: PreTrainedModel, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a state to the tensors of a folder, for example of experts that a model stacks."""
    return revert_weight_conversion(model, dict(state))


def has_converted_tensors(model: PreTrainedModel, shapes: Mapping[str, Shape]) -> bool:
    empty = {name: torch.empty(shape.dimensions, device="meta") for name, shape in shapes.items()}
    return to_stored(model, empty).keys() != empty.keys()
