"""Model FLOPs follow from the shape of the models and the lengths of what they learn from."""

from pathlib import Path

import pytest

from services.learner.planning.speed import peak_flops
from services.learner.training.flops import Flops, work_of
from tests.architecture.project import ROOT
from tests.builders import a_recipe

MODEL = ROOT / "examples/arithmetic/base-model"
BFLOAT16 = a_recipe(model={"dtype": "bfloat16"})


def test_long_sequences_take_six_flops_per_parameter_and_token_and_their_attention() -> None:
    flops = Flops.of_models(BFLOAT16, MODEL, None, 2, "NVIDIA H200")
    assert flops.policy is not None
    told = flops.of([10, 30], 2.0)
    linear = 6 * flops.policy.body_parameters * 40
    attention = 6 * flops.policy.query_width * flops.policy.layers * (10**2 + 30**2)
    assert told["flops_per_second"] == pytest.approx((linear + attention) / 2.0 / 2)
    assert told["mfu"] == pytest.approx(told["flops_per_second"] / 989e12)


def test_the_share_of_the_peak_is_told_only_where_that_is_known() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3") == peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") is None
    for recipe, device in ((a_recipe(), "NVIDIA H200"), (BFLOAT16, "")):
        assert set(Flops.of_models(recipe, MODEL, None, 1, device).of([8], 1.0)) == {
            "flops_per_second"
        }


def test_a_critic_learns_too_and_a_model_of_unknown_shape_tells_nothing(tmp_path: Path) -> None:
    alone = Flops.of_models(BFLOAT16, MODEL, None, 1, "").of([8], 1.0)["flops_per_second"]
    both = Flops.of_models(BFLOAT16, MODEL, MODEL, 1, "").of([8], 1.0)["flops_per_second"]
    assert alone < both < 2 * alone
    assert Flops.of_models(BFLOAT16, tmp_path, None, 1, "").of([8], 1.0) == {}
    assert Flops.of_models(BFLOAT16, MODEL, None, 1, "").of([], 0.0) == {}


def test_an_adapter_learns_without_the_gradients_of_the_weights() -> None:
    adapter = a_recipe(model={"dtype": "bfloat16", "lora": {"rank": 8}})
    whole, part = (Flops.of_models(each, MODEL, None, 1, "") for each in (BFLOAT16, adapter))
    assert 3 * part.of([8], 1.0)["flops_per_second"] == 2 * whole.of([8], 1.0)["flops_per_second"]


def test_the_work_of_a_sample_is_its_flops_or_its_tokens(tmp_path: Path) -> None:
    assert work_of(tmp_path, None)(8) == 8
    alone, both = work_of(MODEL, None), work_of(MODEL, MODEL)
    assert alone(80) > 10 * alone(8)  # attention
    assert both(8) > alone(8)
