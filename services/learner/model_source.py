"""Where a model comes from: a folder under an allowed root, or a hub if that is allowed."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError
from protocol.model_folder import has_config, has_weights

from services.chassis.deployment import read_variable

_NEEDED_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


class ModelNotFound(ValueError):
    """A model folder is not, or no longer, where it was; the text says where it was sought."""


class NotOnHub(ValueError):
    """The model hub has no usable model of the name that the recipe gives."""


def find_model(path: str, roots: tuple[Path, ...], *, hub: bool, field: str = "model.path") -> Path:
    """The folder of a recipe's model, downloaded if it is a hub id and a hub is allowed.

    Args:
        path: a folder below one of the roots, or a hub id.
        roots: where model folders may lie.
        hub: whether one may be downloaded.
        field: where the recipe names it.

    Raises:
        ModelNotFound: if no root holds it, or it has no safetensors weights.
        NotOnHub: if it is to come from the hub, and the hub has none with safetensors weights.
    """
    folder = folder_under_roots(path, roots, field)
    if folder is not None:
        return folder
    if hub and not Path(path).is_absolute():
        return _downloaded(path, field)
    raise ModelNotFound(
        f"{field}: no model folder {path!r} under one of WEIR_MODEL_ROOTS; "
        "to download it from a model hub set WEIR_MODEL_HUB=on"
    )


def folder_under_roots(path: str, roots: tuple[Path, ...], field: str) -> Path | None:
    """The folder of a model below the first allowed root that holds it, or none.

    Raises:
        ModelNotFound: if it has no safetensors weights.
    """
    for root in roots:
        folder = (root / path).resolve()
        if folder.is_relative_to(root) and has_config(folder):
            return _with_safetensors(folder, field)
    return None


def _downloaded(name: str, field: str) -> Path:
    token = read_variable(os.environ, "HF_TOKEN")
    try:
        folder = Path(snapshot_download(name, allow_patterns=_NEEDED_FILES, token=token))
        return _with_safetensors(folder, field)
    except (RepositoryNotFoundError, ModelNotFound) as error:
        raise NotOnHub(f"{field}: {name!r} cannot be had from the model hub: {error}") from error


def _with_safetensors(folder: Path, field: str) -> Path:
    if not has_weights(folder):
        raise ModelNotFound(f"{field}: {folder} holds no *.safetensors; other formats are refused")
    return folder
