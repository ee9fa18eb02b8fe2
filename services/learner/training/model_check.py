"""What a model must be like for Weir to train it exactly, found out before any rank loads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from protocol.recipe import Lora
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
)

from deploy.placement import Placement, PlacementError
from services.chassis.positions import most_positions
from services.learner.planning.footprint import sequence_problem, split_problems
from services.learner.training.lora import linear_layers

_AFTER_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling")
_EFFECTS = {
    **dict.fromkeys(_AFTER_HEAD, "changes the logits after the head"),
    # In bfloat16 no probe tells it from rounding.
    "quantization_config": "has engines compute otherwise than the learner",
}
VALUE_HEAD = "value_head.safetensors"
_REWARD_HEAD = "score.weight"  # of transformers' models for sequence classification, [1, hidden]
_FULL, _SLIDING = "full_attention", "sliding_attention"


class UnsupportedModel(ValueError):
    """A model that Weir cannot train exactly; the text says why."""


def check_models(policy: Path, critic: Path | None, max_context: int) -> None:
    """Check the folders of a job's models; the context is prompt and response, in tokens.

    Raises:
        UnsupportedModel: if the policy is quantized, its logits are not just hidden states times a
            weight, the critic reads other token ids than the policy writes, or attention is not
            causal over the whole context, which is longer than a model can read.
    """
    written = _config(policy)
    _check_context("model.path", policy, max_context)
    _check_attention("model.path", policy, written, max_context)
    for setting, effect in _EFFECTS.items():
        value = getattr(written, setting, None)
        if value not in (None, 1):
            raise UnsupportedModel(
                f"model.path: {policy / 'config.json'} has {setting} = {value}, which {effect}; "
                "choose a model without it"
            )
    if critic is None:
        return
    read = _config(critic)
    _check_context("critic.path", critic, max_context)
    _check_attention("critic.path", critic, read, max_context)
    if critic != policy and _tokens(critic) != _tokens(policy):
        raise UnsupportedModel(
            f"critic.path: {critic} has another vocabulary than the policy, {policy}; choose a "
            "critic with the policy's tokenizer"
        )
    if read.vocab_size < max(_tokens(policy).values()) + 1:
        raise UnsupportedModel(
            f"critic.path: {critic} knows {read.vocab_size} tokens, fewer than its tokenizer has; "
            "its config.json does not fit it"
        )
    labels = read.num_labels if _scores(read) else 1
    if labels != 1:
        raise UnsupportedModel(
            f"critic.path: {critic} is a classifier with {labels} labels; choose a reward model, "
            "which has one, or a language model"
        )
    if _scores(read) and not head_in(critic):
        raise UnsupportedModel(
            f"critic.path: {critic} is a reward model without {_REWARD_HEAD}; choose one that has "
            "that head, or a language model, which gets a new one"
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


def _check_context(setting: str, folder: Path, context: int) -> None:
    most = most_positions(json.loads((folder / "config.json").read_bytes()))
    if most is not None and context > most:
        raise UnsupportedModel(
            f"{setting}: {folder} reads at most {most} tokens; lower model.max_context = {context}"
        )


def _check_attention(setting: str, folder: Path, config: PretrainedConfig, context: int) -> None:
    """Samples lie in one row, so attention must be one that is told where each begins and ends."""
    problem = next(_problems_of_attention(config.get_text_config(), context), None)
    if problem is not None:
        raise UnsupportedModel(
            f"{setting}: {folder / 'config.json'} has {problem}; choose a model with causal "
            "attention over the whole context"
        )


def _problems_of_attention(config: PretrainedConfig, context: int) -> Iterator[str]:
    model = AutoModel._model_mapping.get(type(config), None)
    window = getattr(config, "sliding_window", None) or context
    # A model that does not name its layers has the window in all of them.
    layers = set(getattr(config, "layer_types", None) or [_SLIDING])
    if not getattr(model, "_supports_attention_backend", False):
        yield f"model_type = {config.model_type}, whose attention is its own"
    if getattr(config, "block_types", None) is not None:
        yield "block_types, some of them recurrent"
    if others := layers - {_FULL, _SLIDING}:
        yield f"layers of {', '.join(sorted(others))}"
    if window < context and layers != {_FULL}:
        yield f"sliding_window = {window}, shorter than model.max_context = {context}"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        yield f"attn_logit_softcapping = {config.attn_logit_softcapping}"
    # Frequencies that change with the longest position of a row, whichever sample has it.
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings", config.max_position_embeddings)
    if rope.get("rope_type") in ("dynamic", "longrope") and context > original:
        yield f"rope_type = {rope['rope_type']} beyond {original} positions"


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
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _tokens(folder: Path) -> dict[str, int]:
    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    return tokenizer.get_vocab()


def _scores(config: PretrainedConfig) -> bool:
    return any("SequenceClassification" in name for name in config.architectures or ())
