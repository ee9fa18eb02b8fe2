"""Models on the disk: which folder a name stands for, all that there are, and their files.

A name stands for a folder below an allowed root; the id of a job names the model that it has
trained, the id of a checkpoint the policy of then. Only safetensors are taken, and nothing in a
model's folder may be a link that leaves the roots. A file of a model is looked up by its name among
the regular files that lie directly in its folder, so a request reaches nothing else.
"""

from __future__ import annotations

import json
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

from protocol.model_folder import max_positions

from services.chassis.deployment import Deployment
from services.gateway.core.models.checkpoints import checkpoint_of, kept_checkpoints
from services.gateway.errors import no_model, not_found, wrong

_DEEPEST = 4  # folders below a root
_MOST_ENTRIES = 200_000  # below a root, about a second
log = logging.getLogger(__name__)
JOB_ID = re.compile(r"ftjob-[0-9a-f]{24}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHOWN = 200  # characters of a name
_OTHER_TOKENIZERS = ("tekken.json", "tokenizer.model.v3")  # which bring their own chat template
_CHAT_TEMPLATES = ("chat_template.jinja", "additional_chat_templates")


def resolve_model(model: str, deployment: Deployment, param: str = "model") -> str:
    """The absolute folder of a model, or its hub id where the deployment allows those.

    Raises:
        Problem: 400 for ``param``, saying why a job cannot start from it, and the remedy.
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


def model_id(model: str, deployment: Deployment) -> str:
    """The id by which models are listed, of one that is there; else the name as it is."""
    if (folder := find_folder(model, deployment)) is None:
        return model
    if not Path(model).is_absolute():
        return Path(model).as_posix()
    jobs_dir = deployment.jobs_dir.resolve()
    if folder.is_relative_to(jobs_dir):
        job_dir = jobs_dir / folder.relative_to(jobs_dir).parts[0]
        made = {kept.model.resolve(): kept.id for kept in kept_checkpoints(job_dir)}
        return ({job_dir / "model": job_dir.name} | made).get(folder, model)
    names = (folder.relative_to(r) for r in deployment.model_roots if folder.is_relative_to(r))
    return min((name.as_posix() for name in names), key=len, default=model)


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
    dtype: Any = None  # as its config.json says
    vocabulary: int | None = None  # tokens


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
    config = _read(folder / "config.json")
    return ModelFacts(
        context=max_positions(config),
        dtype=config.get("dtype") or config.get("torch_dtype"),
        has_chat_template=None if brings_its_own and not has_template else has_template,
        vocabulary=_vocabulary(config),
    )


def _vocabulary(config: Mapping[str, Any]) -> int | None:
    text = config.get("text_config")
    size = (text if isinstance(text, dict) else config).get("vocab_size")
    return size if isinstance(size, int) else None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error  # which names no folder
        what = f"{path.name} cannot be read: {why}; mend that file of the model"
        raise wrong("model", what, code="invalid_model") from error
    return data


def all_models(deployment: Deployment) -> list[dict[str, Any]]:
    """The base models by name, then those that jobs have made, newest first; in OpenAI's shape."""
    base = [
        model_object(name, folder, "system")
        for name, folder in sorted(_base_models(deployment).items())
    ]
    made = [
        model_object(name, folder, "weir") for name, folder in _made_models(deployment.jobs_dir)
    ]
    return base + sorted(made, key=lambda model: model["created"], reverse=True)


def model_object(name: str, folder: Path, owner: str) -> dict[str, Any]:
    try:
        created = int(folder.stat().st_mtime)
    except OSError:  # it has just gone
        created = 0
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


def _base_models(deployment: Deployment) -> dict[str, Path]:
    """Model folders below the roots by their names; one with several names has the shortest."""
    names: dict[Path, str] = {}
    for root in deployment.model_roots:
        for folder in _model_folders(root, deployment.data_dir.resolve()):
            name = folder.relative_to(root).as_posix()
            known = names.get(folder)
            if (known is None or len(name) < len(known)) and _is_usable(name, folder, deployment):
                names[folder] = name
    return {name: folder for folder, name in names.items()}


def _is_usable(name: str, folder: Path, deployment: Deployment) -> bool:
    try:
        name.encode()
        return find_folder(name, deployment) == folder and fault_of(folder, deployment) is None
    except (OSError, UnicodeEncodeError):
        return False


def _model_folders(root: Path, besides: Path) -> Iterator[Path]:
    """Folders with a config.json, the nearest first; hidden ones and links are not looked into."""
    waiting, left = deque([(root, 0)]), _MOST_ENTRIES
    while waiting and left > 0:
        folder, depth = waiting.popleft()
        try:
            with os.scandir(folder) as entries:
                found = list(islice(entries, left))
        except OSError:
            continue
        left -= len(found)
        if depth and any(entry.name == "config.json" for entry in found):
            yield folder
        elif depth < _DEEPEST:
            waiting += (
                (folder / entry.name, depth + 1)
                for entry in found
                if not entry.name.startswith(".")
                and entry.is_dir(follow_symlinks=False)
                and folder / entry.name != besides
            )
    if left <= 0:
        log.warning("models are left out", extra={"root": str(root), "entries": _MOST_ENTRIES})


def _made_models(jobs_dir: Path) -> Iterator[tuple[str, Path]]:
    for job_dir in jobs_dir.glob("ftjob-*"):
        if JOB_ID.fullmatch(job_dir.name):
            folders = {job_dir.name: job_dir / "model"}
            folders |= {kept.id: kept.model for kept in kept_checkpoints(job_dir)}
            yield from (each for each in folders.items() if (each[1] / "config.json").is_file())


def model_files(folder: Path) -> list[dict[str, Any]]:
    """Name, bytes and last change, in microseconds since 1970, of each file of a model."""
    return [
        {"name": name, "bytes": found.st_size, "modified_us": found.st_mtime_ns // 1000}
        for name, found in sorted(_files(folder).items())
    ]


def model_file(folder: Path, name: str) -> Path:
    """Where the file ``name`` of a model lies, or 404."""
    if name not in _files(folder):
        raise not_found("file in this model,", name)
    return folder / name


def _files(folder: Path) -> dict[str, os.stat_result]:
    try:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
            return {entry.name: entry.stat(follow_symlinks=False) for entry in files}
    except FileNotFoundError as error:
        raise no_model("the model has just gone") from error


def remove_model(job_dir: Path) -> None:
    """Remove the model in a job's folder, from one moment to the next; 404 if there is none."""
    try:
        remove_folder(job_dir / "model")
    except FileNotFoundError as error:
        raise not_found("model", job_dir.name) from error


def remove_folder(folder: Path) -> None:
    """Remove a folder, from one moment to the next."""
    leaving = folder.with_name(f".deleted-{folder.name}")
    shutil.rmtree(leaving, ignore_errors=True)  # a process may have been killed at it
    folder.rename(leaving)
    shutil.rmtree(leaving, ignore_errors=True)
