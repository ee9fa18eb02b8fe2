"""What a model must be like for Weir to train it exactly, found out before any rank loads it."""

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
        UnsupportedModel: if it needs code of the folder, transformers cannot read it, or the
            weights cannot be of so many layers.
    """
    written: dict[str, Any] = {}
    try:
        written = read_config(folder)
        _check_depth(field, folder, written)
        return _config(folder)
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever transformers says of somebody's file
        if is_of_machine(error):
            raise
        problem = " ".join(str(error).split())[:300]
        if "auto_map" in written:
            problem = "it needs code of its folder (auto_map), which is never run"
        raise UnsupportedModel(
            f"{field}: {folder / CONFIG} cannot be read: {problem}; choose a model that "
            "transformers has built in"
        ) from error


def count_parameters(folder: Path) -> ModelShape:
    """The shape of a model of any type: only its parameters are exact, the rest is a Llama's.

    Raises:
        UnsupportedModel: if transformers cannot build it, or its config does not say its size.
    """
    config = load_config("model.path", folder).get_text_config()
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        heads, experts = config.num_attention_heads, getattr(config, "num_experts_per_tok", 1) or 1
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
    except Exception as error:  # of somebody's config
        raise UnsupportedModel(f"its memory is not known: {error}") from error


def is_of_machine(error: Exception) -> bool:
    """Whether an error that a library raises of somebody's files is the machine's."""
    return isinstance(error, MemoryError) or getattr(error, "errno", None) is not None


def check_context(field: str, folder: Path, config: PretrainedConfig, context: int) -> None:
    """Check that a model reads the whole context, and that engines compute what the learner does.

    Raises:
        UnsupportedModel: naming the setting of the config, or the recipe's.
    """
    most = max_positions(read_config(folder))
    if most is not None and context > most:
        raise UnsupportedModel(
            f"{field}: {folder} reads at most {most} tokens; lower model.max_context = {context}"
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
    if _scores(config) and not head_in(folder):
        raise UnsupportedModel(
            f"critic.path: {folder} is a reward model without {_REWARD_HEAD}; choose one that has "
            "that head, or a language model, which gets a new one"
        )


def check_vocabulary(policy: Path, critic: Path, own: Vocabulary, others: Vocabulary) -> None:
    """Check that a critic reads the token ids that the policy writes.

    Args:
        own: of the policy.
        others: of the critic.

    Raises:
        UnsupportedModel: if it does not.
    """
    size, rows = (_config(each).get_text_config().vocab_size for each in (critic, policy))
    in_use = min(rows, own.max_id + 1)
    if others.digest != own.digest:
        raise UnsupportedModel(
            f"critic.path: {critic} has another vocabulary than the policy, {policy}; choose a "
            "critic with the policy's tokenizer"
        )
    if size < in_use:
        raise UnsupportedModel(
            f"critic.path: {critic} knows {size} tokens, fewer than the {in_use} of the policy, "
            f"{policy}; choose a critic with as many rows"
        )


def check_targets(policy: Path, lora: Lora | None) -> None:
    """Check that the policy has the layers that an adapter is to be for.

    Raises:
        UnsupportedModel: naming the missing layers, and those that there are.
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
    """Refuse more layers than the weights can have: to make them would never end."""
    layers = (config.get("text_config") or config).get("num_hidden_layers") or 0
    tensors = sum(1 for _ in stored_names(folder))
    if 0 < tensors < layers:
        raise UnsupportedModel(
            f"{field}: {folder / CONFIG} has num_hidden_layers = {layers}, but its "
            f"weights are {tensors} tensors; choose a model whose files belong together"
        )


def _problems(config: PretrainedConfig, context: int) -> Iterator[str]:
    if (value := getattr(config, "quantization_config", None)) is not None:
        # In bfloat16 no probe tells it from rounding.
        yield (
            f"quantization_config = {value}, which has engines compute otherwise than the "
            "learner; choose a model without it"
        )
    window = getattr(config, "sliding_window", None) or context
    # A model that does not name its layers has the window in all of them.
    if window < context and set(getattr(config, "layer_types", None) or [""]) != {_FULL}:
        yield (
            f"sliding_window = {window}, shorter than model.max_context = {context}; lower that, "
            "or choose a model with attention over the whole context"
        )
    # Frequencies that change with the longest position of a row, whichever sample has it.
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
    """Check that so many ranks can share each sample of the models.

    Raises:
        PlacementError: naming the setting, why they cannot, and what they can.
    """
    for folder in models:
        if folder is not None and (problem := sequence_problem(size, *_heads(folder), num_ranks)):
            raise PlacementError(f"{problem} ({folder})")


def check_split(policy: Path, placement: Placement | None) -> None:
    """Check that every engine of a placement can split the policy over its GPUs.

    Raises:
        PlacementError: naming the engines, the heads and what to write instead.
    """
    if placement is None:
        return
    if problems := list(split_problems(placement, *_heads(policy))):
        raise PlacementError(f"model.path: {policy} cannot run on {'; '.join(problems)}")


def _heads(folder: Path) -> tuple[int, int]:
    config = _config(folder).get_text_config()
    heads = config.num_attention_heads
    return heads, getattr(config, "num_key_value_heads", None) or heads


def head_in(folder: Path) -> dict[str, Tensor]:
    """The value head that a folder holds, or a reward model's; nothing where there is neither."""
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
