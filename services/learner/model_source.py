"""Where a model comes from: a folder under an allowed root, or a hub if that is allowed."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download

from services.chassis.deployment import Deployment

_NEEDED_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


class ModelNotFound(ValueError):
    """There is no usable model where the recipe says; the text says where it was sought."""


def model_folder(path: str, deployment: Deployment, field: str = "model.path") -> Path:
    """The folder of a recipe's model, downloaded if it is a hub id and the deployment allows it.

    Args:
        path: a folder below an allowed root, or a hub id.
        field: where the recipe names it.

    Raises:
        ModelNotFound: if no allowed root holds it, or it has no safetensors weights.
    """
    folder = folder_under_roots(path, deployment.model_roots, field)
    if folder is not None:
        return folder
    if deployment.model_hub:
        downloaded = Path(snapshot_download(path, allow_patterns=_NEEDED_FILES))
        return _with_safetensors(downloaded, field)
    roots = ", ".join(str(root) for root in deployment.model_roots)
    raise ModelNotFound(
        f"{field}: no model folder {path!r} under {roots} (WEIR_MODEL_ROOTS); "
        "to download it from a model hub set WEIR_MODEL_HUB=on"
    )


def folder_under_roots(path: str, roots: tuple[Path, ...], field: str) -> Path | None:
    """The folder of a model below the first allowed root that holds it, or none.

    Raises:
        ModelNotFound: if it has no safetensors weights.
    """
    for root in roots:
        folder = (root / path).resolve()
        if folder.is_relative_to(root) and (folder / "config.json").is_file():
            return _with_safetensors(folder, field)
    return None


def _with_safetensors(folder: Path, field: str) -> Path:
    if not any(folder.glob("*.safetensors")):
        raise ModelNotFound(f"{field}: {folder} holds no *.safetensors; other formats are refused")
    return folder
