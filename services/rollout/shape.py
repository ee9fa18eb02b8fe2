"""The shape of a model folder: what an engine takes in when it starts and cannot exchange later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol import weights

# Who wrote the folder, and how: the weights mean the same.
_NO_MATTER = {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache"}
_WEIGHTS = {".safetensors", ".index.json"}
_CONFIGS = {"config.json", "adapter_config.json"}  # a folder has one of them
_OTHERS = {*_CONFIGS, "manifest.json"}


@dataclass(frozen=True)
class ModelShape:
    """Two folders of the same shape can follow each other in one engine."""

    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]  # dimensions, by name
    files: Mapping[str, str]  # the digests of the tokenizer's files and the like, by name

    def differences(self, other: ModelShape) -> list[str]:
        """What another folder has that is not as in this one, each with its place."""
        return [
            f"{place} {name}: {was.get(name)!r} became {now.get(name)!r}"
            for place, was, now in (
                ("config", self.config, other.config),
                ("tensor", self.tensors, other.tensors),
                ("file", self.files, other.files),
            )
            for name in sorted(was.keys() | now.keys())
            if was.get(name) != now.get(name)
        ]


def verified_shape(folder: Path, digest: str) -> ModelShape:
    """The shape of a folder that holds what was announced.

    Raises:
        WeightsGone: if the folder has been removed.
        WeightsError: if it does not hold what was announced.
    """
    weights.verify(folder, digest)
    try:
        return shape_of(folder)
    except FileNotFoundError as error:
        raise weights.WeightsGone(f"{error.filename}: gone") from error


def shape_of(folder: Path) -> ModelShape:
    """Read the shape of a model folder."""
    paths = sorted(folder.iterdir())
    config = json.loads(next(p for p in paths if p.name in _CONFIGS).read_bytes())
    return ModelShape(
        config={name: value for name, value in config.items() if name not in _NO_MATTER},
        tensors={
            name: dimensions
            for path in paths
            if path.suffix == ".safetensors"
            for name, dimensions in _tensors_in(path).items()
        },
        files={
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in paths
            if path.name not in _OTHERS and not path.name.endswith(tuple(_WEIGHTS))
        },
    )


def _tensors_in(path: Path) -> dict[str, tuple[int, ...]]:
    """A safetensors file begins with the size of its JSON header, 8 bytes, and the header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
