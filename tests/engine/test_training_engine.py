"""The update is the same however it is split: over micro-batches, ranks, stages and attempts."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
)

from services.learner.training.engine import use_cores
from services.learner.training.models import read_model
from services.learner.training.samples import Sample
from services.learner.training.sequence import ALONE
from tests.engine.outputs import (
    TOLERANCE,
    assert_same_outputs,
    largest_gap,
    metrics_of,
    parameters_in,
    tokens_of,
)
from tests.engine.plain_vapo import Learns, PlainVapo, clip_gain, halves, logprobs
from tests.engine.ranks import Ranks
from tests.engine.train_some_steps import (
    load_weights_alone,
    samples_of_step,
    save_or_resume,
    train,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def one_rank(ranks: Ranks, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of the plain policy gradient, each micro-batch a whole mini-batch."""
    out = tmp_path_factory.mktemp("one") / "out"
    ranks.run(train, model=model, out=out)
    return out


def test_the_update_is_that_of_plain_torch(model: Path, one_rank: Path) -> None:
    """Without engine, micro-batches or chunks: a sample at a time, all its logits."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    before = note_tokens(plain, samples_of_step(0))
    learner = Learns(list(plain.parameters()))
    for step in range(3):
        for mini_batch in halves(samples_of_step(step)):
            num_tokens = sum(sample.num_own for sample in mini_batch)

            def compute_loss(sample: Sample, num_tokens: int = num_tokens) -> Tensor:
                behavior = torch.from_numpy(sample.behavior_logprobs)
                ratio = (logprobs(plain, sample)[0] - behavior).exp()
                return -clip_gain(ratio, sample.advantage).sum() / num_tokens

            learner.from_losses(compute_loss, mini_batch)
    learned = parameters_in(one_rank)
    expected = {f"model.safetensors:{n}": p.detach() for n, p in plain.named_parameters()}
    assert largest_gap(learned, {name: expected[name] for name in learned}) <= TOLERANCE
    assert metrics_of(one_rank)[0]["parity_tokens"] > 0

    # The first update learns from tokens as before it; the second one's log-probs are not had.
    tokens = tokens_of(one_rank)
    first = sum(sample.num_own for sample in halves(samples_of_step(0))[0])
    for name in ("logprobs", "entropies"):
        expected = pytest.approx(before[name][:first], abs=TOLERANCE)
        assert tokens[f"0 {name}"][:first] == expected
    assert np.isnan(tokens["0 logprobs"][first:]).all()
    entropies = tokens["0 entropies"][first:]
    assert entropies == pytest.approx(before["entropies"][first:], abs=0.02)
    assert entropies.tolist() != before["entropies"][first:].tolist()
    assert tokens["0 token_advantages"].tolist() == before["advantages"].tolist()


def note_tokens(model: PreTrainedModel, samples: list[Sample]) -> dict[str, np.ndarray]:
    """Log-probs, entropies and advantages of all own tokens, from their definitions."""
    rows = []
    for sample in samples:
        with torch.no_grad():
            chosen, distribution = logprobs(model, sample)
        entropies = -(distribution.exp() * distribution).sum(-1)
        rows.append(torch.stack([chosen, entropies, torch.full_like(chosen, sample.advantage)]))
    names = ("logprobs", "entropies", "advantages")
    return dict(
        zip(
            names,
            torch.cat(rows, dim=1).numpy(),
            strict=True,
        )
    )


def test_an_optimizer_on_the_host_uses_a_ranks_share_of_the_cores_and_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def update() -> list[Tensor]:
        torch.manual_seed(0)
        weight = torch.randn(300_000, requires_grad=True)
        weight.grad = torch.randn(300_000)
        optimizer = torch.optim.AdamW([weight], fused=True)
        optimizer.step()
        return [weight.detach(), *optimizer.state[weight].values()]

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(9))
    before, alone = torch.get_num_threads(), update()
    try:
        use_cores()
        assert torch.get_num_threads() == 2
        assert all(map(torch.equal, update(), alone))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("zero_stage", "micro_batch_tokens"), [(2, 120), (3, 1)])
def test_two_ranks_make_the_same_update(
    ranks: Ranks,
    model: Path,
    one_rank: Path,
    tmp_path: Path,
    zero_stage: int,
    micro_batch_tokens: int,
) -> None:
    # In parts of one sample the second update has 11: one rank runs out of samples first.
    ranks.run(
        train,
        ranks=2,
        model=model,
        out=tmp_path / "out",
        zero_stage=zero_stage,
        micro_batch_tokens=micro_batch_tokens,
        recompute_activations=zero_stage == 2,
        slow_rank=1,
        hold_at=1,  # before the step, for an evaluation, which changes nothing
        publish=tmp_path / "slot",
    )
    assert largest_gap(parameters_in(one_rank), parameters_in(tmp_path / "out")) <= TOLERANCE
    assert_published(tmp_path / "slot", tmp_path / "out")
    assert {step["slowest_rank"] for step in metrics_of(tmp_path / "out")} == {1}


def assert_published(slot: Path, exported: Path) -> None:
    """Each rank wrote a share, first of other weights, and it is as if one had written it all."""
    assert len(list(slot.glob("model-*.safetensors"))) > 1
    published = AutoModelForCausalLM.from_pretrained(slot).state_dict()
    expected = AutoModelForCausalLM.from_pretrained(exported).state_dict()
    assert all(torch.equal(published[name], expected[name]) for name in expected)
    for name in ("config.json", "generation_config.json"):
        assert (slot / name).read_text() == (exported / name).read_text()


@pytest.fixture(scope="module")
def everything(ranks: Ranks, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pretraining of the critic, then VAPO with every term that a loss can have."""
    out = tmp_path_factory.mktemp("vapo") / "out"
    ranks.run(
        train,
        model=model,
        out=out,
        vapo=True,
        pretrain=2,
        save_at=2,
    )
    return out


