"""Requirements for exact training of a model, checked before a rank loads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from protocol.model_folder import CONFIG, max_positions, read_config
from protocol.placement import Placement, PlacementError
from protocol.recipe import Lora
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
)

from services.chassis.renderer import Vocabulary
from services.learner.planning.shapes import ModelShape, sequence_problem, split_problems
from services.learner.training.lora import linear_layers

SAFELY = {"local_files_only": True, "trust_remote_code": False}
VALUE_HEAD = "value_head.safetensors"
_REWARD_HEAD = "score.weight"  # of transformers' models for sequence classification, [1, hidden]
_FULL = "full_attention"


class UnsupportedModel(ValueError):
    """A model that Weir cannot train exactly; the text says why."""


def load_config(field: str, folder: Path) -> PretrainedConfig:
    """Read the config of a model.

    Args:
        field: where the recipe names the folder.

    Raises:
        UnsupportedModel: if it needs code of the folder, transformers cannot read it, or it has
            more layers than the weights.
    """
    fields: dict[str, Any] = {}
    try:
        fields = read_config(folder)
        _check_depth(field, folder, fields)
        return _config(folder)
    except UnsupportedModel:
        raise
    except Exception as error:  # transformers raises any type for a file of a user
        if is_machine_error(error):
            raise
        problem = " ".join(str(error).split())[:300]
        if "auto_map" in fields:
            problem = "it needs code of its folder (auto_map), which is never run"
        raise UnsupportedModel(
            f"{field}: {folder / CONFIG} cannot be read: {problem}; choose a model that "
            "transformers has built in"
        ) from error


def count_parameters(folder: Path) -> ModelShape:
    """Return the shape of a model of any type: exact parameters, and otherwise that of a Llama.

    Raises:
        UnsupportedModel: if transformers cannot build it, or its config does not say its size.
    """
    config = load_config("model.path", folder).get_text_config()
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        heads = config.num_attention_heads
        experts = getattr(config, "num_experts_per_tok", 1) or 1
        inner = getattr(config, "moe_intermediate_size", None)
        inner = experts * inner if inner else getattr(config, "intermediate_size", None)
        return ModelShape(
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=heads,
            key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            intermediate=inner or 4 * config.hidden_size,
            vocabulary=config.vocab_size,
            max_positions=config.max_position_embeddings,
            tied=config.tie_word_embeddings,
            counted=sum(tensor.numel() for tensor in model.base_model.parameters()),
        )
    except Exception as error:  # any type, for a config of a user
        raise UnsupportedModel(f"its memory is unknown: {error}") from error


def is_machine_error(error: Exception) -> bool:
    """Whether the machine, and not a user's file, caused a library's error."""
    return isinstance(error, MemoryError) or getattr(error, "errno", None) is not None


def check_context(field: str, folder: Path, config: PretrainedConfig, context: int) -> None:
    """Check that a model reads the whole context, and that engine and learner compute the same.

    Raises:
        UnsupportedModel: naming the setting of the config, or the recipe's.
    """
    limit = max_positions(read_config(folder))
    if limit is not None and context > limit:
        raise UnsupportedModel(
            f"{field}: {folder} reads at most {limit} tokens; lower model.max_context = {context}"
        )
    for problem in _problems(config.get_text_config(), context):
        raise UnsupportedModel(f"{field}: {folder / CONFIG} has {problem}")


def check_critic(folder: Path) -> None:
    """Check that a critic's folder has one value for each position.

    Raises:
        UnsupportedModel: if it is a classifier, or a reward model without its head.
    """
    config = load_config("critic.path", folder)
    labels = config.num_labels if _scores(config) else 1
    if labels != 1:
        raise UnsupportedModel(
            f"critic.path: {folder} is a classifier with {labels} labels; choose a reward model, "
            "which has one, or a language model"
        )
    if _scores(config) and not read_value_head(folder):
        raise UnsupportedModel(
            f"critic.path: {folder} is a reward model without {_REWARD_HEAD}; choose one that has "
            "that head, or a language model, which gets a new one"
        )


def check_vocabulary(
    policy: Path, critic: Path, policy_ids: Vocabulary, critic_ids: Vocabulary
) -> None:
    """Check that a critic has every token id of the policy.

    Raises:
        UnsupportedModel: if it lacks some.
    """
    size = _config(critic).get_text_config().vocab_size
    rows = _config(policy).get_text_config().vocab_size
    in_use = min(rows, policy_ids.max_id + 1)
    if critic_ids.digest != policy_ids.digest:
        raise UnsupportedModel(
            f"critic.path: {critic} has another vocabulary than the policy {policy}; choose a "
            "critic with the policy's tokenizer"
        )
    if size < in_use:
        raise UnsupportedModel(
            f"critic.path: {critic} has {size} tokens, fewer than the {in_use} of the policy "
            f"{policy}; choose a critic with as many rows"
        )


def check_targets(policy: Path, lora: Lora | None) -> None:
    """Check that the policy has the layers of the adapter.

    Raises:
        UnsupportedModel: naming the missing layers, and the existing ones.
    """
    if lora is None:
        return
    with torch.device("meta"):  # names and shapes, without weights
        layers = linear_layers(AutoModelForCausalLM.from_config(_config(policy)))
    missing = set(lora.targets) - layers
    if missing or not layers:
        raise UnsupportedModel(
            f"model.lora.targets: {policy} has no linear layer {' or '.join(sorted(missing))}; "
            f"it has {', '.join(sorted(layers))}"
        )


def stored_names(folder: Path) -> Iterator[str]:
    """The names of the tensors in a folder's safetensors files."""
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            yield from file.keys()


