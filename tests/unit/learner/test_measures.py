"""Metrics of a step, its FLOPs and memory, and the shares of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from protocol.recipe import Recipe
from safetensors.torch import load_file
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from services.learner.planning.footprint import (
    limit_micro_batches,
    longest_micro_batch,
    smaller_token_budget,
)
from services.learner.training import host_copies, shares
from services.learner.training.batching import (
    blank_sample,
    collate,
    largest_micro_batches,
    micro_batches,
)
from services.learner.training.flops import Flops, estimate_work
from services.learner.training.metrics import StepMetrics
from services.learner.training.samples import Sample
from services.learner.training.shares import Shape
from tests.architecture.project import ROOT
from tests.builders import a_recipe

MODEL = ROOT / "examples/arithmetic/base-model"
BFLOAT16 = a_recipe(model={"dtype": "bfloat16"})


@pytest.fixture(scope="module")
def lone_rank() -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo",
        store=HashStore(),
        rank=0,
        world_size=1,
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def metrics(lone_rank: None) -> StepMetrics:
    return StepMetrics(torch.device("cpu"))


def test_means_shares_counts_and_maxima_are_of_the_whole_step(metrics: StepMetrics) -> None:
    metrics.note_mean(
        entropy=torch.tensor([1.0, 2.0, 3.0]),
        clipped=torch.tensor([1.0, 0.0, 0.0]),
    )
    metrics.note_mean(
        entropy=torch.tensor([6.0]),
        clipped=torch.tensor([0.0]),
    )
    metrics.note_mean(nothing=torch.tensor([]))
    for share in (0.25, 0.5, 1.25):
        metrics.note_share(loss=torch.tensor(share, requires_grad=True))
    for norm in (1.0, 2.0, None):
        metrics.note_update(grad_norm=norm)
    for number, gaps in ((3, [0.5, 2.0]), (4, [])):
        metrics.note_count(parity_tokens=number)
        metrics.note_maximum(gap=torch.tensor(gaps))
    assert metrics.reduced(num_updates=2) == {
        "entropy": 3.0,
        "clipped": 0.25,
        "loss": 1.0,
        "grad_norm": 1.5,
        "parity_tokens": 7.0,
        "gap": 2.0,
    }


class OneDevice(TorchDispatchMode):
    """No operation has tensors of two devices, as a copy between them has."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, result))
        devices = {leaf.device for leaf in leaves if isinstance(leaf, Tensor)}
        assert len(devices) <= 1, func
        return result


def test_notes_of_a_micro_batch_copy_nothing_between_host_and_device() -> None:
    """A tensor without data has no value to wait for."""
    metrics = StepMetrics(torch.device("meta"), num_tokens=6)
    values = torch.ones(3, device="meta")
    places = torch.arange(3, device="meta")
    with OneDevice():
        for _ in range(2):
            metrics.note_mean(2.5, entropy=values)
            metrics.note_count(parity_tokens=3)
            metrics.note_share(loss=values.sum())
            metrics.note_maximum(gap=values)
            metrics.note_explained(values, values)
            metrics.note_missing([replace(blank_sample(3, 2), first_token=4)])
            metrics.note_tokens(places, logprobs=values)
    assert {total.device.type for total in metrics._counts.values()} == {"cpu"}


def test_explained_variance_is_that_of_the_whole_step_if_it_is_defined(
    metrics: StepMetrics,
) -> None:
    metrics.note_explained(torch.ones(3), torch.zeros(3))
    assert metrics.reduced(1) == {}
    returns = torch.tensor([0.0, 1.0, 0.0, 1.0])
    values = torch.tensor([0.0, 1.0, 0.5, 0.5])
    metrics = StepMetrics(torch.device("cpu"))
    for part in (slice(0, 1), slice(1, 4)):
        metrics.note_explained(returns[part], values[part])
    assert metrics.reduced(1) == {"explained_variance": pytest.approx(0.5)}


def test_flops_are_six_per_parameter_and_token_and_those_of_attention(tmp_path: Path) -> None:
    flops = Flops.from_models(BFLOAT16, MODEL, None, 2, "NVIDIA H200")
    assert flops.policy is not None
    rates = flops.of([10, 30], 2.0)
    linear = 6 * flops.policy.body_parameters * 40
    attention = 6 * flops.policy.query_width * flops.policy.layers * (10**2 + 30**2)
    assert rates["flops_per_second"] == pytest.approx((linear + attention) / 2.0 / 2)
    assert rates["mfu"] == pytest.approx(rates["flops_per_second"] / 989e12)
    for recipe, device in (
        (a_recipe(), "NVIDIA H200"),
        (BFLOAT16, ""),
    ):
        assert "mfu" not in Flops.from_models(recipe, MODEL, None, 1, device).of([8], 1.0)
    assert Flops.from_models(BFLOAT16, tmp_path, None, 1, "").of([8], 1.0) == {}
    assert flops.of([], 0.0) == {}
    assert estimate_work(tmp_path, None)(8) == 8  # tokens
    assert estimate_work(MODEL, None)(80) > 10 * estimate_work(MODEL, None)(8)  # attention


