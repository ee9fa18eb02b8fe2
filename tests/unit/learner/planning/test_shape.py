"""The shape of a model, and the parameters that follow from it, against real ones."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from services.learner.planning.shape import (
    BUILT_IN,
    DamagedConfig,
    UnknownModel,
    sequence_problem,
    shape_of_config,
)
from tests.architecture.project import ROOT

BASE_MODEL = ROOT / "examples/arithmetic/base-model"
CONFIG = json.loads((BASE_MODEL / "config.json").read_bytes())


def test_parameters_are_exactly_those_of_the_weights_file() -> None:
    with (BASE_MODEL / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    tensors = [prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"]
    shape = shape_of_config(CONFIG)
    assert shape.parameters == sum(tensors) == 604_288
    assert replace(shape, tied=False).parameters == shape.parameters + 96 * 128
    assert shape.critic_parameters == 604_288 + 128 + 1  # one output instead of a vocabulary


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("Qwen/Qwen2.5-3B", 3_085_938_688),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-14B", 14_770_033_664),
        ("Qwen/Qwen2.5-32B", 32_763_876_352),
        ("Qwen/Qwen2.5-Math-7B", 7_615_616_512),
        ("Qwen/Qwen3-4B-Base", 4_022_468_096),
        ("deepseek-ai/deepseek-math-7b-instruct", 6_910_365_696),
    ],
)
def test_parameters_of_the_built_in_table_are_the_published_ones(
    model: str, published: int
) -> None:
    assert BUILT_IN[model].parameters == published


@pytest.mark.parametrize("family", ["mamba", None, ["qwen2"]])
def test_a_family_without_known_arithmetic_is_refused(family: Any) -> None:
    with pytest.raises(UnknownModel, match="model_type"):
        shape_of_config({"model_type": family})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_attention_heads", 0),
        ("hidden_size", "128"),
        ("num_key_value_heads", 3),
        ("tie_word_embeddings", "no"),
    ],
)
def test_a_damaged_config_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(DamagedConfig, match=f"field {field} "):
        shape_of_config(CONFIG | {field: value})


def test_a_config_that_is_no_object_or_needs_a_head_size_is_damaged() -> None:
    with pytest.raises(DamagedConfig, match="object"):
        shape_of_config([])
    narrow = {"hidden_size": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    with pytest.raises(DamagedConfig, match="head_dim"):
        shape_of_config(CONFIG | narrow | {"head_dim": None})


@pytest.mark.parametrize(
    ("size", "heads", "num_ranks", "possible"),
    [(8, 32, 8, None), (4, 28, 6, "1 or 2"), (8, 28, 8, "1 or 2 or 4")],
)
def test_ranks_share_samples_where_heads_and_ranks_divide(
    size: int, heads: int, num_ranks: int, possible: str | None
) -> None:
    found = sequence_problem(size, heads, key_value_heads=4, num_ranks=num_ranks)
    if possible is None:
        assert found is None
    else:
        assert f"training.sequence_parallel = {size}" in str(found)
        assert f"choose {possible}," in str(found)
