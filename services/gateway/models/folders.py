"""Which folder a model's name stands for: below an allowed root, or made by a job.

The id of a job names the model that it has trained, the id of a checkpoint the policy of then. Only
safetensors are taken, and nothing in a model's folder may be a link that leaves the roots.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.chassis.deployment import Deployment
from services.chassis.positions import most_positions
from services.gateway.errors import wrong
from services.gateway.models.checkpoints import checkpoint_of, kept_checkpoints

JOB_ID = re.compile(r"ftjob-[0-9a-f]{24}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHOWN = 200  # characters of a name
_OTHER_TOKENIZERS = ("tekken.json", "tokenizer.model.v3")  # which bring their own chat template
_CHAT_TEMPLATES = ("chat_template.jinja", "additional_chat_templates")


def resolve_model(model: str, deployment: Deployment, param: str = "model") -> str:
    """The absolute folder of a model, or its hub id where the deployment allows those.

    Args:
        model: a folder below an allowed root, the id of a job or a checkpoint, or a hub id.
        param: where the request names it.

    Raises:
        Problem: 400 saying why a job cannot start from it, and the remedy.
    """
    folder = find_folder(model, deployment)
    if folder is not None:
        if fault := fault_of(folder, deployment):
            raise wrong(param, f"{_named(model)} {fault}", code="invalid_model")
        return str(folder)
    if ".." in Path(model).parts or "\0" in model:
        why = "must not contain '..'; name a folder below one of WEIR_MODEL_ROOTS"
        raise wrong(param, f"{_named(model)} {why}", code="invalid_model")
    if deployment.model_hub and _HUB_ID.fullmatch(model):
        return model
    raise wrong(param, _why_nowhere(model, deployment), code="invalid_model")


def find_folder(model: str, deployment: Deployment) -> Path | None:
    """The real folder that a name stands for, if there is one; whether it holds a model is open."""
    if ".." in Path(model).parts or "\0" in model:
        return None
    jobs_dir = deployment.jobs_dir
    if (checkpoint := checkpoint_of(model, jobs_dir)) is not None:
        return _inside(jobs_dir, checkpoint.model)
    if JOB_ID.fullmatch(model):
        return _inside(jobs_dir, jobs_dir / model / "model")
    roots = deployment.model_roots
    if Path(model).is_absolute():  # it may be the ``result.model`` of a job
        roots = (*roots, jobs_dir)
    return next(filter(None, (_inside(root, root / model) for root in roots)), None)


def fault_of(folder: Path, deployment: Deployment) -> str | None:
    """Why no job can start from a folder, as the end of a sentence; None if one can."""
    if (folder / "adapter_config.json").is_file():
        return "is a LoRA adapter; a job with model.lora.merge = true makes a model of its own"
    if not (folder / "config.json").is_file():
        return "has no config.json; name a Hugging Face model folder"
    if not any(name.endswith(".safetensors") for name in os.listdir(folder)):
        return "has no *.safetensors; convert the weights: other formats can run code"
    for link in _links(folder):
        name, target = link.relative_to(folder), _real(link)
        if target is None or target.is_dir():
            return f"holds {name}, a link to a folder or to nothing; copy what it links to"
        roots = (*deployment.model_roots, deployment.jobs_dir)
        if not any(target.is_relative_to(root.resolve()) for root in roots):
            return f"holds {name}, a link that leaves WEIR_MODEL_ROOTS; copy the file instead"
    return None


def _links(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(path, name)):
                yield Path(path, name)


def _inside(root: Path, candidate: Path) -> Path | None:
    """The real folder of ``candidate`` if it exists and does not leave ``root``."""
    folder = _real(candidate)
    if folder is None or not folder.is_relative_to(root.resolve()):
        return None
    return folder if folder.is_dir() else None


def _real(path: Path) -> Path | None:
    """What is at the end of all links; None if there is nothing, or no end to them."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # gone; a loop; a name no file can have
        return None


def _why_nowhere(model: str, deployment: Deployment) -> str:
    checkpoint = checkpoint_of(model, deployment.jobs_dir)
    if checkpoint is not None or JOB_ID.fullmatch(model):
        job_id = checkpoint.job_id if checkpoint else model
        ids = [kept.id for kept in kept_checkpoints(deployment.job_dir(job_id))]
        kept = f"its job has kept {' and '.join(ids)}" if ids else "its job has kept no checkpoint"
        return f"there is no model {model}, because it is not finished or was deleted; {kept}"
    hub = (
        "it is not a hub id such as 'Qwen/Qwen3-4B' either"
        if deployment.model_hub
        else "hub ids need WEIR_MODEL_HUB=on"
    )
    return (
        f"there is no model folder {_named(model)} below WEIR_MODEL_ROOTS; {hub}. GET /v1/models "
        "lists what there is; put the folder there, or add its parent to WEIR_MODEL_ROOTS"
    )


def _named(model: str) -> str:
    return repr(model if len(model) <= _SHOWN else f"{model[:_SHOWN]}…")


@dataclass(frozen=True)
class ModelFacts:
    """None is what is not known, as all of a model that is still on its hub."""

    context: int | None = None  # in tokens; more cannot be read
    has_chat_template: bool | None = None


NOTHING_KNOWN = ModelFacts()


def facts_of(model: str) -> ModelFacts:
    """The facts in a resolved model's folder, or nothing of a hub id; 400 if it is damaged."""
    folder = Path(model)
    if not folder.is_absolute():
        return NOTHING_KNOWN
    tokenizer = _read(folder / "tokenizer_config.json")
    brings_its_own = any((folder / name).exists() for name in _OTHER_TOKENIZERS)
    has_template = bool(tokenizer.get("chat_template")) or any(
        (folder / name).exists() for name in _CHAT_TEMPLATES
    )
    return ModelFacts(
        context=most_positions(_read(folder / "config.json")),
        has_chat_template=None if brings_its_own and not has_template else has_template,
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error  # which names no folder
        what = f"{path.name} cannot be read: {why}; mend that file of the model"
        raise wrong("model", what, code="invalid_model") from error
    return data if isinstance(data, dict) else {}