def _check_depth(field: str, folder: Path, config: dict[str, Any]) -> None:
    """Refuse more layers than tensors: creating a huge number of layers would never end."""
    layers = (config.get("text_config") or config).get("num_hidden_layers") or 0
    tensors = sum(1 for _ in stored_names(folder))
    if 0 < tensors < layers:
        raise UnsupportedModel(
            f"{field}: {folder / CONFIG} has num_hidden_layers = {layers}, but its "
            f"weights are {tensors} tensors; choose a model with matching files"
        )


def _problems(config: PretrainedConfig, context: int) -> Iterator[str]:
    if (value := getattr(config, "quantization_config", None)) is not None:
        # In bfloat16 no probe can distinguish it from rounding.
        yield (
            f"quantization_config = {value}, so engines compute other numbers than the "
            "learner; choose a model without it"
        )
    window = getattr(config, "sliding_window", None) or context
    # A model that does not name its layers has the window in all of them.
    if window < context and set(getattr(config, "layer_types", None) or [""]) != {_FULL}:
        yield (
            f"sliding_window = {window}, shorter than model.max_context = {context}; lower that, "
            "or choose a model with attention over the whole context"
        )
    # The frequencies depend on the longest position of the whole row.
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get(
        "original_max_position_embeddings", getattr(config, "max_position_embeddings", context)
    )
    if rope.get("rope_type") in ("dynamic", "longrope") and context > original:
        yield (
            f"rope_type = {rope['rope_type']} beyond {original} positions; lower "
            f"model.max_context = {context}, or choose another model"
        )


def check_sequence(size: int, models: Iterable[Path | None], num_ranks: int) -> None:
    """Check that ``size`` ranks can share each sample of the models.

    Raises:
        PlacementError: naming the setting, the reason and possible values.
    """
    for folder in models:
        if folder is not None and (problem := sequence_problem(size, *_heads(folder), num_ranks)):
            raise PlacementError(f"{problem} ({folder})")


def check_split(policy: Path, placement: Placement | None) -> None:
    """Check that every engine of a placement can split the policy over its GPUs.

    Raises:
        PlacementError: naming the engines, the heads and the remedy.
    """
    if placement is None:
        return
    if problems := list(split_problems(placement, *_heads(policy))):
        raise PlacementError(f"model.path: {policy} cannot run on {'; '.join(problems)}")


def _heads(folder: Path) -> tuple[int, int]:
    config = _config(folder).get_text_config()
    heads = config.num_attention_heads
    return heads, getattr(config, "num_key_value_heads", None) or heads


def read_value_head(folder: Path) -> dict[str, Tensor]:
    """Return the value head of a folder, or a reward model's; empty without one."""
    if (folder / VALUE_HEAD).is_file():
        return load_file(folder / VALUE_HEAD)
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            if _REWARD_HEAD in file.keys():  # noqa: SIM118  (a file is no mapping)
                return {"weight": file.get_tensor(_REWARD_HEAD)}
    return {}


def _config(folder: Path) -> PretrainedConfig:
    return AutoConfig.from_pretrained(folder, **SAFELY)


def _scores(config: PretrainedConfig) -> bool:
    return any("SequenceClassification" in name for name in config.architectures or ())
