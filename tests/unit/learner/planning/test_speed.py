"""Seconds of a step by arithmetic, held against sums done by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from protocol.recipe import Recipe

from deploy.placement import parse
from services.learner.planning.footprint import Item, RolloutFootprint
from services.learner.planning.machine import GIB
from services.learner.planning.shape import BUILT_IN
from services.learner.planning.speed import KINDS, StepSeconds, kind_of, step_seconds
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


ROOM = {"room": 58 * GIB, "bytes_per_token": 57_344}


def seconds(
    given: Recipe,
    engine: Mapping[str, int] = MappingProxyType({}),
    *,
    apart: bool = True,
    learner_gpus: int = 1,
) -> StepSeconds:
    """On H100s, by engines of one GPU that ``engine`` describes."""
    critic = SEVEN if given.critic is not None else None
    first = learner_gpus if apart else 0
    engines = " ".join(f"rollout={first + n}@0.4" for n in range(engine.get("num_engines", 1)))
    machine = replace(
        MACHINE,
        placement=parse(f"learner=0-{learner_gpus - 1} {engines}"),
        engine_sequences=engine.get("max_sequences", 256),
    )
    nothing = Item("", 0, "")
    room, per_token = (engine.get(name, usual) for name, usual in ROOM.items())
    rollout = RolloutFootprint(nothing, nothing, room, per_token, 0, 0)
    found = step_seconds(given, SEVEN, critic, machine, rollout)
    assert found is not None
    return found


def parts(found: StepSeconds) -> dict[str, float]:
    return {part.what: part.seconds for part in found.parts}


def test_decoding_reads_the_weights_once_a_round_and_each_tokens_cache() -> None:
    # All 128 are sampled at once; the longest goes on to 2,048 tokens.
    weights = 2048 * 2 * 7_615_616_512
    cache = 128 * 1024 * (256 + 512) * 57_344
    prompts = 16 * 256 * (2 * BODY + 2 * 256 * 3584 * 28) / H100_FLOPS
    expected = prompts + (weights + cache) / H100_BANDWIDTH
    assert parts(seconds(recipe()))["sampling"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"max_sequences": 32}, id="sequences"),
        pytest.param({"room": 32 * 1280 * 57_344}, id="room for keys and values"),
    ],
)
def test_faster_responses_at_once_take_more_rounds(limit: dict[str, int]) -> None:
    free, limited = (parts(seconds(recipe(), each))["sampling"] for each in ({}, limit))
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
    found = seconds(recipe(**changes), learner_gpus=2)
    assert parts(found)["training"] == pytest.approx(passes * FORWARD / 2)


def test_a_critic_gives_values_and_learns() -> None:
    found = seconds(recipe(algorithm={"advantage": "gae"}, critic={"pretrain_steps": 1}))
    head = 128 * 1280 * 2 * 152064 * 3584 / H100_FLOPS  # of the policy alone
    assert parts(found)["training"] == pytest.approx((3 + 4) * FORWARD - 4 * head)


def test_an_offloaded_optimizer_moves_gradients_and_weights_and_steps_on_cores() -> None:
    """Of 163,840 tokens an update there are ten micro-batches of 16,384, on two ranks five each."""
    offload = {"zero_stage": 3, "offload": "optimizer"}
    found = seconds(recipe(optimizer=offload), learner_gpus=2)
    share = 7_615_616_512 / 2
    # The sum of the gradients, 4 bytes, comes and goes with each; then it and the weights move.
    expected = (5 * 8 + 8) * share / 2e10 + share / 1.6e9
    assert "offloading" not in parts(seconds(recipe()))
    assert parts(found)["offloading"] == pytest.approx(expected)
    assert found.total.seconds == pytest.approx(sum(parts(found).values()))


def test_ranks_that_share_samples_exchange_what_attention_takes_and_gives() -> None:
    found = seconds(recipe(training={"sequence_parallel": 4, "max_staleness": 1}), learner_gpus=8)
    width = 2 * (3584 + 512)  # queries and outputs, keys and values; forward and backward
    sent = 128 * 1280 * 28 * 2 * width * 2 / 8
    assert parts(found)["exchanging"] == pytest.approx(sent * 3 / 4 / (0.6 * 4.5e11))
    alone = seconds(recipe(training={"max_staleness": 1}), learner_gpus=8)
    assert parts(found)["training"] == parts(alone)["training"]
    assert "exchanging" not in parts(alone)
    assert "exchanging" in found.total.formula


def test_an_adapter_learns_in_two_passes_and_is_all_that_is_published() -> None:
    found = parts(seconds(recipe(model={"lora": {"rank": 16}})))
    assert found["training"] == pytest.approx(2 * FORWARD)
    assert found["loading"] == pytest.approx(2 * 40_370_176 / 4.3e9)


def test_sampling_and_training_overlap_where_samples_may_be_stale() -> None:
    on_policy = seconds(recipe())
    assert on_policy.total.seconds == pytest.approx(sum(parts(on_policy).values()))
    stale = recipe(training={"max_staleness": 1})
    slow = seconds(stale, {"max_sequences": 8})
    assert slow.total.seconds == pytest.approx(parts(slow)["sampling"] + parts(slow)["loading"])
    fast = seconds(stale, {"num_engines": 2})
    assert fast.total.seconds == pytest.approx(parts(fast)["training"] + parts(fast)["publishing"])
    shared = seconds(stale, apart=False)
    assert shared.total.seconds == pytest.approx(sum(parts(shared).values()))


def test_a_gpu_is_of_the_kind_whose_memory_comes_nearest() -> None:
    for gib, name in ((12, "RTX 4090"), (48, "A100 SXM 40"), (79.6, "H100 SXM"), (139, "H200")):
        assert kind_of(int(gib * GIB)).name == name
    assert kind_of(192 * GIB) is KINDS[-1]