def test_a_token_that_is_not_the_policys_and_context_of_none_changes_no_bit(
    ranks: Ranks, model: Path, everything: Path, tmp_path: Path
) -> None:
    ranks.run(
        train,
        model=model,
        out=tmp_path,
        vapo=True,
        pretrain=2,
        other_endings=True,
    )
    assert largest_gap(parameters_in(everything), parameters_in(tmp_path)) == 0


@pytest.mark.parametrize(
    "split",
    [
        {"zero_stage": 1, "offload": "optimizer"},
        {"zero_stage": 3, "micro_batch_tokens": 60, "sequence_parallel": 2},
        {"zero_stage": 3, "offload": "all"},
    ],
    ids=str,
)
def test_critic_and_every_term_of_the_loss_are_global_too(
    ranks: Ranks, model: Path, everything: Path, tmp_path: Path, split: dict[str, Any]
) -> None:
    settings = {"vapo": True, "pretrain": 2, "micro_batch_tokens": 120} | split
    ranks.run(
        train,
        ranks=2,
        model=model,
        out=tmp_path,
        **settings,
    )
    assert largest_gap(parameters_in(everything), parameters_in(tmp_path)) <= TOLERANCE
    assert_same_outputs(everything, tmp_path)


def test_critic_and_every_term_of_the_loss_are_those_of_plain_torch(
    model: Path, everything: Path
) -> None:
    plain = PlainVapo(model)
    before = note_tokens(plain.policy, samples_of_step(0))
    tokens = tokens_of(everything)
    for step in range(2):
        plain.pretrain(samples_of_step(100 + step))
    for step in range(3):
        plain.train(samples_of_step(step))
    learned = parameters_in(everything)
    assert largest_gap(learned, {name: plain.parameters()[name] for name in learned}) <= TOLERANCE
    # Steps 0 and 1 were those of the critic alone, which tell nothing of tokens.
    assert tokens["2 logprobs"] == pytest.approx(before["logprobs"], abs=TOLERANCE)
    assert not any(name.startswith(("0 ", "1 ")) for name in tokens)
    assert tokens["2 token_advantages"].std() == pytest.approx(1, abs=0.01)  # whitened


@pytest.mark.long
def test_compiled_layers_compute_the_same(
    ranks: Ranks, model: Path, everything: Path, tmp_path: Path
) -> None:
    settings = {"vapo": True, "pretrain": 2, "micro_batch_tokens": 120, "compile_layers": True}
    ranks.run(train, model=model, out=tmp_path, **settings)
    plain, compiled = tokens_of(everything), tokens_of(tmp_path)
    assert compiled["2 logprobs"] == pytest.approx(plain["2 logprobs"], abs=1e-4)


