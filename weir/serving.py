"""The command by which vLLM serves a job's model, without Weir."""

from __future__ import annotations

import json
import shlex

from weir.client import WeirClient

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


def how_to_serve(weir: WeirClient, name: str) -> str:
    """A command that fetches the model of ``JOB`` or ``JOB@STEP`` and serves it under that name.

    Raises:
        WeirError: saying why the job has no model.
    """
    job_id, _, step = name.partition("@")
    files = {file["name"] for file in weir.model_files(name)}
    model = weir.job(job_id)["weir"]["recipe"]["model"]
    folder = f"{job_id}-{int(step)}" if step else job_id
    served = [f"./{folder}", "--served-model-name", name]
    if "adapter_config.json" in files:
        rank = next(rank for rank in _LORA_RANKS if rank >= model["lora"]["rank"])
        served = [model["path"], "--enable-lora", "--lora-modules", f"{name}=./{folder}"]
        served += ["--max-lora-rank", str(rank)]
    served += ["--max-model-len", str(model["max_context"]), "--dtype", model["dtype"]]
    if options := model["chat_template_options"]:
        served += ["--default-chat-template-kwargs", json.dumps(options)]
    fetch = shlex.join(["weir", "fetch", name, folder])
    return f"{fetch} && {shlex.join(['vllm', 'serve', *served])}"
