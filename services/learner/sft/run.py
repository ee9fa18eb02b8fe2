"""Supervised learning: epochs of updates on solutions, then the model's folder."""

from __future__ import annotations

import asyncio
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
from protocol.recipe import Model
from protocol.tasks import TaskFileError

from services.chassis.prompts import PromptError
from services.chassis.renderer import PromptRenderer
from services.learner.sft.recipe import SftRecipe
from services.learner.training.engine import init_ranks, leave_ranks
from services.learner.training.model_check import check_sequence, check_targets
from services.learner.training.models import write_merged
from services.learner.training.ranks import Order, Rank, machine_errors
from services.learner.training.samples import Sample

_REPORT_EVERY_S = 10.0
_MAX_PROBLEMS = 20


class NothingLearned(RuntimeError):
    """No update was finite; the text says why."""


class FolderTaken(RuntimeError):
    """Another process writes the folder, or has just written it."""


@dataclass(frozen=True)
class Imitation:
    """A model and its samples. Every rank has the same, so each gives itself its orders."""

    recipe: SftRecipe
    folder: Path  # of the model to start from
    train: list[Sample]
    held_out: list[Sample]
    num_ids: int | None = None

    @classmethod
    def prepare(
        cls, recipe: SftRecipe, folder: Path, train: Sequence[Task], held_out: Sequence[Task]
    ) -> Imitation:
        """Check and read everything before the ranks meet.

        Raises:
            UnsupportedModel: if the model cannot be trained exactly.
            PlacementError: if this number of ranks cannot share its samples.
            TaskFileError: if a task has no solution, or does not fit the model.
        """
        check_targets(folder, recipe.model.lora)
        num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
        check_sequence(recipe.training.sequence_parallel, (folder,), num_ranks)
        files = (train, held_out)
        num_ids, samples, held_out_samples = asyncio.run(_read_samples(recipe.model, folder, files))
        return cls(recipe, folder, samples, held_out_samples, num_ids)

    def run(self, target: Path) -> None:
        """Join the ranks, learn, and write the model; rename it to the target when it is complete.

        Raises:
            NothingLearned: if no update had a finite loss and gradient.
            FolderTaken: if another process writes the target.
        """
        init_ranks()
        writes = torch.distributed.get_rank() == 0
        # A folder that cannot be written fails now, and not after training.
        with partial_folder(target) if writes else nullcontext(target) as partial:
            rank = Rank()
            self._learn(rank, prints=writes)
            adapts = self.recipe.model.lora is not None
            written = partial / "adapter" if adapts else partial
            rank.carry_out(Order(do="export", folder=str(written)))
            if writes and adapts:
                with machine_errors(partial):
                    write_merged(self.folder, written, self.recipe.model.dtype, partial)
            if writes:
                partial.rename(target)
        leave_ranks()

    def _learn(self, rank: Rank, *, prints: bool) -> None:
        settings = self.recipe.training
        recipe = self.recipe.for_trainer()
        rank.carry_out(Order("open", str(self.folder), recipe=recipe, num_ids=self.num_ids))
        longest = sorted(self.train, key=lambda s: len(s.prompt_ids) + len(s.token_ids))
        largest = longest[-settings.batch_size :]
        rank.carry_out(Order(do="rehearse", batch=largest))
        assert rank.trainer is not None
        policy = rank.trainer.models.policy
        policy.last_update = settings.epochs * math.ceil(len(self.train) / settings.batch_size)
        progress = Progress(policy.last_update, prints)
        batch: list[Sample] = []
        for epoch in range(settings.epochs):
            for batch in batches(self.train, settings.batch_size, (settings.seed, epoch)):
                measured = rank.carry_out(Order(do="train", batch=batch))
                progress.update(batch, measured.metrics["loss"], finite=policy.updates)
            if self.held_out:
                measured = rank.carry_out(Order(do="score", batch=self.held_out))
                loss = -measured.tokens["logprobs"].mean()
                progress.report(f"epoch {epoch + 1}/{settings.epochs}: held-out loss {loss:.4f}")
        last = rank.carry_out(Order(do="score", batch=batch))
        if policy.updates == 0 or not np.isfinite(last.tokens["logprobs"]).all():
            raise NothingLearned(
                "no update had a finite loss and gradient, or the last one left no finite weights; "
                "lower optimizer.learning_rate, or choose another model.dtype"
            )


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """Open a new folder next to the target for this process only; remove it at the end.

    Raises:
        FolderTaken: if another process has one for the same target.
    """
    place = target.with_name(f".{target.name}.partial")
    place.mkdir(parents=True, exist_ok=True)
    lock = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not place.exists() or target.exists():  # the other process has just ended
            raise BlockingIOError
    except BlockingIOError:
        os.close(lock)
        raise FolderTaken(f"another `weir sft` writes {target}; name another folder") from None
    folder = place / "model"
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


