"""Settings of the engine: the recipe sets those of the model, WEIR_* those of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.recipe import Model

from services.chassis.deployment import Reader, parse_count, parse_positive, parse_whole, split_list


@dataclass(frozen=True)
class EngineSettings:
    """Settings that a running engine keeps; another value needs another engine."""

    dtype: str
    # Prompt and response, in tokens.
    max_context: int
    # 0 if the engine samples without an adapter.
    lora_rank: int = 0
    # Responses sampled at once. None is 256 on a CPU, and vLLM's default on a GPU.
    max_sequences: int | None = None
    # None is 512 MiB on a CPU, and all free memory on a GPU.
    kv_cache_bytes: int | None = None
    # The fraction of a GPU's memory that the engine may use.
    gpu_memory: float = 0.9
    # The number of GPUs that share the model.
    num_gpus: int = 1
    # The deadline of the engine's start, with its compilation.
    start_timeout_s: float = 1800.0
    # The deadline of each phase of a weight sync.
    sync_timeout_s: float = 120.0
    # Whether the engine sleeps while the learner computes on its GPU.
    takes_turns: bool = False

    @classmethod
    def from_environment(
        cls, model: Model, environment: Mapping[str, str] = os.environ
    ) -> EngineSettings:
        """Return the settings for a recipe's model on this machine.

        Raises:
            DeploymentError: naming the variable that is wrong.
        """
        read = Reader(environment)
        return cls(
            dtype=model.dtype,
            max_context=model.max_context,
            lora_rank=model.lora.rank if model.lora is not None else 0,
            max_sequences=read("WEIR_ROLLOUT_MAX_SEQUENCES", parse_whole, "0") or None,
            kv_cache_bytes=read("WEIR_ROLLOUT_KV_CACHE_MIB", parse_whole, "0") * 2**20 or None,
            gpu_memory=read("WEIR_ROLLOUT_GPU_MEMORY", parse_positive, "0.9"),
            num_gpus=read("WEIR_ROLLOUT_TENSOR_PARALLEL_SIZE", parse_count, "1"),
            start_timeout_s=read("WEIR_ROLLOUT_START_TIMEOUT_S", parse_positive, "1800"),
            sync_timeout_s=read("WEIR_ROLLOUT_SYNC_TIMEOUT_S", parse_positive, "120"),
            takes_turns=bool(read("WEIR_TURNS", split_list, "")),
        )