def test_a_critic_adds_work_and_an_adapter_saves_a_pass() -> None:
    def rate(recipe: Recipe, critic: Path | None = None) -> float:
        return Flops.from_models(recipe, MODEL, critic, 1, "").of(
            [8],
            1.0,
        )["flops_per_second"]

    adapter = a_recipe(model={"dtype": "bfloat16", "lora": {"rank": 8}})
    assert rate(BFLOAT16) < rate(BFLOAT16, MODEL) < 2 * rate(BFLOAT16)
    assert 3 * rate(adapter) == 2 * rate(BFLOAT16)


def length(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.token_ids)


def batch_recipe(micro_batch_tokens: int, **training: int) -> Recipe:
    return a_recipe(
        model={"max_context": 100},
        rollout={"sampling": {"max_tokens": 80}},
        training={
            "groups_per_step": 8,
            "micro_batch_tokens": micro_batch_tokens,
            **training,
        },
    )


@pytest.mark.parametrize(
    ("recipe", "tokens"),
    [
        (batch_recipe(450), 450),
        (batch_recipe(401), 400),  # no room for a prompt and a response
        (batch_recipe(50), 100),  # a sample that is longer than the budget
        (batch_recipe(10**6, updates_per_batch=2), 800),  # a whole mini-batch, on each rank
    ],
)
def test_every_rank_gets_the_largest_micro_batch_once(recipe: Recipe, tokens: int) -> None:
    for num_ranks in (1, 3):
        samples = largest_micro_batches(recipe, num_ranks)
        parts = micro_batches(
            samples,
            recipe.training.micro_batch_tokens,
            num_ranks,
        )
        sizes = [sum(map(length, part)) for part in parts]
        assert [max(sizes[rank::num_ranks]) for rank in range(num_ranks)] == [tokens] * num_ranks
        assert sum(sizes) == tokens * num_ranks
        assert all(len(collate(part).input_ids) == sum(map(length, part)) for part in parts)
        assert max(len(sample.token_ids) for sample in samples) == 80
        assert min(len(sample.prompt_ids) for sample in samples) >= 1


def test_a_token_budget_is_halved_down_to_a_sample_of_full_length() -> None:
    recipe = batch_recipe(450)
    budgets = list[int]()
    while len(budgets) < 9 and (tokens := smaller_token_budget(recipe)) is not None:
        budgets.append(tokens)
        recipe = limit_micro_batches(recipe, tokens)
    assert budgets == [225, 112, 100]
    assert smaller_token_budget(batch_recipe(10**6)) == 800  # limited by the mini-batch


def test_ranks_that_share_samples_share_the_largest_micro_batch() -> None:
    recipe = batch_recipe(150, sequence_parallel=2)
    assert longest_micro_batch(recipe) == 300
    samples = largest_micro_batches(recipe, num_ranks=4)  # of two pairs
    assert sum(map(length, samples)) == 2 * 300
    assert smaller_token_budget(recipe) == 75
    assert smaller_token_budget(batch_recipe(50, sequence_parallel=2)) is None


def test_files_of_weights_are_written_in_memory_and_read_by_name(tmp_path: Path) -> None:
    expected = {
        "odd": torch.randn(3).bfloat16(),
        "scalar": torch.randn(()),
        "matrix": torch.randn(2, 5),
    }
    shapes = {name: Shape(tensor.dtype, tensor.shape) for name, tensor in expected.items()}
    written = shares._map(tmp_path / "model.safetensors", shapes)
    for name, tensor in expected.items():
        written[name].copy_(tensor)
    stored = load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close(
        stored,
        expected,
        atol=0,
        rtol=0,
    )
    with pytest.raises(OSError, match=r"model\.safetensors"):  # no room in memory
        shares._map(
            tmp_path / "model.safetensors",
            {"w": Shape(torch.float32, (2**60,))},
        )


def test_states_are_copied_to_host_memory_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        host_copies,
        "_free_bytes",
        lambda: 100,
    )  # room for two copies of 40 bytes
    weights = torch.zeros(10)
    written = list[tuple[str, float]]()
    copies = host_copies.HostCopies()
    save = copies.capture(lambda state, path: written.append((path, state["w"].sum().item())))
    for path in ("one", "two", "no room"):
        save({"w": weights}, path)
    weights += 1
    assert written == [("no room", 0.0)]
    copies.write()
    assert written[1:] == [("one", 0.0), ("two", 0.0)]


def test_a_snapshot_replaces_the_weights_until_its_block_ends() -> None:
    weights = torch.zeros(3)
    snapshot = host_copies.WeightSnapshot(lambda: [weights])
    snapshot.take()
    weights += 1
    with suppress(KeyError), snapshot.swapped_in():
        assert weights.tolist() == [0, 0, 0]
        raise KeyError
    assert weights.tolist() == [1, 1, 1]
