"""The command by which vLLM serves a job's model, without Weir."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from weir.client import Json, WeirClient

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


def how_to_serve(weir: WeirClient, name: str) -> str:
    """A script that fetches the model of ``JOB`` or ``JOB@STEP`` and serves it under that name.

    Raises:
        WeirError: saying why the job has no model.
    """
    job_id, _, step = name.partition("@")
    files = {file["name"] for file in weir.model_files(name)}
    model = weir.job(job_id)["weir"]["recipe"]["model"]
    folder = f"{job_id}-{int(step)}" if step else job_id
    is_adapter = "adapter_config.json" in files
    serve = [
        *("vllm", "serve", model["path"] if is_adapter else f"./{folder}"),
        *(_of_adapter(name, folder, model["lora"]) if is_adapter else _of_model(name)),
        *("--max-model-len", str(model["max_context"]), "--dtype", model["dtype"]),
    ]
    if options := model["chat_template_options"]:
        serve += ["--default-chat-template-kwargs", json.dumps(options)]
    fetch = shlex.join(["weir", "fetch", name, folder])
    return "\n".join([*_notes(model, is_adapter), f"{fetch} && {shlex.join(serve)}"])


def _of_model(name: str) -> list[str]:
    return ["--served-model-name", name]


def _of_adapter(name: str, folder: str, lora: Json) -> list[str]:
    rank = next(rank for rank in _LORA_RANKS if rank >= lora["rank"])
    modules = ["--enable-lora", "--lora-modules", f"{name}=./{folder}"]
    return [*modules, "--max-lora-rank", str(rank)]


def _notes(model: Json, is_adapter: bool) -> Iterator[str]:
    """What else is to be known, as comments of a shell."""
    if is_adapter and model["path"].startswith("/"):
        yield f"# {model['path']} is a folder of the stack: elsewhere, copy it and name the copy"
    if (template := model["prompt_template"]) is not None:
        yield f"# it has learned from texts, not chats: ask /v1/completions, by {template!r}"
