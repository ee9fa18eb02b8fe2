"""What broken episodes do to training: left out, as Weir does, or scored 0 as if they were wrong.

``python -m benchmarks.broken_episodes`` trains *sum, then check* in every way with several seeds,
keeps each result as soon as it is there (a run that is there already is not repeated), and prints
the table. Groups, their statistics, samples and updates are the learner's own; a small sampler
stands for rollouts, gateway and environment workers.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, cast

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
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.methods import interval
from examples.environments.sums import check, is_answer, reward
from services.learner.training.engine import init_ranks, leave_ranks
from services.learner.training.models import Models
from services.learner.training.samples import placed, samples_of
from services.learner.training.scoring import ScoredGroup, Scoring
from services.learner.training.trainer import Trainer

RECIPE = Path("examples/environments/sum-then-check.toml")
RESULTS = Path("benchmarks/broken_episodes.json")
STEPS, EVALUATE_EVERY = 40, 10

Json = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """Which episodes break after their first turn, and what becomes of them."""

    share: float = 0.0  # at random, of the calls of the tool
    of_all: bool = False  # of all episodes, whatever the policy does
    scores_zero: bool = False


# About half of the base model's episodes ask the tool: one in ten breaks, at first or throughout.
WAYS = {
    "none break": Way(),
    "tool, left out": Way(0.2),
    "tool, scored 0": Way(0.2, scores_zero=True),
    "all alike, left out": Way(0.1, of_all=True),
    "all alike, scored 0": Way(0.1, of_all=True, scores_zero=True),
}


@dataclass
class Played:
    """An episode: its tokens after the prompt, the policy's own and the tool's."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # 0 where not its own
    own: list[int] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    broke: bool = False

    @property
    def asks(self) -> bool:
        return not is_answer(self.turns[0])

    def add(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        self.ids += ids
        self.own += [int(logprobs is not None)] * len(ids)
        self.logprobs += [0.0] * len(ids) if logprobs is None else logprobs

    def reward(self, task: Task) -> float:
        return 0.0 if self.broke else reward(self.turns[-1], str(task.answer))


@dataclass(frozen=True)
class Player:
    """Plays many episodes at a time, with a copy of the policy."""

    model: Any
    tokenizer: Any
    max_tokens: int

    def play(self, tasks: Iterable[Task], way: Way, seed: int) -> list[Played]:
        torch.manual_seed(seed)
        rng = random.Random(seed)
        episodes = [Played(self.tokenizer(str(task.prompt)).input_ids) for task in tasks]
        self._turn(episodes)
        for episode in episodes:
            episode.broke = rng.random() < way.share and (way.of_all or episode.asks)
        checked = [each for each in episodes if each.asks and not each.broke]
        for episode in checked:
            said = check(episode.turns[0])
            episode.add(self.tokenizer(said, add_special_tokens=False).input_ids)
        self._turn(checked)
        return episodes

    @torch.inference_mode()
    def _turn(self, episodes: Sequence[Played]) -> None:
        rows = [[*each.prompt, *each.ids] for each in episodes]
        inputs = self.tokenizer.pad({"input_ids": rows}, padding_side="left", return_tensors="pt")
        how = {"do_sample": True, "top_k": 0, "max_new_tokens": self.max_tokens}
        told = {"return_dict_in_generate": True, "output_logits": True}
        output = self.model.generate(**inputs, **how, **told)
        sampled = output.sequences[:, inputs["input_ids"].shape[1] :]
        every = torch.stack(output.logits, dim=1).log_softmax(-1)
        logprobs = every.gather(-1, sampled[..., None])[..., 0].tolist()
        for episode, ids, of_ids in zip(episodes, sampled.tolist(), logprobs, strict=True):
            end = [*ids, self.tokenizer.eos_token_id].index(self.tokenizer.eos_token_id) + 1
            episode.add(ids[:end], of_ids[:end])
            episode.turns.append(self.tokenizer.decode(ids[:end], skip_special_tokens=True))


def graded(
    request: RolloutRequest, episodes: Sequence[Played], *, scores_zero: bool
) -> GradedGroup:
    """The group that an environment worker and a grader make of these episodes."""
    lost = [each.broke and not scores_zero for each in episodes]
    kept = [Played([]) if gone else p for p, gone in zip(episodes, lost, strict=True)]
    values = [each.reward(request.task) for each in episodes]

    def joined(parts: Iterable[Sequence[float]], dtype: type) -> np.ndarray:
        return np.array(list(chain.from_iterable(parts)), dtype)

    def response(played: Played, value: float, gone: bool) -> Response:
        span = VersionSpan(attempt=1, version=request.step, start=0, end=len(played.ids))
        return Response(
            text="\n\n".join(played.turns),
            finish_reason=FinishReason.STOP,
            spans=() if gone else (span,),
            episode=Episode(problem="episode_failed") if gone else Episode(reward=value),
        )

    outcomes = [
        Ungradable(reason="episode_failed") if gone else Graded(value=value)
        for value, gone in zip(values, lost, strict=True)
    ]
    group = RolloutGroup(
        request=request,
        prompt_ids=np.array(episodes[0].prompt, np.int32),
        token_ids=joined((each.ids for each in kept), np.int32),
        behavior_logprobs=joined((each.logprobs for each in kept), np.float32),
        own=joined((each.own for each in kept), np.uint8),
        lengths=np.array([len(each.ids) for each in kept], np.int32),
        responses=tuple(map(response, kept, values, lost)),
        sampling_seconds=0.0,
    )
    grades = tuple(Grade(outcome=outcome) for outcome in outcomes)
    return GradedGroup(purpose=Purpose.TRAIN, number=request.number, group=group, grades=grades)


def request_of(recipe: Recipe, task: Task, step: int, number: int) -> RolloutRequest:
    return RolloutRequest(
        job_id="job",
        attempt=1,
        step=step,
        number=number,
        purpose=Purpose.TRAIN,
        task=task,
        group_size=recipe.rollout.group_size,
        sampling=recipe.rollout.sampling,
        prompt_template=None,
        seed=0,
        in_environment=True,
    )


@dataclass
class Job:
    """A recipe that trains in this process, on episodes that break in some way."""

    recipe: Recipe
    way: Way
    seed: int

    def __post_init__(self) -> None:
        folder = Path(self.recipe.model.path)
        self.models = Models(self.recipe, folder, folder)
        self.trainer, self.scoring = Trainer(self.recipe, self.models), Scoring.of(self.recipe)
        self.player = Player(
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(),
            AutoTokenizer.from_pretrained(folder),
            self.recipe.rollout.sampling.max_tokens,
        )
        self.tasks, self.held_out = (
            read_tasks(Path(str(path)))
            for path in (self.recipe.tasks.train, self.recipe.tasks.held_out)
        )

    def run(self) -> Json:
        """Train to the end; held-out accuracy is that of a tool that never raises."""
        order = random.Random(self.seed)
        accuracy, asked, broken = [self.accuracy()], [], []
        for step in range(STEPS):
            tasks = order.sample(self.tasks, self.recipe.training.groups_per_step)
            played = self.step(step, tasks)
            asked.append(fmean(each.asks for each in played))
            broken.append(fmean(each.broke for each in played))
            if (step + 1) % EVALUATE_EVERY == 0:
                accuracy.append(self.accuracy())
        return {
            "accuracy": accuracy,
            "asked": fmean(asked[-5:]),
            "broken_first": fmean(broken[:5]),
            "broken": fmean(broken),
        }

    def step(self, step: int, tasks: Sequence[Task]) -> list[Played]:
        """Sample, train, and have the sampler follow."""
        size = self.recipe.rollout.group_size
        every = [task for task in tasks for _ in range(size)]
        played = self.player.play(every, self.way, self.seed * 100_003 + step)
        groups = []
        for number, task in enumerate(tasks):
            request = request_of(self.recipe, task, step, number)
            episodes = played[number * size :][:size]
            group = graded(request, episodes, scores_zero=self.way.scores_zero)
            groups.append(ScoredGroup(group, self.scoring))
        self.trainer.train(placed(samples_of(groups, attempt=1, version=step)[0]))
        self.player.model.load_state_dict(cast(Any, self.models.policy.module).model.state_dict())
        return played

    def accuracy(self) -> float:
        played = self.player.play(self.held_out, Way(), self.seed)
        return fmean(each.reward(task) for each, task in zip(played, self.held_out, strict=True))


def table(runs: Sequence[Json]) -> str:
    """A row per way, in Markdown: means over seeds with their 95 % intervals."""
    half = STEPS // EVALUATE_EVERY // 2
    columns: dict[str, Callable[[Json], float]] = {
        "broken at first": itemgetter("broken_first"),
        "broken in all": itemgetter("broken"),
        f"accuracy after {STEPS // 2}": lambda run: run["accuracy"][half],
        f"after {STEPS}": lambda run: run["accuracy"][-1],
        "ask the tool in the end": itemgetter("asked"),
    }
    rows = [f"| episodes | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for way in WAYS:
        of_way = [run for run in runs if run["way"] == way]
        told = [interval([of(run) for run in of_way], "{:.3f}".format) for of in columns.values()]
        rows.append(f"| {way} | {' | '.join(told)} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    """Train what is missing, print the table."""
    parser = argparse.ArgumentParser(description="Train with episodes that break.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE")
    given = parser.parse_args(arguments)
    runs: list[Json] = json.loads(given.to.read_text()) if given.to.exists() else []
    there = {(run["way"], run["seed"]) for run in runs}
    recipe = load_recipe(RECIPE)
    torch.set_num_threads(1)
    init_ranks()
    for seed in given.seeds:
        for way in [way for way in WAYS if (way, seed) not in there]:
            runs.append({"way": way, "seed": seed} | Job(recipe, WAYS[way], seed).run())
            given.to.write_text(json.dumps(runs, indent=1) + "\n")
            print(f"{way}, seed {seed}: {runs[-1]['accuracy'][-1]:.3f}", file=sys.stderr)
    leave_ranks()
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
