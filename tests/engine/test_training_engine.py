"""The update is the same however it is split: over micro-batches, ranks, stages and attempts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
)

from services.learner.training.samples import Sample
from tests.engine.plain_vapo import PlainVapo
from tests.engine.ranks import Ranks
from tests.engine.told import (
    TOLERANCE,
    assert_told_the_same,
    largest_gap,
    metrics_of,
    parameters_in,
    tokens_of,
)
from tests.engine.train_some_steps import (
    dropout_of,
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


def test_the_update_is_that_of_plain_torch(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    """One step without engine, micro-batches or chunks: a sample at a time, all its logits."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0, betas=(0.9, 0.999), weight_decay=0.01)
    before = note_tokens(plain, samples_of_step(0))
    for update, groups in enumerate((range(3), range(3, 6))):
        samples = [s for s in samples_of_step(0) if s.group in groups]
        num_tokens = sum(s.num_own for s in samples)
        optimizer.zero_grad()
        for sample in samples:
            (surrogate_of(plain, sample) / num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 1e-3 * (update + 1) / 3
        optimizer.step()
    ranks.run(train, model=model, out=tmp_path, steps=1, micro_batch_tokens=60)
    learned = parameters_in(tmp_path)
    expected = {f"model.safetensors:{n}": p.detach() for n, p in plain.named_parameters()}
    assert largest_gap(learned, {n: expected[n] for n in learned}) <= TOLERANCE
    assert metrics_of(tmp_path)[0]["parity_tokens"] > 0
    assert_told_of_each_token(tmp_path, before)


def assert_told_of_each_token(out: Path, before: dict[str, np.ndarray]) -> None:
    """What the first update learns from is as before it; the second one's log-probs are not had."""
    tokens = tokens_of(out)
    first = sum(s.num_own for s in samples_of_step(0) if s.group < 3)
    for name in ("logprobs", "entropies"):
        told, expected = tokens[f"0 {name}"], before[name]
        assert told[:first] == pytest.approx(expected[:first], abs=TOLERANCE)
    assert np.isnan(tokens["0 logprobs"][first:]).all()
    assert tokens["0 entropies"][first:] == pytest.approx(before["entropies"][first:], abs=0.02)
    assert tokens["0 entropies"][first:].tolist() != before["entropies"][first:].tolist()
    assert tokens["0 token_advantages"].tolist() == before["advantages"].tolist()


def note_tokens(model: torch.nn.Module, samples: list[Sample]) -> dict[str, np.ndarray]:
    """Log-probs, entropies and advantages of all own tokens, from their definitions."""
    found: dict[str, list[torch.Tensor]] = {"logprobs": [], "entropies": [], "advantages": []}
    for sample in samples:
        with torch.no_grad():
            logprobs = logprobs_of(model, sample)
        found["logprobs"].append(logprobs[range(sample.num_own), own_ids(sample)])
        found["entropies"].append(-(logprobs.exp() * logprobs).sum(-1))
        found["advantages"].append(torch.full([sample.num_own], sample.advantage))
    return {name: torch.cat(values).numpy() for name, values in found.items()}


def logprobs_of(model: torch.nn.Module, sample: Sample) -> torch.Tensor:
    """Of every token of the vocabulary, where the policy sampled one."""
    ids = torch.tensor([*sample.prompt_ids.tolist(), *sample.token_ids.tolist()])
    logits = model(ids[None]).logits[0, len(sample.prompt_ids) - 1 : -1]
    return torch.log_softmax(logits / 0.9, -1)[sample.own_places]


def own_ids(sample: Sample) -> np.ndarray:
    return sample.token_ids[sample.own_places]


def surrogate_of(model: torch.nn.Module, sample: Sample) -> torch.Tensor:
    """The sum over tokens of PPO's clipped loss, from its definition."""
    logprobs = logprobs_of(model, sample)[range(sample.num_own), own_ids(sample)]
    ratio = (logprobs - torch.from_numpy(sample.behavior_logprobs)).exp()
    gain = torch.minimum(
        ratio * sample.advantage, ratio.clamp(1 - 0.2, 1 + 0.28) * sample.advantage
    )
    return -gain.sum()


def test_a_token_that_is_not_the_policys_and_context_of_none_changes_no_bit(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    settings = {"vapo": True, "pretrain": 1, "steps": 1, "micro_batch_tokens": 120}
    for name in ("one", "other"):
        ranks.run(
            train, model=model, out=tmp_path / name, other_endings=name == "other", **settings
        )
    assert largest_gap(parameters_in(tmp_path / "one"), parameters_in(tmp_path / "other")) == 0


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
    ranks.run(train, model=model, out=out, vapo=True, pretrain=2, save_at=2)
    return out


@pytest.mark.parametrize(
    ("num_ranks", "split"),
    [
        (1, {"zero_stage": 1, "micro_batch_tokens": 60}),
        (2, {"zero_stage": 1, "offload": "optimizer"}),
        (2, {"zero_stage": 2}),
        (2, {"zero_stage": 3, "micro_batch_tokens": 60, "sequence_parallel": 2}),
        (2, {"zero_stage": 3, "offload": "all"}),
    ],
    ids=str,
)
def test_critic_and_every_term_of_the_loss_are_global_too(
    ranks: Ranks,
    model: Path,
    everything: Path,
    tmp_path: Path,
    num_ranks: int,
    split: dict[str, Any],
) -> None:
    settings = {"vapo": True, "pretrain": 2, "micro_batch_tokens": 120} | split
    ranks.run(train, ranks=num_ranks, model=model, out=tmp_path, **settings)
    assert largest_gap(parameters_in(everything), parameters_in(tmp_path)) <= TOLERANCE
    assert_told_the_same(everything, tmp_path)


def test_critic_and_every_term_of_the_loss_are_those_of_plain_torch(
    model: Path, everything: Path
) -> None:
    plain = PlainVapo(model)
    before, told = note_tokens(plain.policy, samples_of_step(0)), tokens_of(everything)
    for step in range(2):
        plain.pretrain(samples_of_step(100 + step))
    for step in range(3):
        plain.train(samples_of_step(step))
    learned = parameters_in(everything)
    assert largest_gap(learned, {name: plain.parameters()[name] for name in learned}) <= TOLERANCE
    # Steps 0 and 1 were those of the critic alone, which tell nothing of tokens.
    assert told["2 logprobs"] == pytest.approx(before["logprobs"], abs=TOLERANCE)
    assert not any(name.startswith(("0 ", "1 ")) for name in told)
    assert told["2 token_advantages"].std() == pytest.approx(1, abs=0.01)  # whitened


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
    ranks.run(train, model=model, out=tmp_path, vapo=True, load_from=everything / "checkpoint")
    assert largest_gap(parameters_in(everything), parameters_in(tmp_path)) == 0


@pytest.mark.parametrize(("zero_stage", "offload"), [(1, "none"), (3, "all")])
def test_bfloat16_goes_on_from_a_checkpoint_bit_for_bit(
    ranks: Ranks, model: Path, tmp_path: Path, zero_stage: int, offload: str
) -> None:
    settings = {"dtype": "bfloat16", "micro_batch_tokens": 60}
    settings |= {"zero_stage": zero_stage, "offload": offload}
    whole, again = tmp_path / "whole", tmp_path / "again"
    ranks.run(train, model=model, out=whole, save_at=2, **settings)
    ranks.run(train, model=model, out=again, load_from=whole / "checkpoint", **settings)
    assert largest_gap(parameters_in(whole), parameters_in(again)) == 0


def test_weights_alone_are_loaded_as_into_new_models(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    settings = [{"zero_stage": 0}, {"zero_stage": 3, "dtype": "bfloat16"}]
    ranks.run(load_weights_alone, model=model, out=tmp_path, settings=settings)
    for number, each in enumerate(settings):
        folder = tmp_path / str(number)
        for one, other in (("used", "saved"), ("used and train", "new and train")):
            found, expected = parameters_in(folder / one), parameters_in(folder / other)
            assert largest_gap(found, expected) == 0, (each, one)


def test_a_checkpoint_of_three_ranks_goes_on_with_two(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    combinations = [
        {"zero_stage": 0},
        {"zero_stage": 1, "vapo": True},
        {"zero_stage": 2, "offload": "optimizer"},
        {"zero_stage": 3, "offload": "all", "dtype": "bfloat16"},
        {"zero_stage": 3, "lora": {"rank": 4, "alpha": 8}},
    ]
    place = tmp_path / "c++ (1"
    settings = [{"micro_batch_tokens": 120, **each} for each in combinations]
    for number, verb in ((3, "save"), (2, "resume")):
        ranks.run(
            save_or_resume, ranks=number, model=model, out=place, verb=verb, settings=settings
        )
    for number, each in enumerate(combinations):
        folder = place / str(number)
        saved, loaded = (parameters_in(folder / verb) for verb in ("save", "resume"))
        assert largest_gap(saved, loaded) == 0, each
        assert not list(folder.glob(".*"))
        whole, resumed = (
            parameters_in(folder / f"{verb} and train") for verb in ("save", "resume")
        )
        assert largest_gap(saved, whole) > 1e-4
        ulp = 2**-7  # in bfloat16, of a weight of 1 or more
        assert largest_gap(whole, resumed) <= (ulp if "dtype" in each else TOLERANCE), each


def test_a_step_says_what_was_not_finite_and_how_many_updates_it_made(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    ranks.run(train, model=model, out=tmp_path, steps=2, broken_step=1)
    whole, broken = metrics_of(tmp_path)
    assert (whole["updates"], broken["updates"]) == (2, 1)
    assert all(map(math.isfinite, whole.values()))
    not_finite = {name for name, value in broken.items() if not math.isfinite(value)}
    assert not_finite >= {"loss", "grad_norm"}


def test_a_model_with_dropout_is_trained_without(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    config = Qwen2Config.from_pretrained(model, attention_dropout=0.5)
    Qwen2ForCausalLM.from_pretrained(model, config=config).save_pretrained(tmp_path)
    assert ranks.run(dropout_of, model=tmp_path) == 0


def test_a_reward_models_head_becomes_the_critics_and_that_of_another_recipe(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    config = Qwen2Config.from_pretrained(model, num_labels=1)
    critic, score = tmp_path / "reward", Qwen2ForSequenceClassification(config)
    score.save_pretrained(critic)
    for out in (tmp_path / "out", tmp_path / "again"):
        ranks.run(train, model=model, out=out, vapo=True, steps=0, critic=critic)
        critic = out / "critic"
        head = load_file(critic / "value_head.safetensors")
        assert head["weight"].equal(score.score.weight.detach())
        assert head["bias"].abs().sum() == 0
        body = load_file(critic / "model.safetensors")
        assert largest_gap(body, score.model.state_dict()) == 0
