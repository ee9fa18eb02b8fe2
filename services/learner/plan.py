"""``weir plan RECIPE``: what a recipe means with all its defaults, and what it takes to run.

Nothing is loaded, downloaded or sent. Exit status: 0, or 2 if the recipe or an option is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from protocol.capacity import responses_in_flight, worst_case_bytes, worst_case_in_words
from protocol.recipe import Recipe, RecipeError, load_recipe

from services.chassis.deployment import Deployment, DeploymentError
from services.learner.footprint import (
    GIB,
    LearnerFootprint,
    RolloutFootprint,
    learner_footprint,
    rollout_footprint,
)
from services.learner.model_shape import ModelShape
from services.learner.plan_view import ASSUMPTION, defaults_of, show
from services.learner.plan_warnings import warnings
from services.learner.provisions import ModelProvision, TasksProvision, models_of, tasks_of

T = TypeVar("T", int, float)
_LEARNER_SHARE = 0.9  # the rest is for CUDA, NCCL and what the allocator cannot use
_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 2**10, "m": 10**6, "mb": 2**20, "g": 10**9, "gb": GIB}
MOST = 2**20  # GPUs, or GiB of one, or of anything: what is above is a mistake
_LARGEST_REDIS = 2**63
BAD_INPUT = 2


class PlanError(ValueError):
    """An option or a variable that cannot be used; the text names it."""


@dataclass(frozen=True)
class Machine:
    """Where the job would run."""

    learner_gpus: int
    rollout_gpus: int
    gpus_per_engine: int
    gpu_bytes: int
    engine_share: float  # of a GPU that samples
    engine_sequences: int  # sampled at the same time by one engine
    redis_bytes: int
    model_roots: tuple[Path, ...]
    model_hub: bool
    engine_cache_bytes: int = 0  # of keys and values on each GPU; 0: what the share leaves

    @property
    def learner_bytes(self) -> int:
        """What the learner may use of each of its GPUs."""
        return int(self.gpu_bytes * _LEARNER_SHARE)

    @property
    def engine_bytes(self) -> int:
        """What an engine may use of each of its GPUs: its share, or all if its cache has a size."""
        share = 1.0 if self.engine_cache_bytes else self.engine_share
        return int(self.gpu_bytes * share)

    @property
    def num_engines(self) -> int:
        """How many engines sample; a model is split over the GPUs of one."""
        return max(1, self.rollout_gpus // self.gpus_per_engine)


@dataclass(frozen=True)
class Plan:
    """What a recipe takes on a machine; footprints are missing where the model is not known."""

    recipe: Recipe
    machine: Machine
    models: tuple[ModelProvision, ...]
    tasks: tuple[TasksProvision, ...]
    learner: LearnerFootprint | None = None
    rollout: RolloutFootprint | None = None

    @property
    def shapes(self) -> tuple[ModelShape | None, ModelShape | None]:
        """Of the policy and of the critic."""
        return self.models[0].shape, self.models[1].shape if len(self.models) > 1 else None

    @property
    def num_held_out(self) -> int:
        """Tasks of the held-out file; where it is missing, as many as the recipe wants of it."""
        for tasks in self.tasks:
            if tasks.role == "held_out" and tasks.num_tasks is not None:
                return tasks.num_tasks
        evaluation = self.recipe.evaluation
        return (evaluation.tasks or 0) if evaluation is not None else 0

    @property
    def redis_bytes(self) -> int:
        """What the job may hold in Redis at worst."""
        return worst_case_bytes(self.recipe, self.num_held_out)

    def as_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        recipe, training = self.recipe, self.recipe.training
        learner = self.learner and asdict(self.learner) | {"peak": self.learner.peak}
        return {
            "recipe": recipe.model_dump(mode="json"),
            "defaults": sorted(defaults_of(recipe)),
            "assumption": ASSUMPTION,
            "machine": asdict(self.machine) | {"learner_bytes": self.machine.learner_bytes},
            "models": [asdict(model) for model in self.models],
            "tasks": [asdict(tasks) for tasks in self.tasks],
            "learner": learner,
            "rollout": self.rollout and asdict(self.rollout),
            "redis": {
                "bytes": self.redis_bytes,
                "formula": worst_case_in_words(recipe, self.num_held_out),
            },
            "in_flight": {
                "groups": recipe.groups_in_flight,
                "responses": responses_in_flight(recipe),
            },
            "staleness": {"min": 0, "max": training.max_staleness},
            "tokens_per_step": tokens_per_step(recipe),
            "warnings": warnings(self),
        }


def tokens_per_step(recipe: Recipe) -> int:
    """Response tokens of a training step at most."""
    responses = recipe.training.groups_per_step * recipe.rollout.group_size
    return responses * recipe.rollout.sampling.max_tokens


def make_plan(recipe: Recipe, machine: Machine) -> Plan:
    """Look for what the recipe needs, and compute what it takes."""
    plan = Plan(
        recipe=recipe,
        machine=machine,
        models=tuple(models_of(recipe, machine.model_roots, hub=machine.model_hub)),
        tasks=tuple(tasks_of(recipe)),
    )
    policy, critic = plan.shapes
    if policy is None or (recipe.critic is not None and critic is None):
        return plan
    return replace(
        plan,
        learner=learner_footprint(recipe, policy, critic, machine.learner_gpus),
        rollout=_rollout(recipe, policy, machine),
    )


def _rollout(recipe: Recipe, policy: ModelShape, machine: Machine) -> RolloutFootprint:
    share = math.ceil(responses_in_flight(recipe) / machine.num_engines)
    return rollout_footprint(
        recipe,
        policy,
        num_gpus=machine.gpus_per_engine,
        gpu_bytes=machine.engine_bytes,
        cache_bytes=machine.engine_cache_bytes,
        responses=min(machine.engine_sequences, share),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        plan = make_plan(load_recipe(Path(given.recipe)), machine_of(given))
    except (RecipeError, PlanError) as error:
        print(f"weir: {error}", file=sys.stderr)
        return BAD_INPUT
    if given.json:
        print(json.dumps(plan.as_json(), indent=1, default=str))
    else:
        show(plan)
    return 0


def machine_of(given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Machine:
    """The machine of the options; what they leave open is as the deployment has it.

    Raises:
        PlanError: naming the variable or option that is wrong.
    """

    read = _Variables(environment)
    gpus_per_engine = read("WEIR_ROLLOUT_GPUS", int, "1")
    rollout_gpus = given.rollout_gpus or read("WEIR_ROLLOUTS", int, "1") * gpus_per_engine
    if rollout_gpus % gpus_per_engine:
        raise PlanError(
            f"--rollout-gpus {rollout_gpus}: not a multiple of WEIR_ROLLOUT_GPUS={gpus_per_engine}"
        )
    deployment = _deployment(environment)
    return Machine(
        learner_gpus=given.learner_gpus or read("WEIR_LEARNER_RANKS", int, "1"),
        rollout_gpus=rollout_gpus,
        gpus_per_engine=gpus_per_engine,
        gpu_bytes=int(given.gpu_memory * GIB),
        engine_share=read("WEIR_ROLLOUT_GPU_MEMORY", float, "0.9", most=1.0),
        engine_sequences=read("WEIR_ROLLOUT_MAX_SEQUENCES", int, "256"),
        redis_bytes=read("WEIR_REDIS_MAXMEMORY", redis_size, "1gb", most=_LARGEST_REDIS),
        model_roots=deployment.model_roots,
        model_hub=deployment.model_hub,
        engine_cache_bytes=read("WEIR_ROLLOUT_KV_CACHE_MIB", int, "0", least=0) * 2**20,
    )


@dataclass(frozen=True)
class _Variables:
    environment: Mapping[str, str]

    def __call__(
        self,
        name: str,
        parse: Callable[[str], T],
        default: str,
        *,
        least: int | None = None,
        most: float = MOST,
    ) -> T:
        """The number of a variable: above 0, or from ``least`` on, and at most ``most``."""
        text = self.environment.get(name) or default
        try:
            value = parse(text)
        except ValueError as error:
            raise PlanError(f"{name}={text!r}: give a number, such as {default}") from error
        in_range = 0 < value <= most if least is None else least <= value <= most
        if not in_range:
            lower = "above 0" if least is None else f"at least {least}"
            raise PlanError(f"{name}={text!r}: must be {lower} and at most {most:,}")
        return value


def _deployment(environment: Mapping[str, str]) -> Deployment:
    """Where the models are, by the job's own rules; what a plan does not need may be missing."""
    unused = {"WEIR_REDIS_URL": "redis://", "WEIR_DATA_DIR": ".", "WEIR_PORT": "0"}
    try:
        return Deployment.from_environment(unused | dict(environment))
    except DeploymentError as error:
        raise PlanError(str(error)) from error


def redis_size(text: str) -> int:
    """A number of bytes as Redis writes it.

    >>> redis_size("2mb"), redis_size("5")
    (2097152, 5)
    """
    match = re.fullmatch(r"(\d+)([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(text)
    return int(match[1]) * _UNITS[match[2]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir plan", description="Show what a recipe takes to run; nothing is started."
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("--json", action="store_true", help="machine-readable, sizes in bytes")
    parser.add_argument(
        "--learner-gpus", type=_positive(int), metavar="N", help="else WEIR_LEARNER_RANKS, else 1"
    )
    parser.add_argument(
        "--rollout-gpus",
        type=_positive(int),
        metavar="N",
        help="else WEIR_ROLLOUTS x WEIR_ROLLOUT_GPUS, else 1",
    )
    parser.add_argument(
        "--gpu-memory", type=_positive(float), default=80.0, metavar="GIB", help="of a GPU (80)"
    )
    return parser


def _positive(parse: Callable[[str], T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        try:
            value = parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
        if not 0 < value <= MOST:
            raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {MOST:,}")
        return value

    return read


if __name__ == "__main__":
    sys.exit(main())
