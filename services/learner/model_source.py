"""Model sources: a folder under an allowed root, or a model hub if that is allowed."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError
from protocol.model_folder import has_config, has_weights

from services.chassis.deployment import read_variable

_NEEDED_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


class ModelNotFound(ValueError):
    """A model folder is missing; the text says where it was searched for."""


class NotOnHub(ValueError):
    """The model hub has no usable model with the recipe's name for it."""


def find_model(path: str, roots: tuple[Path, ...], *, hub: bool, field: str = "model.path") -> Path:
    """Return the folder of a recipe's model; download a hub id if a hub is allowed.

    Args:
        path: a folder below one of the roots, or a hub id.
        roots: the folders that may hold models.
        hub: whether a model may be downloaded.
        field: the recipe's field, for errors.

    Raises:
        ModelNotFound: if no root holds it, or it has no safetensors weights.
        NotOnHub: if the hub has no such model with safetensors weights.
    """
    folder = folder_under_roots(path, roots, field)
    if folder is not None:
        return folder
    if hub and not Path(path).is_absolute():
        return _download(path, field)
    raise ModelNotFound(
        f"{field}: no model folder {path!r} under one of WEIR_MODEL_ROOTS; "
        "to download it from a model hub set WEIR_MODEL_HUB=on"
    )


def folder_under_roots(path: str, roots: tuple[Path, ...], field: str) -> Path | None:
    """Return the folder of a model below the first root that holds it, or None.

    Raises:
        ModelNotFound: if it has no safetensors weights.
    """
    for root in roots:
        folder = (root / path).resolve()
        if folder.is_relative_to(root) and has_config(folder):
            return _require_safetensors(folder, field)
    return None


def _download(name: str, field: str) -> Path:
    token = read_variable(os.environ, "HF_TOKEN")
    try:
        folder = Path(snapshot_download(name, allow_patterns=_NEEDED_FILES, token=token))
        return _require_safetensors(folder, field)
    except (RepositoryNotFoundError, ModelNotFound) as error:
        raise NotOnHub(f"{field}: {name!r} is not available on the model hub: {error}") from error


def _require_safetensors(folder: Path, field: str) -> Path:
    if not has_weights(folder):
        raise ModelNotFound(f"{field}: {folder} holds no *.safetensors; other formats are refused")
    return folder
