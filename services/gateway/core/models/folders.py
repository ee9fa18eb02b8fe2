"""Models on the disk: the folder of a name, the list of all models, and their files.

A name stands for a folder below an allowed root. The id of a job names the model that it has
trained, the id of a checkpoint the policy of that step. A model needs safetensors, and no link in
its folder may leave the roots. Downloads reach only regular files directly in a model's folder.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from protocol.model_folder import (
    CONFIG,
    has_config,
    has_weights,
    is_adapter,
    max_positions,
    read_config,
    vocabulary_size,
)

from services.chassis.deployment import Deployment
from services.gateway.core.models.checkpoints import list_checkpoints, parse_checkpoint_id
from services.gateway.errors import no_model, not_found, wrong

log = logging.getLogger(__name__)
MAX_DEPTH = 4  # of a model's folder below a root
MAX_ENTRIES = 200_000  # below a root; listing them takes about a second
MAX_NAME_CHARS = 200  # in a message
JOB_ID = re.compile(r"ftjob-[0-9a-f]{24}")
DELETED_PREFIX = ".deleted-"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_OTHER_TOKENIZERS = ("tekken.json", "tokenizer.model.v3")  # they have their own chat template
_CHAT_TEMPLATES = ("chat_template.jinja", "additional_chat_templates")


def resolve_model(model: str, deployment: Deployment, param: str = "model") -> str:
    """Return the absolute folder of a model, or its hub id if the deployment allows those.

    Raises:
        Problem: 400 for ``param``, saying why no job can start from it, and the remedy.
    """
    folder = find_folder(model, deployment)
    if folder is not None:
        fault = find_fault(folder, deployment)
        if fault is not None:
            raise wrong(param, f"{_shorten(model)} {fault}", code="invalid_model")
        return str(folder)
    if _is_unsafe(model):
        reason = "must not contain '..'; name a folder below one of WEIR_MODEL_ROOTS"
        raise wrong(param, f"{_shorten(model)} {reason}", code="invalid_model")
    if deployment.model_hub and _HUB_ID.fullmatch(model):
        return model
    raise wrong(param, _describe_missing(model, deployment), code="invalid_model")


def find_folder(model: str, deployment: Deployment) -> Path | None:
    """Return the real folder of a name, if there is one; it may not hold a model."""
    if _is_unsafe(model):
        return None
    jobs_dir = deployment.jobs_dir
    checkpoint = parse_checkpoint_id(model, jobs_dir)
    if checkpoint is not None:
        return _folder_below(jobs_dir, checkpoint.model)
    if JOB_ID.fullmatch(model):
        return _folder_below(jobs_dir, jobs_dir / model / "model")
    roots = deployment.model_roots
    if Path(model).is_absolute():  # it may be the ``result.model`` of a job
        roots = (*roots, jobs_dir)
    return next(filter(None, (_folder_below(root, root / model) for root in roots)), None)


def find_listed_name(model: str, deployment: Deployment) -> str:
    """Return the id by which a model is listed; the name itself if there is no such model."""
    folder = find_folder(model, deployment)
    if folder is None:
        return model
    if not Path(model).is_absolute():
        return Path(model).as_posix()
    jobs_dir = deployment.jobs_dir.resolve()
    if folder.is_relative_to(jobs_dir):
        job_dir = jobs_dir / folder.relative_to(jobs_dir).parts[0]
        ids = {job_dir / "model": job_dir.name}
        ids |= {
            checkpoint.model.resolve(): checkpoint.id for checkpoint in list_checkpoints(job_dir)
        }
        return ids.get(folder, model)
    roots = [root for root in deployment.model_roots if folder.is_relative_to(root)]
    names = (folder.relative_to(root).as_posix() for root in roots)
    return min(names, key=len, default=model)


def find_fault(folder: Path, deployment: Deployment) -> str | None:
    """Return why no job can start from a folder, as the end of a sentence; None if one can."""
    if is_adapter(folder):
        return "is a LoRA adapter; a job with model.lora.merge = true makes a whole model"
    if not has_config(folder):
        return "has no config.json; name a Hugging Face model folder"
    if not has_weights(folder):
        return "has no *.safetensors; convert the weights: other formats can run code"
    roots = [root.resolve() for root in (*deployment.model_roots, deployment.jobs_dir)]
    for link in _find_links(folder):
        name = link.relative_to(folder)
        target = _resolve(link)
        if target is None or target.is_dir():
            return f"holds {name}, a link to a folder or to nothing; copy its target"
        if not any(target.is_relative_to(root) for root in roots):
            return f"holds {name}, a link that leaves WEIR_MODEL_ROOTS; copy the file instead"
    try:
        config = read_config(folder)
    except (OSError, ValueError) as error:
        return f"has a damaged {CONFIG}: {_explain(error)}; copy the model again"
    return None if config.get("model_type") else f"has a {CONFIG} without model_type; complete it"


def _is_unsafe(model: str) -> bool:
    return ".." in Path(model).parts or "\0" in model


def _find_links(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(path, name)):
                yield Path(path, name)


def _folder_below(root: Path, candidate: Path) -> Path | None:
    """Return the real folder of ``candidate`` if it exists and does not leave ``root``."""
    folder = _resolve(candidate)
    if folder is None or not folder.is_relative_to(root.resolve()):
        return None
    return folder if folder.is_dir() else None


def _resolve(path: Path) -> Path | None:
    """Follow all links; None if nothing is at their end, or they form a loop."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # ValueError: a name that no file can have
        return None


