"""Supervised learning: epochs of updates, told in the terminal, then the model's folder."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from protocol.messages import Task
from transformers import AutoTokenizer

from services.learner.sft.recipe import SftRecipe
from services.learner.sft.solutions import batches, samples_of
from services.learner.training.batching import largest_micro_batches
from services.learner.training.engine import init_ranks, leave_ranks
from services.learner.training.model_check import check_models, check_sequence, check_targets
from services.learner.training.models import write_merged
from services.learner.training.ranks import Order, Rank, machine_errors
from services.learner.training.samples import Sample

_TELL_EVERY_S = 10.0


class NothingLearned(RuntimeError):
    """No update could be made; the text says why."""


class FolderTaken(RuntimeError):
    """Another process writes the folder, or has just written it."""


@dataclass(frozen=True)
class Imitation:
    """Which model learns what. Every rank has the same, so each gives itself its orders."""

    recipe: SftRecipe
    folder: Path  # of the model to start from
    train: list[Sample]
    held_out: list[Sample]

    @classmethod
    def prepared(
        cls, recipe: SftRecipe, folder: Path, train: Sequence[Task], held_out: Sequence[Task]
    ) -> Imitation:
        """With all refused that can be, before the ranks meet.

        Raises:
            UnsupportedModel: if the model cannot be trained exactly.
            PlacementError: if so many ranks cannot share its samples.
            TaskFileError: if a task has no solution, or does not fit the model.
        """
        check_models(folder, None, recipe.model.max_context)
        check_targets(folder, recipe.model.lora)
        num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
        check_sequence(recipe.training.sequence_parallel, (folder,), num_ranks)
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        samples, others = (samples_of(t, recipe.model, tokenizer) for t in (train, held_out))
        return cls(recipe, folder, samples, others)

    def run(self, target: Path) -> None:
        """Join the ranks, learn, and write the model; it is renamed to the target when it is whole.

        Raises:
            NothingLearned: if no update had a finite loss and gradient.
            FolderTaken: if another process writes the target.
        """
        init_ranks()
        writes = torch.distributed.get_rank() == 0
        # A folder that cannot be written is found out now, and not in the end.
        with unfinished(target) if writes else nullcontext(target) as partial:
            rank = Rank()
            self._learn(rank, is_told=writes)
            adapts = self.recipe.model.lora is not None
            written = partial / "adapter" if adapts else partial
            rank.carry_out(Order(do="export", folder=str(written)))
            if writes and adapts:
                with machine_errors(partial):
                    write_merged(self.folder, written, self.recipe.model.dtype, partial)
            if writes:
                partial.rename(target)
        leave_ranks()

    def _learn(self, rank: Rank, *, is_told: bool) -> None:
        settings = self.recipe.training
        recipe, num_ranks = self.recipe.for_trainer(), torch.distributed.get_world_size()
        rank.carry_out(Order(do="open", folder=str(self.folder), recipe=recipe))
        largest = largest_micro_batches(recipe, num_ranks)
        rank.carry_out(Order(do="rehearse", batch=largest))
        assert rank.trainer is not None
        policy = rank.trainer.models.policy
        policy.last_update = settings.epochs * math.ceil(len(self.train) / settings.batch_size)
        progress = Progress(policy.last_update, is_told)
        batch: list[Sample] = []
        for epoch in range(settings.epochs):
            for batch in batches(self.train, settings.batch_size, (settings.seed, epoch)):
                measured = rank.carry_out(Order(do="train", batch=batch))
                progress.update(batch, measured.metrics["loss"], made=policy.updates)
            if self.held_out:
                measured = rank.carry_out(Order(do="score", batch=self.held_out))
                loss = -measured.tokens["logprobs"].mean()
                progress.say(f"epoch {epoch + 1}/{settings.epochs}: held-out loss {loss:.4f}")
        last = rank.carry_out(Order(do="score", batch=batch))
        if policy.updates == 0 or not np.isfinite(last.tokens["logprobs"]).all():
            raise NothingLearned(
                "no update had a finite loss and gradient, or the last one left no finite weights; "
                "lower optimizer.learning_rate, or choose another model.dtype"
            )


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A new folder beside the target, of this process alone, that goes with the context.

    Raises:
        FolderTaken: if another process has one for the same target.
    """
    place = target.with_name(f".{target.name}.partial")
    place.mkdir(parents=True, exist_ok=True)
    lock = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not place.exists() or target.exists():  # the other one has just ended
            raise BlockingIOError
    except BlockingIOError:
        os.close(lock)
        raise FolderTaken(f"another `weir sft` writes {target}; name another folder") from None
    folder = place / "model"
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


@dataclass
class Progress:
    """What rank 0 tells the terminal: a line every ten seconds, and after the last update."""

    num_updates: int
    is_told: bool
    done: int = 0
    tokens: int = 0  # since the last line, as are the losses
    losses: list[float] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.monotonic)

    def update(self, samples: Sequence[Sample], loss: float, *, made: int) -> None:
        """Count an update, and tell of those since the last line if it is time to.

        Args:
            loss: the mean NLL per token before it, in nats.
            made: how many updates were made so far: those that were finite.
        """
        self.done += 1
        self.tokens += sum(len(s.prompt_ids) + len(s.token_ids) for s in samples)
        self.losses.append(loss)
        seconds = time.monotonic() - self.since
        if self.done < self.num_updates and seconds < _TELL_EVERY_S:
            return
        left = (time.monotonic() - self.started) / self.done * (self.num_updates - self.done)
        not_made = f", {self.done - made} not made: not finite" if made < self.done else ""
        self.say(
            f"update {self.done}/{self.num_updates}: loss {np.mean(self.losses):.4f}, "
            f"{self.tokens / seconds:,.0f} tokens/s, {left / 60:.1f} min left{not_made}"
        )
        self.tokens, self.losses, self.since = 0, [], time.monotonic()

    def say(self, text: str) -> None:
        """Write a line, on rank 0."""
        if self.is_told:
            print(text, flush=True)
