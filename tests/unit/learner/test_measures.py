"""What a step measures, what it costs in FLOPs and memory, and how weights are shared out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from protocol.recipe import Recipe
from safetensors.torch import load_file
from torch._C._distributed_c10d import HashStore

from services.learner.planning.footprint import (
    limit_micro_batches,
    longest_micro_batch,
    smaller_token_budget,
)
from services.learner.planning.machine import peak_flops
from services.learner.training import host_copies, shares
from services.learner.training.batching import (
    largest_micro_batches,
    micro_batches,
)
from services.learner.training.flops import Flops, estimate_work
from services.learner.training.metrics import StepMetrics
from services.learner.training.shares import Shape
from tests.architecture.project import ROOT
from tests.builders import a_recipe

MODEL = ROOT / "examples/arithmetic/base-model"
BFLOAT16 = a_recipe(model={"dtype": "bfloat16"})


@pytest.fixture(scope="module")
def lone_rank() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def metrics(lone_rank: None) -> StepMetrics:
    return StepMetrics(torch.device("cpu"))


def test_a_mean_counts_every_token_alike(metrics: StepMetrics) -> None:
    metrics.note_mean(
        entropy=torch.tensor([1.0, 2.0, 3.0]), clipped=torch.tensor([True, False, False])
    )
    metrics.note_mean(entropy=torch.tensor([6.0]), clipped=torch.tensor([False]))
    metrics.note_mean(of_nothing=torch.tensor([]))
    assert metrics.reduced(num_updates=2) == {"entropy": 3.0, "clipped": 0.25}


def test_shares_add_up_within_an_update_and_are_averaged_over_updates(metrics: StepMetrics) -> None:
    for share in (0.25, 0.5, 1.25):
        metrics.note_share(loss=torch.tensor(share, requires_grad=True))
    for norm in (1.0, 2.0, None):
        metrics.note_update(grad_norm=norm)
    assert metrics.reduced(num_updates=2) == {"loss": 1.0, "grad_norm": 1.5}


def test_counts_are_added_and_maxima_are_of_all(metrics: StepMetrics) -> None:
    for number, gaps in ((3, [0.5, 2.0]), (4, [])):
        metrics.note_count(parity_tokens=number)
        metrics.note_maximum(gap=torch.tensor(gaps))
    assert metrics.reduced(3) == {"parity_tokens": 7.0, "gap": 2.0}


def test_explained_variance_is_of_the_whole_step_and_absent_where_it_means_nothing(
    metrics: StepMetrics,
) -> None:
    returns, values = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 0.5, 0.5])
    for part in (slice(0, 1), slice(1, 4)):
        metrics.note_explained(returns[part], values[part])
    assert metrics.reduced(1) == {"explained_variance": pytest.approx(0.5)}
    constant = StepMetrics(torch.device("cpu"))
    constant.note_explained(torch.ones(3), torch.zeros(3))
    assert constant.reduced(1) == {}


def test_long_sequences_take_six_flops_per_parameter_and_token_and_their_attention() -> None:
    flops = Flops.from_models(BFLOAT16, MODEL, None, 2, "NVIDIA H200")
    assert flops.policy is not None
    told = flops.of([10, 30], 2.0)
    linear = 6 * flops.policy.body_parameters * 40
    attention = 6 * flops.policy.query_width * flops.policy.layers * (10**2 + 30**2)
    assert told["flops_per_second"] == pytest.approx((linear + attention) / 2.0 / 2)
    assert told["mfu"] == pytest.approx(told["flops_per_second"] / 989e12)
    assert peak_flops("NVIDIA H100 PCIe") is None
    for recipe, device in ((a_recipe(), "NVIDIA H200"), (BFLOAT16, "")):
        assert "mfu" not in Flops.from_models(recipe, MODEL, None, 1, device).of([8], 1.0)


def test_a_critic_learns_too_an_adapter_saves_a_pass_and_an_unknown_shape_tells_nothing(
    tmp_path: Path,
) -> None:
    def rate(recipe: Recipe, critic: Path | None = None) -> float:
        return Flops.from_models(recipe, MODEL, critic, 1, "").of([8], 1.0)["flops_per_second"]

    adapter = a_recipe(model={"dtype": "bfloat16", "lora": {"rank": 8}})
    assert rate(BFLOAT16) < rate(BFLOAT16, MODEL) < 2 * rate(BFLOAT16)
    assert 3 * rate(adapter) == 2 * rate(BFLOAT16)
    assert Flops.from_models(BFLOAT16, tmp_path, None, 1, "").of([8], 1.0) == {}
    assert Flops.from_models(BFLOAT16, MODEL, None, 1, "").of([], 0.0) == {}
    assert estimate_work(tmp_path, None)(8) == 8  # tokens
    assert estimate_work(MODEL, None)(80) > 10 * estimate_work(MODEL, None)(8)  # attention


def recipe_of(micro_batch_tokens: int, **training: int) -> Recipe:
    return a_recipe(
        model={"max_context": 100},
        rollout={"sampling": {"max_tokens": 80}},
        training={"groups_per_step": 8, "micro_batch_tokens": micro_batch_tokens, **training},
    )


@pytest.mark.parametrize(
    ("recipe", "tokens"),
    [
        (recipe_of(450), 450),
        (recipe_of(401), 400),  # no room for a prompt and a response
        (recipe_of(50), 100),  # a sample that is longer than the budget
        (recipe_of(10**6, updates_per_batch=2), 800),  # a whole mini-batch, on each rank
    ],
)
def test_every_rank_gets_the_largest_micro_batch_once(recipe: Recipe, tokens: int) -> None:
    for num_ranks in (1, 3):
        samples = largest_micro_batches(recipe, num_ranks)
        parts = micro_batches(samples, recipe.training.micro_batch_tokens, num_ranks)
        sizes = [sum(len(s.prompt_ids) + len(s.token_ids) for s in part) for part in parts]
        assert [max(sizes[rank::num_ranks]) for rank in range(num_ranks)] == [tokens] * num_ranks
        assert sum(sizes) == tokens * num_ranks
        assert max(len(sample.token_ids) for sample in samples) == 80
        assert min(len(sample.prompt_ids) for sample in samples) >= 1


def test_the_turns_of_an_episode_may_fill_its_context() -> None:
    recipe = a_recipe(
        model={"max_context": 100},
        rollout={"sampling": {"max_tokens": 8}},
        environment={"taskset": "sums"},
    )
    assert {len(sample.token_ids) for sample in largest_micro_batches(recipe, 1)} == {99}


def test_a_token_budget_is_halved_down_to_a_sample_of_full_length() -> None:
    recipe, budgets = recipe_of(450), list[int]()
    while len(budgets) < 9 and (tokens := smaller_token_budget(recipe)) is not None:
        budgets.append(tokens)
        recipe = limit_micro_batches(recipe, tokens)
    assert budgets == [225, 112, 100]
    assert smaller_token_budget(recipe_of(10**6)) == 800  # of what a step may have


def test_ranks_that_share_samples_share_the_largest_micro_batch() -> None:
    recipe = recipe_of(150, sequence_parallel=2)
    assert longest_micro_batch(recipe) == 300
    samples = largest_micro_batches(recipe, num_ranks=4)  # of two pairs
    assert sum(len(s.prompt_ids) + len(s.token_ids) for s in samples) == 2 * 300
    assert smaller_token_budget(recipe) == 75
    assert smaller_token_budget(recipe_of(50, sequence_parallel=2)) is None


def test_files_of_weights_are_written_in_memory_and_read_by_name(tmp_path: Path) -> None:
    shapes = {
        "odd": Shape(torch.bfloat16, (3,)),
        "scalar": Shape(torch.float32, ()),
        "matrix": Shape(torch.float32, (2, 5)),
    }
    own = shares._map(tmp_path / "model.safetensors", shapes)
    expected = {name: torch.randn(s.dimensions).to(s.dtype) for name, s in shapes.items()}
    for name, tensor in expected.items():
        own[name].copy_(tensor)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(OSError, match=r"model\.safetensors"):  # no room in memory
        shares._map(tmp_path / "model.safetensors", {"w": Shape(torch.float32, (2**60,))})


def test_every_tensor_is_in_one_file_and_no_file_is_much_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "_FILE_BYTES", 1000)
    shapes = {f"{n}": Shape(torch.bfloat16, (n,)) for n in (100, 300, 200, 900, 10, 20, 450)}
    files = shares._split(shapes, num_writers=2)
    assert files == [["100", "300"], ["200"], ["900"], ["10", "20", "450"]]
    assert len(shares._split(shapes, num_writers=4)) >= 4


def test_what_is_saved_is_copied_aside_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "_free_bytes", lambda: 100)  # bytes, of which 80 are used
    weights, written = torch.zeros(10), list[tuple[str, float]]()
    kept = host_copies.HostCopies()
    keep = kept.capture(lambda state, path: written.append((path, state["w"].sum().item())))
    for path in ("one", "two", "no room"):
        keep({"w": weights}, path)
    weights += 1
    assert written == [("no room", 0.0)]
    kept.write()
    assert written[1:] == [("one", 0.0), ("two", 0.0)]


def test_weights_that_were_held_are_in_place_for_as_long_as_they_are_measured() -> None:
    weights = torch.zeros(3)
    held = host_copies.WeightSnapshot(lambda: [weights])
    held.take()
    weights += 1
    with suppress(KeyError), held.swapped_in():
        assert weights.tolist() == [0, 0, 0]
        raise KeyError("what is measured breaks")
    assert weights.tolist() == [1, 1, 1]
