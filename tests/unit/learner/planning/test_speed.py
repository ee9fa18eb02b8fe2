"""Seconds of a step by arithmetic, held against sums done by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from protocol.recipe import Recipe

from deploy.placement import parse
from services.learner.planning.footprint import BUILT_IN, Item, RolloutFootprint
from services.learner.planning.machine import GIB, KINDS
from services.learner.planning.plan import seconds_of
from tests.builders import a_recipe
from tests.unit.learner.planning.test_plan import MACHINE

SEVEN = BUILT_IN["Qwen/Qwen2.5-7B"]  # 7,615,616,512 parameters, 28 layers, 28 heads of 128
HEAD = 152064 * 3584
BODY = 7_615_616_512 - HEAD  # what a token is multiplied by: layers and head, not the embedding
H100_FLOPS, H100_BANDWIDTH = 989e12 * 0.4, 3.35e12 * 0.6


def recipe(**changes: Any) -> Recipe:
    """128 responses of 1,024 tokens in the mean, of at most 2,048, behind prompts of 256."""
    tables: dict[str, Any] = {
        "model": {"dtype": "bfloat16", "max_context": 3072},
        "rollout": {"group_size": 8, "sampling": {"max_tokens": 2048}},
        "training": {"groups_per_step": 16, "max_staleness": 0},
    }
    for table, values in changes.items():
        tables[table] = tables.get(table, {}) | values
    return a_recipe(**tables)


def seconds(
    given: Recipe, *, engines: int = 1, room: int = 58 * GIB, ranks: int = 1, **machine: Any
) -> dict[str, float]:
    """Of each part of a step, of the step and of the run: on H100s, by engines of one GPU."""
    critic = SEVEN if given.critic is not None else None
    line = " ".join(f"rollout={ranks + n}@0.4" for n in range(engines))
    line = f"learner=0-{ranks - 1} {line or 'rollout=0@0.4'}"
    at = replace(MACHINE, placement=parse(line), **machine)
    nothing = Item("", 0, "")
    rollout = RolloutFootprint(nothing, nothing, room, 57_344, 0, 0)
    return {span.what: span.seconds for span in seconds_of(given, SEVEN, critic, at, rollout)}


def test_decoding_reads_the_weights_once_a_round_and_each_tokens_cache() -> None:
    # All 128 are sampled at once; the longest goes on to 2,048 tokens.
    weights = 2048 * 2 * 7_615_616_512
    cache = 128 * 1024 * (256 + 512) * 57_344
    prompts = 16 * 256 * (2 * BODY + 2 * 256 * 3584 * 28) / H100_FLOPS
    expected = prompts + (weights + cache) / H100_BANDWIDTH
    assert seconds(recipe())["sampling"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"engine_sequences": 32}, id="sequences"),
        pytest.param({"room": 32 * 1280 * 57_344}, id="room for keys and values"),
    ],
)
def test_faster_responses_at_once_take_more_rounds(limit: dict[str, Any]) -> None:
    free, limited = (seconds(recipe(), **each)["sampling"] for each in ({}, limit))
    rounds = 128 * 1024 // 32  # instead of 2,048
    assert limited - free == pytest.approx((rounds - 2048) * 2 * 7_615_616_512 / H100_BANDWIDTH)


FORWARD = 128 * 1280 * (2 * BODY + 2 * 1280 * 3584 * 28) / H100_FLOPS
TWICE = {"updates_per_batch": 2, "groups_per_step": 16, "max_staleness": 0}


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, 3),
        ({"training": {"recompute_activations": True}}, 4),
        ({"algorithm": {"old_logprobs": "recompute"}, "training": TWICE}, 4),
        ({"algorithm": {"divergence_weight": 0.04}}, 4),
    ],
)
def test_training_makes_the_passes_that_the_recipe_asks_for(
    changes: dict[str, Any], passes: int
) -> None:
    assert seconds(recipe(**changes), ranks=2)["training"] == pytest.approx(passes * FORWARD / 2)


def test_a_critic_gives_values_and_learns() -> None:
    found = seconds(recipe(algorithm={"advantage": "gae"}, critic={"pretrain_steps": 1}))
    head = 128 * 1280 * 2 * 152064 * 3584 / H100_FLOPS  # of the policy alone
    assert found["training"] == pytest.approx((3 + 4) * FORWARD - 4 * head)


def test_an_offloaded_optimizer_moves_gradients_and_weights_and_steps_on_cores() -> None:
    """Of 163,840 tokens an update there are ten micro-batches of 16,384, on two ranks five each."""
    offload = {"zero_stage": 3, "offload": "optimizer"}
    found = seconds(recipe(optimizer=offload), ranks=2)
    share = 7_615_616_512 / 2
    # The sum of the gradients, 4 bytes, comes and goes with each; then it and the weights move.
    expected = (5 * 8 + 8) * share / 2e10 + share / 1.6e9
    assert "offloading" not in seconds(recipe())
    assert found["offloading"] == pytest.approx(expected)


def test_an_adapter_learns_in_two_passes_and_is_all_that_is_published() -> None:
    found = seconds(recipe(model={"lora": {"rank": 16}}))
    assert found["training"] == pytest.approx(2 * FORWARD)
    assert found["loading"] == pytest.approx(2 * 40_370_176 / 4.3e9)


def test_sampling_and_training_overlap_where_samples_may_be_stale() -> None:
    def parts(found: dict[str, float]) -> float:
        return sum(found.values()) - found["a step"] - found["the run"]

    on_policy, stale = seconds(recipe()), recipe(training={"max_staleness": 1})
    assert on_policy["a step"] == pytest.approx(parts(on_policy))
    slow = seconds(stale, engine_sequences=8)
    assert slow["a step"] == pytest.approx(slow["sampling"] + slow["loading"])
    fast = seconds(stale, engines=2)
    assert fast["a step"] == pytest.approx(fast["training"] + fast["publishing"])
    shared = seconds(stale, engines=0)
    assert shared["a step"] == pytest.approx(parts(shared))


def test_a_run_is_all_steps_those_of_the_critic_alone_included() -> None:
    run = recipe(
        training={"steps": 300}, algorithm={"advantage": "gae"}, critic={"pretrain_steps": 50}
    )
    found = seconds(run)
    assert found["the run"] == pytest.approx(350 * found["a step"])


def test_a_gpu_is_of_the_kind_whose_memory_comes_nearest() -> None:
    for gib, name in ((12, "RTX 4090"), (48, "A100 SXM 40"), (79.6, "H100 SXM"), (139, "H200")):
        assert replace(MACHINE, gpu_bytes=int(gib * GIB)).kind.name == name
    assert replace(MACHINE, gpu_bytes=192 * GIB).kind is KINDS[-1]
