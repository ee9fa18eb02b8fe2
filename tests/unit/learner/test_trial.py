"""A model that cannot be trained exactly is refused, by name and in seconds."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from protocol.placement import PlacementError, parse
from protocol.recipe import Lora
from safetensors.numpy import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from services.chassis.renderer import Vocabulary
from services.learner.training.model_check import (
    UnsupportedModel,
    check_split,
    check_targets,
    check_vocabulary,
)
from services.learner.training.trial import try_models
from tests.architecture.project import ROOT

BASE_MODEL = ROOT / "examples/arithmetic/base-model"
Changed = Callable[..., Path]


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """The demo's model with another config."""

    def change_config(**settings: Any) -> Path:
        folder = shutil.copytree(BASE_MODEL, tmp_path / "changed", dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | settings))
        return folder

    return change_config


@pytest.fixture
def make_model(tmp_path: Path) -> Changed:
    """A random model of another type, with the files of the demo's."""

    def save_model(name: str, **settings: Any) -> Path:
        small = {
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "pad_token_id": 0,
        }
        model = AutoModelForCausalLM.from_config(
            cast(Any, CONFIG_MAPPING[name])(**(small | settings))
        )
        folder = shutil.copytree(BASE_MODEL, tmp_path / name, dirs_exist_ok=True)
        model.save_pretrained(folder)
        return folder

    return save_model


@pytest.mark.parametrize(
    ("model_type", "settings", "problem"),
    [
        ("gemma2", {"attn_logit_softcapping": None}, "more than the head's product"),
        ("cohere", {}, "more than the head's product"),
        ("granite", {"logits_scaling": 8.0}, "more than the head's product"),
        ("gpt_oss", {"num_local_experts": 4}, "needs s_aux"),
        ("gemma2", {}, "needs softcap"),
        ("bloom", {"n_head": 2}, "attention of its own"),
        ("bert", {}, "not causal within a sample"),
        ("mistral", {"sliding_window": 95}, "sliding_window = 95"),
    ],
)
def test_what_training_would_compute_otherwise_is_refused(
    make_model: Changed, model_type: str, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UnsupportedModel, match=rf"model\.path: .*{problem}"):
        try_models(make_model(model_type, **settings), None, 96)


def test_a_model_with_tensors_that_are_not_trained_keeps_them(make_model: Changed) -> None:
    sizes = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    ranks = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    heads = {"head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1}
    folder = make_model("deepseek_v3", **sizes, **ranks, **heads)
    assert try_models(folder, None, 96) == []


def test_a_generation_config_that_transformers_reads_and_does_not_write_is_kept(
    changed: Changed,
) -> None:
    folder = changed()
    unwritable = {"do_sample": False, "temperature": 0.9, "top_p": 0.6}
    (folder / "generation_config.json").write_text(json.dumps(unwritable))
    assert try_models(folder, None, 96) == []


def test_a_folder_that_lacks_a_tensor_or_has_more_is_named(changed: Changed) -> None:
    folder = changed()
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors | {"mtp.weight": np.zeros(2, np.float32)}, weights, {"format": "pt"})
    (warning,) = try_models(folder, None, 96)
    assert "leaves out mtp.weight" in warning
    del tensors["model.norm.weight"]
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"model\.path: .* lack model\.norm\.weight"):
        try_models(folder, None, 96)


def test_code_of_a_folder_is_not_run_but_named(changed: Changed) -> None:
    folder = changed(model_type="theirs", auto_map={"AutoConfig": "theirs.Config"})
    (folder / "theirs.py").write_text("raise SystemExit")
    with pytest.raises(UnsupportedModel, match=r"config\.json .*never run"):
        try_models(folder, None, 96)


def test_a_quantized_policy_is_refused(changed: Changed) -> None:
    with pytest.raises(UnsupportedModel, match=r"model\.path: .* quantization_config"):
        try_models(changed(quantization_config={"quant_method": "fp8"}), None, 96)


