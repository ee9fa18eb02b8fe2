"""A model that cannot be trained exactly is refused before any rank loads it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol.recipe import Lora
from safetensors.numpy import save_file

from deploy.placement import PlacementError, parse
from services.learner.training.model_check import (
    UnsupportedModel,
    check_models,
    check_split,
    check_targets,
)
from tests.architecture.project import ROOT

BASE_MODEL = ROOT / "examples/arithmetic/base-model"
Changed = Callable[..., Path]


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    def with_settings(**settings: Any) -> Path:
        folder = shutil.copytree(BASE_MODEL, tmp_path / "changed", dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | settings))
        return folder

    return with_settings


def test_the_demos_model_may_be_policy_and_critic() -> None:
    check_models(BASE_MODEL, None, 96)
    check_models(BASE_MODEL, BASE_MODEL, 256)


def test_an_adapter_is_for_linear_layers_that_the_policy_has() -> None:
    check_targets(BASE_MODEL, None)
    check_targets(BASE_MODEL, Lora())
    check_targets(BASE_MODEL, Lora(targets=("q_proj", "down_proj")))
    for target in ("lm_head", "query"):  # the head's weight is used without the head
        with pytest.raises(UnsupportedModel, match=rf"model\.lora\.targets: .* {target};"):
            check_targets(BASE_MODEL, Lora(targets=("q_proj", target)))


@pytest.mark.parametrize("setting", ["final_logit_softcapping", "logit_scale", "logits_scaling"])
def test_logits_that_are_more_than_a_product_are_refused(changed: Changed, setting: str) -> None:
    check_models(changed(**{setting: 1}), None, 96)
    with pytest.raises(UnsupportedModel, match=rf"model\.path: .* {setting} = 30"):
        check_models(changed(**{setting: 30.0}), None, 96)


def test_a_quantized_policy_is_refused(changed: Changed) -> None:
    with pytest.raises(UnsupportedModel, match=r"model\.path: .* quantization_config"):
        check_models(changed(quantization_config={"quant_method": "fp8"}), None, 96)


THREE = ["full_attention"] * 3
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"layer_types": [*THREE, "linear_attention"]}, "linear_attention"),
        ({"model_type": "bloom", "n_layer": 4, "n_head": 4}, "model_type"),
        ({"model_type": "recurrent_gemma", "attention_window_size": 4096}, "block_types"),
        ({"rope_parameters": DYNAMIC, "max_position_embeddings": 95}, "rope_type"),
        (
            {"model_type": "mistral", "sliding_window": 95, "layer_types": None},
            "sliding_window = 95",
        ),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 95,
                "layer_types": [*THREE, "sliding_attention"],
            },
            "sliding_window = 95",
        ),
    ],
)
def test_attention_that_does_not_see_the_whole_context_is_refused(
    changed: Changed, settings: dict[str, Any], problem: str
) -> None:
    folder = changed(**settings, final_logit_softcapping=None)  # which gemma2 has by default
    with pytest.raises(UnsupportedModel, match=rf"model\.path: .*{problem}"):
        check_models(folder, None, 96)
    with pytest.raises(UnsupportedModel, match=rf"critic\.path: .*{problem}"):
        check_models(BASE_MODEL, folder, 96)


def test_a_window_as_long_as_the_context_cuts_nothing_off(changed: Changed) -> None:
    check_models(changed(model_type="mistral", sliding_window=96, layer_types=None), None, 96)


def test_a_context_that_a_model_cannot_read_is_refused(changed: Changed) -> None:
    with pytest.raises(UnsupportedModel, match=r"model\.path: .* model\.max_context = 257"):
        check_models(BASE_MODEL, None, 257)
    longer = changed(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0})
    check_models(longer, None, 512)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* model\.max_context = 257"):
        check_models(longer, BASE_MODEL, 257)


def test_a_critic_must_read_what_the_policy_writes(changed: Changed) -> None:
    check_models(BASE_MODEL, changed(vocab_size=128), 96)  # rows that no token uses
    critic = changed(vocab_size=95)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* 95 tokens"):
        check_models(BASE_MODEL, critic, 96)
    tokenizer = (critic / "tokenizer.json").read_text()
    (critic / "tokenizer.json").write_text(tokenizer.replace('"%"', '"§"'))
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* vocabulary"):
        check_models(BASE_MODEL, critic, 96)


def test_a_reward_model_may_be_the_critic_and_a_classifier_not(changed: Changed) -> None:
    def labelled(count: int) -> Path:
        names = {str(label): f"LABEL_{label}" for label in range(count)}
        return changed(architectures=["Qwen2ForSequenceClassification"], id2label=names)

    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* without score\.weight"):
        check_models(BASE_MODEL, labelled(1), 96)
    save_file({"score.weight": np.zeros((1, 64), np.float32)}, labelled(1) / "score.safetensors")
    check_models(BASE_MODEL, labelled(1), 96)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* 3 labels"):
        check_models(BASE_MODEL, labelled(3), 96)


def test_an_engine_that_the_heads_cannot_be_split_over_is_refused(changed: Changed) -> None:
    check_split(BASE_MODEL, None)  # of one GPU each, or on CPUs
    check_split(BASE_MODEL, parse("learner=0 rollout=1,2 rollout=3"))
    with pytest.raises(PlacementError, match=r"model\.path: .* rollout=1-3: .*WEIR_GPUS"):
        check_split(BASE_MODEL, parse("learner=0 rollout=1-3"))
    ungrouped = changed(num_attention_heads=6, num_key_value_heads=None)
    with pytest.raises(PlacementError, match="6 attention"):
        check_split(ungrouped, parse("learner=0 rollout=1-4"))
