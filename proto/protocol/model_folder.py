"""A Hugging Face model folder: its files, its config, and the limits that the config states."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
# The names that configs use for the number of positions. The smallest value counts, as in vLLM.
_POSITION_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)


def has_config(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds a LoRA adapter."""
    return (folder / ADAPTER_CONFIG).is_file()


def has_weights(folder: Path) -> bool:
    """Whether the folder holds safetensors; Weir reads no other format."""
    return any(folder.glob("*.safetensors"))


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """Read the config of a model, or another JSON file of its folder.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not a JSON object.
    """
    try:
        config = json.loads((folder / name).read_bytes())
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    if not isinstance(config, dict):
        raise ValueError("it must be a JSON object: {...}")
    return config


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that describes the language model."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def vocabulary_size(config: Mapping[str, Any]) -> int | None:
    size = text_config(config).get("vocab_size")
    return size if isinstance(size, int) else None


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Return the longest context in tokens, RoPE scaling included; None if it is not stated."""
    part = text_config(config)
    values = [part.get(name) for name in _POSITION_FIELDS]
    limits = [value for value in values if isinstance(value, int)]
    if not limits:
        return None
    return int(min(limits) * max(_scaling_factors(part), default=1.0))


def _scaling_factors(config: Mapping[str, Any]) -> Iterator[float]:
    for name in ("rope_scaling", "rope_parameters"):
        scaling = config.get(name)
        kinds = [scaling, *scaling.values()] if isinstance(scaling, dict) else []
        for kind in kinds:
            factor = kind.get("factor") if isinstance(kind, dict) else None
            if isinstance(factor, int | float):
                yield max(1.0, factor)