THREE = ["full_attention"] * 3
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rope_parameters": DYNAMIC, "max_position_embeddings": 95}, "rope_type"),
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
    with pytest.raises(UnsupportedModel, match=rf"model\.path: .*{problem}"):
        try_models(changed(**settings), None, 96)
    with pytest.raises(UnsupportedModel, match=rf"critic\.path: .*{problem}"):
        try_models(BASE_MODEL, changed(**settings), 96)


def test_a_window_as_long_as_the_context_cuts_nothing_off(make_model: Changed) -> None:
    assert try_models(make_model("mistral", sliding_window=96), None, 96) == []


def test_a_context_that_a_model_cannot_read_is_refused(changed: Changed) -> None:
    with pytest.raises(UnsupportedModel, match=r"model\.path: .* model\.max_context = 257"):
        try_models(BASE_MODEL, None, 257)
    longer = changed(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0})
    try_models(longer, None, 512)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* model\.max_context = 257"):
        try_models(longer, BASE_MODEL, 257)


def test_more_layers_than_the_weights_have_are_refused_before_they_are_made(
    changed: Changed,
) -> None:
    folder = changed(num_hidden_layers=10**12)
    with pytest.raises(UnsupportedModel, match=r"model\.path: .* num_hidden_layers = 10+,"):
        try_models(folder, None, 96)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* num_hidden_layers = 10+,"):
        try_models(BASE_MODEL, folder, 96)


def test_a_reward_model_may_be_the_critic_and_a_classifier_not(changed: Changed) -> None:
    def labelled(count: int) -> Path:
        names = {str(label): f"LABEL_{label}" for label in range(count)}
        return changed(architectures=["Qwen2ForSequenceClassification"], id2label=names)

    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* without score\.weight"):
        try_models(BASE_MODEL, labelled(1), 96)
    save_file({"score.weight": np.zeros((1, 64), np.float32)}, labelled(1) / "score.safetensors")
    try_models(BASE_MODEL, labelled(1), 96)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* 3 labels"):
        try_models(BASE_MODEL, labelled(3), 96)


def test_an_adapter_is_for_linear_layers_that_the_policy_has() -> None:
    check_targets(BASE_MODEL, None)
    check_targets(BASE_MODEL, Lora())
    check_targets(BASE_MODEL, Lora(targets=("q_proj", "down_proj")))
    for target in ("lm_head", "query"):  # the head's weight is used without the head
        with pytest.raises(UnsupportedModel, match=rf"model\.lora\.targets: .* {target};"):
            check_targets(BASE_MODEL, Lora(targets=("q_proj", target)))


def test_a_critic_must_read_what_the_policy_writes(changed: Changed) -> None:
    one_more = Vocabulary(digest="own", max_id=96, end_id=2)  # than rows, as Gemma 3
    check_vocabulary(BASE_MODEL, BASE_MODEL, one_more, one_more)
    vocabulary = one_more._replace(max_id=95)
    for rows in (96, 128):
        check_vocabulary(BASE_MODEL, changed(vocab_size=rows), vocabulary, vocabulary)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* 95 tokens"):
        check_vocabulary(BASE_MODEL, changed(vocab_size=95), vocabulary, vocabulary)
    with pytest.raises(UnsupportedModel, match=r"critic\.path: .* vocabulary"):
        check_vocabulary(BASE_MODEL, BASE_MODEL, vocabulary, vocabulary._replace(digest="other"))


def test_an_engine_that_the_heads_cannot_be_split_over_is_refused(changed: Changed) -> None:
    check_split(BASE_MODEL, None)  # of one GPU each, or on CPUs
    check_split(BASE_MODEL, parse("learner=0 rollout=1,2 rollout=3"))
    with pytest.raises(PlacementError, match=r"model\.path: .* rollout=1-3: .*WEIR_GPUS"):
        check_split(BASE_MODEL, parse("learner=0 rollout=1-3"))
    ungrouped = changed(num_attention_heads=6, num_key_value_heads=None)
    with pytest.raises(PlacementError, match="6 attention"):
        check_split(ungrouped, parse("learner=0 rollout=1-4"))
