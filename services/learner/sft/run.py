"""Supervised learning: epochs of updates, told in the terminal, then the model's folder."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from protocol.messages import Task
from transformers import AutoTokenizer

from services.learner.sft.recipe import SftRecipe
from services.learner.sft.solutions import batches, placed, samples_of
from services.learner.training.engine import init_ranks, leave_ranks
from services.learner.training.model_check import check_models
from services.learner.training.models import Models
from services.learner.training.samples import Sample
from services.learner.training.trainer import Trainer

_TELL_EVERY_S = 10.0


class NothingLearned(RuntimeError):
    """No update could be made; the text says why."""


@dataclass(frozen=True)
class Imitation:
    """What is learned from what; every rank has the same."""

    recipe: SftRecipe
    folder: Path  # of the model to start from
    train: list[Sample]
    held_out: list[Sample]

    @classmethod
    def prepared(
        cls, recipe: SftRecipe, folder: Path, train: Sequence[Task], held_out: Sequence[Task]
    ) -> Imitation:
        """With all that can be refused refused.

        Raises:
            UnsupportedModel: if the model cannot be trained exactly.
            TaskFileError: if a task has no solution, or does not fit the model.
        """
        check_models(folder, None)
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        samples, others = (samples_of(t, recipe.model, tokenizer) for t in (train, held_out))
        return cls(recipe, folder, samples, others)

    def run(self, target: Path) -> None:
        """Join the ranks, learn, and write the model to a folder, by a rename when it is whole.

        Raises:
            NothingLearned: if no update had a finite loss and gradient.
        """
        init_ranks()
        is_first = torch.distributed.get_rank() == 0
        partial = target.with_name(f".{target.name}.partial")
        if is_first:  # now, and not after hours: can it be written at all?
            partial.mkdir(parents=True, exist_ok=True)
        try:
            self._learned(is_first).export(partial)
            if is_first:
                partial.rename(target)
        finally:
            if is_first:
                shutil.rmtree(partial, ignore_errors=True)
        leave_ranks()

    def _learned(self, is_first: bool) -> Models:
        settings, for_trainer = self.recipe.training, self.recipe.for_trainer()
        trainer = Trainer(for_trainer, Models(for_trainer, self.folder, self.folder))
        policy = trainer.models.policy
        policy.last_update = settings.epochs * math.ceil(len(self.train) / settings.batch_size)
        progress = Progress(policy.last_update, is_told=is_first)
        for epoch in range(settings.epochs):
            for batch in batches(self.train, settings.batch_size, (settings.seed, epoch)):
                progress.update(batch, trainer.train(batch).metrics["loss"])
            if self.held_out:
                loss = held_out_loss(trainer, self.held_out)
                progress.say(f"epoch {epoch + 1}/{settings.epochs}: held-out loss {loss:.4f}")
        if policy.updates == 0:
            raise NothingLearned("no update had a finite loss and gradient; see model.dtype")
        return trainer.models


def held_out_loss(trainer: Trainer, samples: list[Sample]) -> float:
    """The mean NLL per token of solutions that are not learned, in nats."""
    logprobs = trainer.score(placed(samples), temperature=1.0).tokens["logprobs"]
    return -float(logprobs.mean())


@dataclass
class Progress:
    """What the terminal of rank 0 shows: a line every ten seconds, and after the last update."""

    num_updates: int
    is_told: bool
    done: int = 0
    tokens: int = 0  # since the last line, as are the losses
    losses: list[float] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.monotonic)

    def update(self, samples: Sequence[Sample], loss: float) -> None:
        """Count an update, and tell of those since the last line if it is time to."""
        self.done += 1
        self.tokens += sum(len(s.prompt_ids) + len(s.token_ids) for s in samples)
        self.losses.append(loss)
        seconds = time.monotonic() - self.since
        if self.done < self.num_updates and seconds < _TELL_EVERY_S:
            return
        left = (time.monotonic() - self.started) / self.done * (self.num_updates - self.done)
        self.say(
            f"update {self.done}/{self.num_updates}: loss {np.mean(self.losses):.4f}, "
            f"{self.tokens / seconds:,.0f} tokens/s, {left / 60:.1f} min left"
        )
        self.tokens, self.losses, self.since = 0, [], time.monotonic()

    def say(self, text: str) -> None:
        """Write a line, on rank 0."""
        if self.is_told:
            print(text, flush=True)
