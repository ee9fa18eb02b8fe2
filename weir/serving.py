"""The command by which vLLM serves a job's model without Weir."""

from __future__ import annotations

import json
import shlex

from weir.client import WeirClient

# Values that vLLM accepts for --max-lora-rank.
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def serve_command(weir: WeirClient, name: str) -> str:
    """Return a command that fetches the model of ``JOB`` or ``JOB@STEP``, and serves it.

    Raises:
        WeirError: if the job has no model.
    """
    job_id, _, step = name.partition("@")
    job = weir.job(job_id)
    model = job["weir"]["recipe"]["model"]
    folder = job_id
    if step:
        folder += f"-{int(step)}"
    options = [f"./{folder}", "--served-model-name", name]
    for file in weir.model_files(name):
        if file["name"] == "adapter_config.json":
            rank = next(rank for rank in _LORA_RANKS if rank >= model["lora"]["rank"])
            options = [model["path"], "--enable-lora"]
            options += ["--lora-modules", f"{name}=./{folder}"]
            options += ["--max-lora-rank", str(rank)]
    options += ["--max-model-len", str(model["max_context"])]
    options += ["--dtype", model["dtype"]]
    template_options = model["chat_template_options"]
    if template_options:
        options += ["--default-chat-template-kwargs", json.dumps(template_options)]
    fetch = shlex.join(["weir", "fetch", name, folder])
    # The program `vllm` fails in vLLM's build for CPUs; the module runs in every build.
    module = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model"]
    serve = shlex.join([*module, *options])
    return f"{fetch} && {serve}"