@dataclass
class Progress:
    """Prints a line every ten seconds and after the last update, on rank 0."""

    num_updates: int
    prints: bool
    done: int = 0
    tokens: int = 0  # since the last line, as are the losses
    losses: list[float] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.monotonic)

    def update(self, samples: Sequence[Sample], loss: float, *, finite: int) -> None:
        """Count an update, and print a line if it is time.

        Args:
            loss: the mean NLL per token before the update, in nats.
            finite: the number of updates so far that were finite, and so were made.
        """
        self.done += 1
        self.tokens += sum(len(s.prompt_ids) + len(s.token_ids) for s in samples)
        self.losses.append(loss)
        seconds = time.monotonic() - self.since
        if self.done < self.num_updates and seconds < _REPORT_EVERY_S:
            return
        update_s = (time.monotonic() - self.started) / self.done
        remaining_s = update_s * (self.num_updates - self.done)
        skipped = f", {self.done - finite} not made: not finite" if finite < self.done else ""
        self.report(
            f"update {self.done}/{self.num_updates}: loss {np.mean(self.losses):.4f}, "
            f"{self.tokens / seconds:,.0f} tokens/s, {remaining_s / 60:.1f} min left{skipped}"
        )
        self.tokens = 0
        self.losses = []
        self.since = time.monotonic()

    def report(self, text: str) -> None:
        if self.prints:
            print(text, flush=True)


async def _read_samples(
    model: Model, folder: Path, files: Sequence[Sequence[Task]]
) -> tuple[int, *tuple[list[Sample], ...]]:
    async with PromptRenderer(workers=1) as prompts:
        await prompts.open(folder)
        num_ids = (await prompts.describe()).max_id + 1
        return num_ids, *[await build_samples(tasks, model, prompts) for tasks in files]


async def build_samples(
    tasks: Sequence[Task], model: Model, prompts: PromptRenderer
) -> list[Sample]:
    """Build a sample of each task: the rollout's prompt, the solution and the end token.

    Raises:
        TaskFileError: naming up to 20 tasks that have no solution or do not fit the model.
        Unworkable: if the model's template or tokenizer takes too much.
    """
    end_id = (await prompts.describe()).end_id
    if end_id is None:
        raise PromptError("the model's tokenizer has no eos_token, so that no response would end")
    samples: list[Sample] = []
    problems: list[str] = []
    for task in tasks:
        try:
            samples.append(await _build_sample(task, model, prompts, end_id))
        except PromptError as error:
            problems.append(str(error))
            if len(problems) == _MAX_PROBLEMS:
                break
    if problems:
        raise TaskFileError(problems)
    return samples


def batches(
    samples: Sequence[Sample], batch_size: int, order: tuple[int, int]
) -> Iterator[list[Sample]]:
    """Yield all samples once; the last batch may be smaller. ``order`` is seed and epoch."""
    shuffled = np.random.default_rng(order).permutation(len(samples))
    for start in range(0, len(samples), batch_size):
        yield [samples[i] for i in shuffled[start : start + batch_size]]


async def _build_sample(task: Task, model: Model, prompts: PromptRenderer, end_id: int) -> Sample:
    if not task.solution:
        raise PromptError(
            f"task {task.id!r}: no 'solution' to learn from: add one, or remove the task"
        )
    prompt = await prompts.render(task, model.prompt_template, model.chat_template_options)
    solution = await prompts.encode(task.solution, add_special_tokens=False)
    response = np.array([*solution, end_id], dtype=np.int32)
    length = len(prompt) + len(response)
    if length > model.max_context:
        raise PromptError(
            f"task {task.id!r}: prompt and solution have {length} tokens, over model.max_context "
            f"{model.max_context}: raise it, or remove the task"
        )
    return Sample(
        prompt_ids=np.array(prompt, dtype=np.int32),
        token_ids=response,
        behavior_logprobs=np.zeros(len(response), dtype=np.float32),
        on_version=np.zeros(len(response), dtype=np.int32),
        advantage=0.0,
        reward=0.0,
        correct=True,
        group=0,
    )
