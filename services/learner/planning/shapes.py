"""The shape of a model, and the parameters and FLOPs that follow from it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from protocol.model_folder import max_positions
from protocol.placement import Placement, split_problem

GPUS_PER_NODE = 8
_MAX_FIELD = 10**9  # a larger number in a config is a mistake


class UnknownModel(ValueError):
    """The memory of a model cannot be computed; the text names the field of its config."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder of the Llama and Qwen families."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate: int  # width of the gated feed-forward network
    vocabulary: int
    max_positions: int
    tied: bool = False  # the head is the embedding
    attention_bias: bool = False  # queries, keys and values have a bias
    query_key_norm: bool = False
    counted: int | None = None  # parameters without the head, in a model of another family

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        """Width of a token's keys, and of its values."""
        return self.key_value_heads * self.head_size

    @property
    def body_parameters(self) -> int:
        """All parameters except the head's."""
        if self.counted is not None:
            return self.counted
        inputs = self.query_width + 2 * self.key_width
        attention = self.hidden * (inputs + self.query_width) + inputs * self.attention_bias
        norms = 2 * self.hidden + 2 * self.head_size * self.query_key_norm
        layer = attention + 3 * self.hidden * self.intermediate + norms
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden

    @property
    def parameters(self) -> int:
        return self.body_parameters + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def critic_parameters(self) -> int:
        """Parameters of a critic, whose head has one output."""
        return self.body_parameters + self.hidden + 1

    def adapted_widths(self, targets: Sequence[str] = ()) -> list[int]:
        """Return inputs + outputs of each linear map of a layer with an adapter; default: all."""
        widths = {
            "q_proj": self.query_width,
            "k_proj": self.key_width,
            "v_proj": self.key_width,
            "o_proj": self.query_width,
            "gate_proj": self.intermediate,
            "up_proj": self.intermediate,
            "down_proj": self.intermediate,
        }
        return [self.hidden + widths[name] for name in widths if not targets or name in targets]

    def adapter_parameters(self, rank: int, targets: Sequence[str] = ()) -> int:
        return self.layers * rank * sum(self.adapted_widths(targets))

    def forward_flops(self, length: float) -> float:
        """Return FLOPs per token of a sequence of this length, with causal attention."""
        # The embedding is looked up, not multiplied; the head is multiplied and is as large.
        return 2 * self.body_parameters + 2 * length * self.query_width * self.layers

    def critic_flops(self, length: float) -> float:
        """Return `forward_flops` without the head of a language model."""
        return self.forward_flops(length) - 2 * self.vocabulary * self.hidden


def trained_flops(
    policy: ModelShape, critic: ModelShape | None, length: int, *, adapter: bool = False
) -> float:
    """Return model FLOPs to train once on a sequence.

    A backward pass counts as two forward passes, or as one if only an adapter learns. Not counted:
    the adapter itself, recomputed activations, and a reference model.
    """
    flops = (2 if adapter else 3) * policy.forward_flops(length)
    if critic is not None:
        flops += 3 * critic.critic_flops(length)
    return length * flops


def shape_from_config(config: Mapping[str, Any]) -> ModelShape:
    """Read the shape from a Hugging Face ``config.json``.

    Raises:
        UnknownModel: for another family than Llama and Qwen, or a damaged field.
    """
    family = config.get("model_type")
    if family not in ("llama", "qwen2", "qwen3"):
        raise UnknownModel(f"model_type {family!r} is none of llama, qwen2, qwen3")
    hidden = _positive(config, "hidden_size")
    heads = _positive(config, "num_attention_heads")
    key_value_heads = _positive(config, "num_key_value_heads", default=heads)
    if heads % key_value_heads:
        raise UnknownModel(f"field num_key_value_heads must divide num_attention_heads = {heads}")
    tied = config.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise UnknownModel(f"field tie_word_embeddings must be true or false, not {str(tied)[:40]}")
    return ModelShape(
        hidden=hidden,
        layers=_positive(config, "num_hidden_layers"),
        heads=heads,
        key_value_heads=key_value_heads,
        head_size=_positive(config, "head_dim", default=hidden // heads or None),
        intermediate=_positive(config, "intermediate_size"),
        vocabulary=_positive(config, "vocab_size"),
        max_positions=max_positions(config) or _positive(config, "max_position_embeddings"),
        tied=tied,
        attention_bias=family == "qwen2",
        query_key_norm=family == "qwen3",
    )


def _positive(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 0 < value <= _MAX_FIELD:
        raise UnknownModel(f"field {field} must be a whole number, not {str(value)[:40]}")
    return value


def sequence_problem(size: int, heads: int, key_value_heads: int, num_ranks: int) -> str | None:
    """Return why ``size`` ranks cannot share each sample, with the remedy; None if they can."""
    sizes = [
        divisor
        for divisor in range(1, num_ranks + 1)
        if num_ranks % divisor == 0 and split_problem(divisor, heads, key_value_heads) is None
    ]
    if size in sizes:
        return None
    problem = split_problem(size, heads, key_value_heads)
    if problem is None:
        problem = f"it does not divide the learner's {num_ranks} ranks"
    choices = " or ".join(map(str, sizes))
    return (
        f"training.sequence_parallel = {size}: {problem}; choose {choices}, or give the learner "
        "other GPUs"
    )


def split_problems(placement: Placement, heads: int, key_value_heads: int) -> Iterator[str]:
    """Yield each engine whose GPUs cannot split the heads, with the reason and the remedy."""
    sizes = range(1, GPUS_PER_NODE + 1)
    choices = [str(size) for size in sizes if not split_problem(size, heads, key_value_heads)]
    for engine in placement.rollouts:
        problem = split_problem(max(1, len(engine.gpus)), heads, key_value_heads)
        if problem is not None:
            number = " or ".join(choices)
            yield f"{engine}: {problem}; in WEIR_GPUS write rollout= with {number} GPUs"


# From the published config.json: hidden, layers, heads, key-value heads, head size, intermediate,
# vocabulary, positions.
_QWEN25 = partial(ModelShape, attention_bias=True)
_QWEN25_7B = _QWEN25(3584, 28, 28, 4, 128, 18944, 152064, 131072)
_QWEN3_4B = ModelShape(2560, 36, 32, 8, 128, 9728, 151936, 32768, tied=True, query_key_norm=True)
BUILT_IN: Mapping[str, ModelShape] = {
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN25(896, 24, 14, 2, 64, 4864, 151936, 32768, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _QWEN25(1536, 28, 12, 2, 128, 8960, 151936, 32768, tied=True),
    "Qwen/Qwen2.5-3B": _QWEN25(2048, 36, 16, 2, 128, 11008, 151936, 32768, tied=True),
    "Qwen/Qwen2.5-7B": _QWEN25_7B,
    "Qwen/Qwen2.5-14B": _QWEN25(5120, 48, 40, 8, 128, 13824, 152064, 131072),
    "Qwen/Qwen2.5-32B": _QWEN25(5120, 64, 40, 8, 128, 27648, 152064, 131072),
    "Qwen/Qwen2.5-Math-7B": replace(_QWEN25_7B, max_positions=4096),
    "Qwen/Qwen3-4B-Base": _QWEN3_4B,
    "Qwen/Qwen3-4B-Instruct-2507": replace(_QWEN3_4B, max_positions=262144),
    "deepseek-ai/deepseek-math-7b-instruct": ModelShape(4096, 30, 32, 32, 128, 11008, 102400, 4096),
}