def _describe_missing(model: str, deployment: Deployment) -> str:
    checkpoint = parse_checkpoint_id(model, deployment.jobs_dir)
    if checkpoint is not None or JOB_ID.fullmatch(model):
        job_id = checkpoint.job_id if checkpoint else model
        ids = [saved.id for saved in list_checkpoints(deployment.job_dir(job_id))]
        remaining = " and ".join(ids) or "no checkpoint"
        return f"there is no model {model}: it is unfinished or deleted; its job has {remaining}"
    hub = "hub ids need WEIR_MODEL_HUB=on"
    if deployment.model_hub:
        hub = "it is no hub id such as 'Qwen/Qwen3-4B' either"
    return (
        f"there is no model folder {_shorten(model)} below WEIR_MODEL_ROOTS; {hub}. GET /v1/models "
        "lists all models; put the folder there, or add its parent to WEIR_MODEL_ROOTS"
    )


def _shorten(model: str) -> str:
    return repr(model if len(model) <= MAX_NAME_CHARS else f"{model[:MAX_NAME_CHARS]}…")


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model's files; None if unknown, as all are of a model on the hub."""

    context: int | None = None  # most tokens that it reads
    has_chat_template: bool | None = None
    dtype: Any = None  # as in config.json
    vocabulary: int | None = None  # tokens


UNKNOWN_FACTS = ModelFacts()


def read_facts(model: str) -> ModelFacts:
    """Read the facts in a resolved model's folder; 400 if a file is damaged."""
    folder = Path(model)
    if not folder.is_absolute():
        return UNKNOWN_FACTS
    tokenizer = _read_json(folder, "tokenizer_config.json")
    has_template = bool(tokenizer.get("chat_template")) or _has_any(folder, _CHAT_TEMPLATES)
    may_have_template = not has_template and _has_any(folder, _OTHER_TOKENIZERS)
    config = _read_json(folder, "config.json")
    return ModelFacts(
        context=max_positions(config),
        dtype=config.get("dtype") or config.get("torch_dtype"),
        has_chat_template=None if may_have_template else has_template,
        vocabulary=vocabulary_size(config),
    )


def _has_any(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).exists() for name in names)


def _read_json(folder: Path, name: str) -> Mapping[str, Any]:
    try:
        return read_config(folder, name)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        message = f"cannot read {name}: {_explain(error)}; repair that file of the model"
        raise wrong("model", message, code="invalid_model") from error


def _explain(error: OSError | ValueError) -> object:
    # The text of an OSError would name the folder.
    return error.strerror if isinstance(error, OSError) else error


def find_base_models(deployment: Deployment) -> dict[str, Path]:
    """Return the model folders below the roots by name; of several names the shortest."""
    names: dict[Path, str] = {}
    for root in deployment.model_roots:
        for folder in _find_model_folders(root, deployment.data_dir.resolve()):
            name = folder.relative_to(root).as_posix()
            is_shorter = folder not in names or len(name) < len(names[folder])
            if is_shorter and _is_usable(name, folder, deployment):
                names[folder] = name
    return {names[folder]: folder for folder in sorted(names, key=names.__getitem__)}


def find_trained_models(deployment: Deployment) -> dict[str, Path]:
    """Return the models of jobs and of their checkpoints by id, if a job can start from them."""
    models = {}
    for job_dir in deployment.jobs_dir.resolve().glob("ftjob-*"):
        if JOB_ID.fullmatch(job_dir.name):
            models[job_dir.name] = job_dir / "model"
            for checkpoint in list_checkpoints(job_dir):
                models[checkpoint.id] = checkpoint.model
    return {name: path for name, path in models.items() if _is_usable(name, path, deployment)}


def _is_usable(name: str, folder: Path, deployment: Deployment) -> bool:
    try:
        name.encode()
        return find_folder(name, deployment) == folder and find_fault(folder, deployment) is None
    except (OSError, UnicodeEncodeError):
        return False


def _find_model_folders(root: Path, excluded: Path) -> Iterator[Path]:
    """Yield folders with a config.json, the nearest first, without hidden ones and links."""
    queue = deque([(root, 0)])
    remaining = MAX_ENTRIES
    while queue and remaining > 0:
        folder, depth = queue.popleft()
        try:
            with os.scandir(folder) as scan:
                entries = list(islice(scan, remaining))
        except OSError:
            continue
        remaining -= len(entries)
        if depth and any(entry.name == "config.json" for entry in entries):
            yield folder
        elif depth < MAX_DEPTH:
            for entry in entries:
                is_visible = not entry.name.startswith(".") and Path(entry.path) != excluded
                if is_visible and entry.is_dir(follow_symlinks=False):
                    queue.append((Path(entry.path), depth + 1))
    if remaining <= 0:
        log.warning("models are left out", extra={"root": str(root), "entries": MAX_ENTRIES})


def list_files(folder: Path) -> dict[str, os.stat_result]:
    """Return the regular files directly in a model's folder by name."""
    try:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
            return {entry.name: entry.stat(follow_symlinks=False) for entry in files}
    except FileNotFoundError as error:
        raise no_model("the model has just been deleted") from error


def remove_model(job_dir: Path) -> None:
    """Remove the model in a job's folder in one step; 404 if there is none."""
    try:
        remove(move_aside(job_dir / "model"))
    except FileNotFoundError as error:
        raise not_found("model", job_dir.name) from error


def move_aside(folder: Path) -> Path:
    """Rename a folder, and return the hidden path that is to be removed."""
    hidden = folder.with_name(DELETED_PREFIX + folder.name)
    remove(hidden)  # an earlier removal may have been interrupted
    folder.rename(hidden)
    return hidden


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