def test_policy_and_critic_go_on_from_a_checkpoint_bit_for_bit(
    ranks: Ranks, model: Path, everything: Path, tmp_path: Path
) -> None:
    ranks.run(
        train,
        model=model,
        out=tmp_path,
        vapo=True,
        load_from=everything / "checkpoint",
    )
    assert largest_gap(parameters_in(everything), parameters_in(tmp_path)) == 0


def test_weights_alone_are_loaded_as_into_new_models(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    settings = [{"zero_stage": 0}, {"zero_stage": 3, "dtype": "bfloat16"}]
    ranks.run(load_weights_alone, model=model, out=tmp_path, settings=settings)
    for number, each in enumerate(settings):
        folder = tmp_path / str(number)
        for one, other in (("used", "saved"), ("used and train", "new and train")):
            gap = largest_gap(parameters_in(folder / one), parameters_in(folder / other))
            assert gap == 0, (each, one)


COMBINATIONS: list[dict[str, Any]] = [
    {"zero_stage": 0},
    {"zero_stage": 1, "vapo": True},
    {"zero_stage": 1, "dtype": "bfloat16"},
    {"zero_stage": 2, "offload": "optimizer"},
    {"zero_stage": 3, "offload": "all", "dtype": "bfloat16"},
    {"zero_stage": 3, "lora": {"rank": 4, "alpha": 8}},
]


@pytest.mark.parametrize("after", [3, 2])
def test_a_checkpoint_of_three_ranks_goes_on_with_as_many_bit_for_bit_and_with_two(
    ranks: Ranks, model: Path, saved: Path, after: int
) -> None:
    verb = f"resume with {after}"
    combine(ranks, after, model, saved, verb)
    for number, settings in enumerate(COMBINATIONS):
        folder = saved / str(number)
        before, loaded = parameters_in(folder / "save"), parameters_in(folder / verb)
        assert largest_gap(before, loaded) == 0, settings
        assert not list(folder.glob(".*"))
        whole = parameters_in(folder / "save and train")
        resumed = parameters_in(folder / f"{verb} and train")
        assert largest_gap(before, whole) > 1e-4
        ulp = 2**-7  # in bfloat16, of a weight of 1 or more
        most = ulp if "dtype" in settings else TOLERANCE
        assert largest_gap(whole, resumed) <= (0 if after == 3 else most), settings


@pytest.fixture(scope="module")
def saved(ranks: Ranks, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "c++ (1"
    combine(ranks, 3, model, folder, "save")
    return folder


def combine(ranks: Ranks, num_ranks: int, model: Path, folder: Path, verb: str) -> None:
    settings = [{"micro_batch_tokens": 120, **each} for each in COMBINATIONS]
    ranks.run(
        save_or_resume, ranks=num_ranks, model=model, out=folder, verb=verb, settings=settings
    )


def test_a_step_says_what_was_not_finite_and_how_many_updates_it_made(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    ranks.run(
        train,
        model=model,
        out=tmp_path,
        steps=2,
        broken_step=1,
    )
    whole, broken = metrics_of(tmp_path)
    assert (whole["updates"], broken["updates"]) == (2, 1)
    assert all(map(math.isfinite, whole.values()))
    not_finite = {name for name, value in broken.items() if not math.isfinite(value)}
    assert not_finite >= {"loss", "grad_norm"}


def test_a_model_with_dropout_is_trained_without(model: Path, tmp_path: Path) -> None:
    config = Qwen2Config.from_pretrained(model, attention_dropout=0.5)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    policy = read_model(AutoModelForCausalLM, tmp_path, ALONE, torch.float32)
    assert policy.config.attention_dropout == 0


def test_a_reward_models_head_becomes_the_critics_and_that_of_another_recipe(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    critic = tmp_path / "reward"
    score = Qwen2ForSequenceClassification(Qwen2Config.from_pretrained(model, num_labels=1))
    score.save_pretrained(critic)
    for out in (tmp_path / "out", tmp_path / "again"):
        ranks.run(
            train,
            model=model,
            out=out,
            vapo=True,
            steps=0,
            critic=critic,
        )
        critic = out / "critic"
        head = load_file(critic / "value_head.safetensors")
        assert head["weight"].equal(score.score.weight.detach())
        assert head["bias"].abs().sum() == 0
        body = load_file(critic / "model.safetensors")
        assert largest_gap(body, score.model.state_dict()) == 0
