"""Which model folders a job may start from: below an allowed root, safetensors only."""

from __future__ import annotations

import re
from pathlib import Path

from services.chassis.deployment import Deployment
from services.gateway.errors import Problem

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(model: str, deployment: Deployment, param: str = "model") -> str:
    """The absolute folder of a model, or its hub id where the deployment allows those.

    Args:
        model: a folder below an allowed root, or a hub id.
        param: where the request names it.

    Raises:
        Problem: 400 naming the roots that were searched and the remedy.
    """
    roots = deployment.model_roots
    if "\0" in model or ".." in Path(model).parts:
        raise _refused(
            param, f"{model!r} must not contain '..'; name a folder below {_listed(roots)}"
        )
    folders = [folder for root in roots if (folder := _inside(root, root / model)) is not None]
    if folders:
        return str(_checked(folders[0], roots, param))
    if deployment.model_hub and _HUB_ID.fullmatch(model):
        return model
    hub = (
        "it is not a hub id such as 'Qwen/Qwen3-4B' either"
        if deployment.model_hub
        else "hub ids need WEIR_MODEL_HUB=on"
    )
    raise _refused(
        param,
        f"there is no model folder {model!r} below {_listed(roots)}; {hub}. Put the folder there, "
        "or add its parent to WEIR_MODEL_ROOTS",
    )


def _inside(root: Path, candidate: Path) -> Path | None:
    """The real folder of ``candidate`` if it exists and does not leave ``root``."""
    try:
        folder = candidate.resolve()
        return folder if folder.is_dir() and folder.is_relative_to(root.resolve()) else None
    except (OSError, RuntimeError):  # a name that is too long, a loop of links
        return None


def _checked(folder: Path, roots: tuple[Path, ...], param: str) -> Path:
    config, weights = folder / "config.json", sorted(folder.glob("*.safetensors"))
    if not config.is_file():
        raise _refused(param, f"{folder} has no config.json; name a Hugging Face model folder")
    if not weights:
        raise _refused(
            param, f"{folder} has no *.safetensors; convert the weights: other formats can run code"
        )
    for file in (config, *weights):
        if not _lies_below(file, roots):
            raise _refused(
                param, f"{file} is a link that leaves {_listed(roots)}; copy the file instead"
            )
    return folder


def _lies_below(file: Path, roots: tuple[Path, ...]) -> bool:
    try:
        real = file.resolve()
    except (OSError, RuntimeError):
        return False
    return any(real.is_relative_to(root.resolve()) for root in roots)


def _listed(roots: tuple[Path, ...]) -> str:
    return " or ".join(str(root) for root in roots) or "any root (WEIR_MODEL_ROOTS is empty)"


def _refused(param: str, message: str) -> Problem:
    return Problem(400, f"{param}: {message}", param=param, code="invalid_model")
