"""How the engine is set up: the model's part comes from the recipe, the machine's from WEIR_*."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.recipe import Model

from services.chassis.deployment import Reader, parse_count, parse_positive, parse_whole, split_list


@dataclass(frozen=True)
class EngineSettings:
    """What an engine keeps from its start to its end; another value needs another engine."""

    dtype: str
    max_context: int  # prompt and response, in tokens
    lora_rank: int = 0  # of the adapters that it samples with; 0 without
    max_sequences: int | None = None  # sampled at once; None: 256 on a CPU, vLLM's own on a GPU
    kv_cache_bytes: int | None = None  # None: 512 MiB on a CPU, what is left on a GPU
    gpu_memory: float = 0.9  # the part of a GPU that the engine may use
    num_gpus: int = 1  # the model is split over so many
    sync_timeout_s: float = 120.0  # per phase of a weight sync
    takes_turns: bool = False  # on its GPU, with the learner: it sleeps while that computes

    @classmethod
    def from_environment(
        cls, model: Model, environment: Mapping[str, str] = os.environ
    ) -> EngineSettings:
        """The settings for a recipe's model on this machine.

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
            sync_timeout_s=read("WEIR_ROLLOUT_SYNC_TIMEOUT_S", parse_positive, "120"),
            takes_turns=bool(read("WEIR_TURNS", split_list, "")),
        )
