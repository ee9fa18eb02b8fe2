"""What an offload and an adapter leave on a GPU, and what they take of the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from protocol.recipe import Recipe

from services.learner.planning.footprint import Item, learner_footprint, total
from services.learner.planning.machine import GIB
from services.learner.planning.shape import BUILT_IN
from tests.builders import a_recipe
from tests.unit.learner.planning.test_footprint import SMALL, named, parts

SEVEN = BUILT_IN["Qwen/Qwen2.5-7B"]  # 7,615,616,512 parameters
LOADED = 2 * 7_615_616_512


def offloading(offload: str, stage: int = 3, **training: Any) -> Recipe:
    optimizer = {"zero_stage": stage, "offload": offload}
    return a_recipe(model={"dtype": "bfloat16"}, optimizer=optimizer, training=training)


@pytest.mark.parametrize(
    ("stage", "offload", "measured"),
    [(1, "optimizer", 32), (2, "optimizer", 32), (3, "optimizer", 30), (3, "all", 30)],
)
def test_an_offload_takes_what_deepspeed_was_measured_to_take(
    stage: int, offload: str, measured: int
) -> None:
    """Bytes per parameter of bfloat16 on GPU and host together, at the fullest moment.

    Measured as without an offload. Left out: up to 0.75 for the layers in work, gloo's copy at
    stage 3, and what torch rounds up when it pins memory, which a power of two does not show.
    """
    shape = replace(SMALL, layers=0, vocabulary=2**17 - 1, tied=True)
    assert shape.parameters == 2**20
    footprint = learner_footprint(offloading(offload, stage), shape, None, 1)
    whole, published, *host = footprint.host
    assert (whole.bytes, published.bytes) == (2 * 2**20, 6 * 2**20)
    of_samples = {"activations", "log-probs of a chunk"}
    used: list[Item] = [item for item in footprint.backward if named(item) not in of_samples]
    gathered = 2 * 2**20 if stage == 3 else 0  # of a large model only a part at a time
    assert total([*host, *footprint.held, *used]) - gathered == measured * 2**20


def test_pinned_memory_is_in_blocks_of_a_power_of_two() -> None:
    """torch 2.13 was measured to take 4 GiB for 2.25 (DeepSpeed pins by torch)."""
    footprint = learner_footprint(offloading("optimizer"), SEVEN, None, 5)
    on_node = learner_footprint(offloading("optimizer"), SEVEN, None, 5, 2)  # of the 5 ranks
    assert 5 * (on_node.host_bytes - 4 * LOADED) == 2 * (footprint.host_bytes - 4 * LOADED)
    by_name = {named(item): item for item in footprint.host}
    assert by_name["sum of gradients"].bytes == 5 * 8 * GIB  # of 5.67 each
    assert by_name["Adam's moments"].bytes == pytest.approx(8 * 7_615_616_512, abs=5)


def test_an_adapter_is_all_that_learns() -> None:
    recipe = a_recipe(
        model={"dtype": "bfloat16", "lora": {"rank": 16}},
        optimizer={"zero_stage": 2},
        algorithm={"divergence_weight": 0.04},
    )
    held = parts(learner_footprint(recipe, SEVEN, None, 1))
    learned = SEVEN.adapter_parameters(16)
    assert learned == 40_370_176  # as peft counts for all linear layers of this model
    assert held["policy: weights"] == 2 * (SEVEN.parameters + learned)
    assert held["policy: Adam's moments"] == 8 * learned
    assert held["policy: gradients"] == 4 * learned
    assert "reference: weights" not in held  # it is the base, with the adapter off
    queries = a_recipe(model={"lora": {"rank": 16, "targets": ["q_proj"]}})
    some = parts(learner_footprint(queries, SEVEN, None, 1))
    assert some["policy: Adam's moments"] == 8 * 28 * 16 * (3584 + 3584)


def test_what_an_evaluation_measures_stays_while_training_goes_on() -> None:
    evaluated = {"tasks": {"held_out": "held_out.jsonl"}, "evaluation": {"samples": 1}}
    plain = learner_footprint(offloading("none"), SEVEN, None, 8).host
    assert [item.bytes for item in plain] == [LOADED, 3 * LOADED]
    for stage, copies in ((1, 8), (3, 1)):  # the ranks have all of the weights, or their part
        recipe = a_recipe(model={"dtype": "bfloat16"}, optimizer={"zero_stage": stage}, **evaluated)
        _, published, measured = learner_footprint(recipe, SEVEN, None, 8).host
        assert (published.bytes, measured.bytes) == (4 * LOADED, copies * LOADED)
