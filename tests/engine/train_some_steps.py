"""Trains a small model on fixed samples, on as many ranks as call it, and exports it.

``python -m tests.engine.train_some_steps MODEL OUT SETTINGS`` does so in a process of its own;
SETTINGS are those of `train`, as JSON.
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from protocol.recipe import Recipe, parse_recipe

from services.learner.training.batching import largest_micro_batches
from services.learner.training.engine import init_ranks, leave_ranks
from services.learner.training.host_copies import HostCopies
from services.learner.training.models import Models, write_merged
from services.learner.training.samples import Measured, Sample, assign_places
from services.learner.training.trainer import Trainer

UPDATES = 2
VAPO = {
    "advantage": "length_adaptive_gae",
    "whiten": True,
    "old_logprobs": "recompute",
    "correction": "token_tis",
    "divergence_weight": 0.1,
    "entropy_weight": 0.01,
    "positive_lm_weight": 0.1,
}


def samples_of_step(step: int) -> list[Sample]:
    """Six groups of four responses of odd lengths, one lost, the same in every process.

    Every other response has tokens that are not the policy's.
    """
    random = np.random.default_rng(step)
    samples = [
        Sample(
            prompt_ids=random.integers(3, 40, 5 + index % 3).astype(np.int32),
            token_ids=random.integers(3, 40, length).astype(np.int32),
            behavior_logprobs=np.full(length, -3.7, dtype=np.float32),
            on_version=np.ones(length, dtype=np.int32),
            advantage=float(random.normal()),
            reward=float(index % 3 == 0),
            correct=index % 3 == 0,
            group=index // 4,
        )
        for index, length in enumerate(random.integers(1, 30, 23).tolist())
    ]
    return assign_places(
        [_with_turns(s, index) if index % 2 else s for index, s in enumerate(samples)]
    )


def _with_turns(sample: Sample, index: int) -> Sample:
    """Before, between or after its own tokens others have some."""
    length = len(sample.token_ids)
    own = np.unique([length // 2, *np.flatnonzero((np.arange(length) + index) % 5 < 3)])
    of_own = {n: getattr(sample, n)[own] for n in ("behavior_logprobs", "on_version")}
    return replace(sample, own_indexes=own, **of_own)


def with_other_endings(sample: Sample) -> Sample:
    """Other tokens after its last own one: they are the context of none."""
    is_after = np.arange(len(sample.token_ids)) > sample.own_places[-1]
    return replace(sample, token_ids=np.where(is_after, 7, sample.token_ids))


def recipe_of(model: str, settings: dict[str, Any]) -> Recipe:
    """Of the plain policy gradient, or of everything at once."""

    def chosen(*names: str) -> dict[str, Any]:
        return {name: settings[name] for name in names if name in settings}

    optimizer = {
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "warmup_steps": 3,
        "zero_stage": 1,
        **chosen("zero_stage", "offload"),
    }
    training = {
        "steps": 10,
        "groups_per_step": 16,
        "updates_per_batch": UPDATES,
        "micro_batch_tokens": 4096,
        "logprob_chunk_tokens": 50,
        **chosen("groups_per_step", "micro_batch_tokens", "recompute_activations"),
        **chosen("compile_layers", "sequence_parallel"),
    }
    recipe: dict[str, Any] = {
        "name": "ranks",
        "model": {
            "path": model,
            "dtype": "float32",
            "max_context": 128,
            **chosen("dtype", "lora"),
        },
        "tasks": {"train": "none"},
        "rollout": {"sampling": {"max_tokens": 64, "temperature": 0.9}},
        "algorithm": {"advantage": "grpo"},
        "training": training,
        "optimizer": optimizer,
    }
    if settings.get("vapo"):
        critic = {"optimizer": optimizer, "value_clip": 0.01}  # small enough to bind
        recipe |= {"algorithm": VAPO, "critic": critic}
    return parse_recipe(recipe)


def train(
    model: str,
    out: str,
    steps: int = 3,
    **settings: Any,
) -> None:
    """Train, by the settings of `recipe_of`, and leave parameters and what was told in a folder.

    Args:
        model: the folder of the policy, and of the critic unless ``critic`` names another.
        out: where everything goes.
        steps: how many.
        settings: those of the recipe, and perhaps ``publish`` (a folder that the policy is written
            into before and after), ``pretrain`` (steps of the critic alone, first), ``save_at``
            (save to OUT/checkpoint after so many steps), ``hold_at`` (keep the weights before that
            step, and score them after it), ``load_from``, ``broken_step`` (whose first sample's
            advantage is no number), ``other_endings``, ``slow_rank`` (which computes something else
            in each forward pass).
    """
    init_ranks()
    torch.use_deterministic_algorithms(True)
    recipe = recipe_of(model, settings)
    models = Models(recipe, Path(model), Path(settings.get("critic", model)))
    trainer = Trainer(recipe, models)
    models.policy.module.register_forward_pre_hook(lambda *_: _compute_if_slow(settings))
    first, saved = 0, HostCopies()
    _publish(models, settings)
    if "load_from" in settings:
        models.load(Path(settings["load_from"]))
        first = models.policy.updates // UPDATES
    measured = [
        trainer.pretrain(samples_of_step(100 + step)) for step in range(settings.get("pretrain", 0))
    ]
    for step in range(first, steps):
        samples = samples_of_step(step)
        if settings.get("broken_step") == step:
            samples[0] = replace(samples[0], advantage=math.nan)
        if settings.get("other_endings"):
            samples = list(map(with_other_endings, samples))
        with _held(trainer, samples, beside=settings.get("hold_at") == step):
            measured.append(trainer.train(samples))
        if settings.get("save_at") == step + 1:
            saved = models.save(Path(out) / "checkpoint")
    saved.write()  # as it was then, though training went on
    _publish(models, settings)
    _export(models, Path(out))
    if torch.distributed.get_rank() == 0:
        _tell(Path(out), measured)
        if "lora" in settings:
            write_merged(Path(model), Path(out), "float32", Path(out) / "merged")
    leave_ranks()


def _compute_if_slow(settings: dict[str, Any]) -> None:
    until = time.thread_time() + 0.03
    while settings.get("slow_rank") == torch.distributed.get_rank() and time.thread_time() < until:
        pass


def _publish(models: Models, settings: dict[str, Any]) -> None:
    if "publish" in settings:
        folder = Path(settings["publish"])
        folder.mkdir(exist_ok=True)
        models.publish(folder, slot=0)


def _export(models: Models, folder: Path) -> None:
    models.export(folder)
    if models.critic is not None:
        models.export_critic(folder / "critic")


def _tell(out: Path, measured: list[Measured]) -> None:
    (out / "metrics.json").write_text(json.dumps([step.metrics for step in measured]))
    for number, step in enumerate(measured):
        for name, values in step.tokens.items():
            np.save(out / f"{number} {name}.npy", values)


@contextmanager
def _held(trainer: Trainer, samples: list[Sample], *, beside: bool) -> Iterator[None]:
    """The weights as they are before the body are kept, and are scored as they were after it."""
    if not beside:
        yield
        return

    def logprobs(*, use_snapshot: bool) -> np.ndarray:
        return trainer.score(samples, 0.9, use_snapshot=use_snapshot).tokens["logprobs"]

    trainer.models.snapshot.take()
    before = logprobs(use_snapshot=False)
    yield
    np.testing.assert_array_equal(logprobs(use_snapshot=True), before)
    assert np.abs(logprobs(use_snapshot=False) - before).max() > 1e-3


def save_or_resume(model: str, out: str, verb: str, settings: Sequence[dict[str, Any]]) -> None:
    """Train a step and ``save``, or ``resume`` from there; export that, and one step later again.

    By each of the settings, into folders below OUT/NUMBER, the place of the settings.
    """
    init_ranks()
    for number, each in enumerate(settings):
        recipe = recipe_of(model, each)
        models = Models(recipe, Path(model), Path(model))
        trainer = Trainer(recipe, models)
        trainer.rehearse(
            assign_places(largest_micro_batches(recipe, torch.distributed.get_world_size()))
        )
        place = Path(out) / str(number)
        if verb == "save":
            trainer.train(samples_of_step(0))
            models.save(place / "checkpoint").write()
        else:
            models.load(place / "checkpoint")
        _export(models, place / verb)
        trainer.train(samples_of_step(1))
        _export(models, place / f"{verb} and train")
    leave_ranks()


def load_weights_alone(model: str, out: str, settings: Sequence[dict[str, Any]]) -> None:
    """Load a saved step's weights into models that have trained on, and into new ones; train."""
    init_ranks()
    for number, each in enumerate(settings):
        recipe, place = recipe_of(model, each), Path(out) / str(number)
        for name, steps in (("used", 2), ("new", 0)):
            models = Models(recipe, Path(model), Path(model))
            trainer = Trainer(recipe, models)
            for step in range(steps):
                trainer.train(samples_of_step(step))
                if step == 0:
                    models.save(place / "checkpoint").write()
                    _export(models, place / "saved")
            models.load(place / "checkpoint", with_optimizer=False)
            _export(models, place / name)
            trainer.train(samples_of_step(2))
            _export(models, place / f"{name} and train")
    leave_ranks()


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
