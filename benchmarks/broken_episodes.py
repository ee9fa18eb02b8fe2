"""What broken episodes do to training: left out, as Weir does, or scored 0 as if they were wrong.

``python -m benchmarks.broken_episodes`` trains *sum, then check* with every way and several seeds,
keeps each result as soon as it is there (a run that is there already is not repeated), and prints
the table. Groups, their statistics, samples and updates are the learner's own; a small sampler
stands for rollouts, gateway and environment workers.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from protocol.messages import (
    Episode,
    FinishReason,
    Grade,
    Graded,
    GradedGroup,
    Response,
    RolloutGroup,
    RolloutRequest,
    Task,
    Ungradable,
    VersionSpan,
)
from protocol.recipe import Purpose, Recipe, load_recipe
from protocol.tasks import read_tasks
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from examples.environments.sums import check, is_answer, reward
from services.learner.training.engine import init_ranks, leave_ranks
from services.learner.training.models import Models
from services.learner.training.samples import placed, samples_of
from services.learner.training.scoring import ScoredGroup, Scoring
from services.learner.training.trainer import Trainer

RECIPE = Path("examples/environments/sum-then-check.toml")
RESULTS = Path("benchmarks/broken_episodes.json")
EVALUATE_EVERY = 10

Json = dict[str, Any]


@dataclass(frozen=True)
class Faults:
    """How often an episode breaks after its first turn, and what is made of it."""

    of_all: float = 0.0
    of_checked: float = 0.0  # of those whose first turn asks the tool
    count_as_zero: bool = False

    def strike(self, asks: bool, rng: random.Random) -> bool:
        return rng.random() < (max(self.of_all, self.of_checked) if asks else self.of_all)


# Half of the base model's episodes ask the tool, so that in both settings 10 % break at first.
WAYS = {
    "none break": Faults(),
    "tool, left out": Faults(of_checked=0.2),
    "tool, scored 0": Faults(of_checked=0.2, count_as_zero=True),
    "any, left out": Faults(of_all=0.1),
    "any, scored 0": Faults(of_all=0.1, count_as_zero=True),
}


@dataclass
class Played:
    """An episode: its tokens after the prompt, the policy's own and the tool's."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # 0 where not its own
    own: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    broke: bool = False

    def add(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        self.ids += ids
        self.own += [int(logprobs is not None)] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs


@dataclass(frozen=True)
class Player:
    """Plays many episodes at the same time with the policy as it is."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    recipe: Recipe

    def play(
        self, tasks: Sequence[Task], temperature: float, faults: Faults, seed: int
    ) -> list[Played]:
        torch.manual_seed(seed)
        rng = random.Random(seed)
        episodes = [Played(self.tokenizer(str(task.prompt)).input_ids) for task in tasks]
        self._turn(episodes, temperature)
        for episode in episodes:
            asks = not is_answer(episode.texts[0])
            episode.broke = faults.strike(asks, rng)
        checked = [e for e in episodes if not e.broke and not is_answer(e.texts[0])]
        for episode in checked:
            said = self.tokenizer(check(episode.texts[0]), add_special_tokens=False)
            episode.add(said.input_ids)
        self._turn(checked, temperature)
        return episodes

    @torch.inference_mode()
    def _turn(self, episodes: Sequence[Played], temperature: float) -> None:
        if not episodes:
            return
        rows = [[*e.prompt, *e.ids] for e in episodes]
        inputs = self.tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")
        output: Any = self.model.generate(  # pyright: ignore[reportCallIssue]
            **inputs,
            max_new_tokens=self.recipe.rollout.sampling.max_tokens,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        sampled = output.sequences[:, inputs["input_ids"].shape[1] :]
        logits = torch.stack(output.logits, dim=1) / temperature
        found = logits.log_softmax(-1).gather(-1, sampled[..., None])[..., 0]
        for episode, ids, logprobs in zip(episodes, sampled.tolist(), found.tolist(), strict=True):
            end = self.tokenizer.eos_token_id
            length = ids.index(end) + 1 if end in ids else len(ids)
            episode.add(ids[:length], logprobs[:length])
            episode.texts.append(self.tokenizer.decode(ids[:length], skip_special_tokens=True))


def graded(
    task: Task, played: Sequence[Played], recipe: Recipe, step: int, number: int, faults: Faults
) -> GradedGroup:
    """The group that an environment worker and a grader make of these episodes."""
    lost = [each.broke and not faults.count_as_zero for each in played]
    kept = [Played(p.prompt) if gone else p for p, gone in zip(played, lost, strict=True)]
    group = RolloutGroup(
        request=RolloutRequest(
            job_id="job",
            attempt=1,
            step=step,
            purpose=Purpose.TRAIN,
            number=number,
            task=task,
            group_size=len(played),
            sampling=recipe.rollout.sampling,
            prompt_template=None,
            seed=0,
            in_environment=True,
        ),
        prompt_ids=np.array(played[0].prompt, np.int32),
        token_ids=np.array(list(chain.from_iterable(p.ids for p in kept)), np.int32),
        behavior_logprobs=np.array(list(chain.from_iterable(p.logprobs for p in kept)), np.float32),
        own=np.array(list(chain.from_iterable(p.own for p in kept)), np.uint8),
        lengths=np.array([len(p.ids) for p in kept], np.int32),
        responses=tuple(
            Response(
                text="\n\n".join(p.texts),
                finish_reason=FinishReason.STOP,
                spans=()
                if gone
                else (VersionSpan(attempt=1, version=step, start=0, end=len(p.ids)),),
                episode=Episode(problem="episode_failed")
                if gone
                else Episode(reward=_reward(task, p)),
            )
            for p, gone in zip(kept, lost, strict=True)
        ),
        sampling_seconds=0.0,
    )
    outcomes = [
        Ungradable(reason="episode_failed") if gone else Graded(value=_reward(task, p))
        for p, gone in zip(kept, lost, strict=True)
    ]
    grades = tuple(Grade(outcome=outcome) for outcome in outcomes)
    return GradedGroup(purpose=Purpose.TRAIN, number=number, group=group, grades=grades)


def _reward(task: Task, played: Played) -> float:
    return 0.0 if played.broke else reward(played.texts[-1], task.answer)


def train(recipe: Recipe, faults: Faults, seed: int) -> Json:
    """A whole job; the accuracies of held-out tasks are those of a sound environment."""
    folder = Path(recipe.model.path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    train_tasks, held_out = (
        list(read_tasks(Path(f"{name}"))) for name in (recipe.tasks.train, recipe.tasks.held_out)
    )
    models = Models(recipe, folder, folder)
    trainer, scoring = Trainer(recipe, models), Scoring.of(recipe)
    sampler = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    player = Player(sampler, tokenizer, recipe)
    size, per_step = recipe.rollout.group_size, recipe.training.groups_per_step
    order = random.Random(seed)
    curve, rewards, asked, broken = [], [], [], []
    for step in range(recipe.training.steps + 1):
        if step % EVALUATE_EVERY == 0:
            curve.append(accuracy(player, held_out, seed=seed))
        if step == recipe.training.steps:
            break
        tasks = order.sample(train_tasks, per_step)
        played = player.play(
            [task for task in tasks for _ in range(size)],
            recipe.rollout.sampling.temperature,
            faults,
            seed * 100_003 + step,
        )
        groups = [
            ScoredGroup(
                graded(t, played[n * size : (n + 1) * size], recipe, step, n, faults), scoring
            )
            for n, t in enumerate(tasks)
        ]
        samples, facts = samples_of(groups, attempt=1, version=step)
        measured = trainer.train(placed(samples))
        sampler.load_state_dict(models.policy.module.model.state_dict())
        rewards.append(facts.means(len(groups))["reward"])
        broken.append(fmean(p.broke for p in played))
        asked.append(fmean(not is_answer(p.texts[0]) for p in played))
        if step % 10 == 0:
            print(
                step,
                curve[-1],
                round(rewards[-1], 3),
                round(asked[-1], 3),
                round(broken[-1], 3),
                {k: v for k, v in measured.metrics.items() if "parity" in k},
                flush=True,
            )
    return {"held_out": curve, "reward": rewards, "asked": asked, "broken": broken}


def accuracy(player: Player, tasks: Sequence[Task], seed: int) -> float:
    played = player.play(tasks, 1.0, Faults(), seed)
    return fmean(_reward(task, p) for task, p in zip(tasks, played, strict=True))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Train with episodes that break.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--model", default="")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE")
    given = parser.parse_args(arguments)
    recipe = load_recipe(RECIPE)
    u = {}
    if given.model:
        u["model"] = recipe.model.model_copy(update={"path": given.model})
    if given.steps:
        u["training"] = recipe.training.model_copy(update={"steps": given.steps})
    if given.lr:
        u["optimizer"] = recipe.optimizer.model_copy(update={"learning_rate": given.lr})
    if given.temperature:
        u["rollout"] = recipe.rollout.model_copy(
            update={
                "sampling": recipe.rollout.sampling.model_copy(
                    update={"temperature": given.temperature}
                )
            }
        )
    recipe = recipe.model_copy(update=u)
    runs = json.loads(given.to.read_text()) if given.to.exists() else []
    there = {(run["way"], run["seed"]) for run in runs}
    torch.set_num_threads(1)
    init_ranks()
    for seed in given.seeds:
        for way in given.ways:
            if (way, seed) not in there:
                runs.append({"way": way, "seed": seed} | train(recipe, WAYS[way], seed))
                given.to.write_text(json.dumps(runs, indent=1) + "\n")
                print(way, seed, runs[-1]["held_out"])
    leave_ranks()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
