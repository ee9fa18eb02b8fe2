"""In a packed row every sample computes what it would alone, forward and backward."""

import itertools

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers import Qwen3Config, Qwen3ForCausalLM

from services.learner.training.attention import PACKED
from services.learner.training.batching import MicroBatch, collate
from services.learner.training.models import _hidden
from services.learner.training.samples import Sample

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LENGTHS = [(3, 1), (9, 30), (1, 5), (2, 0), (20, 19), (4, 3)]
MODELS = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
}
