"""A plan: a recipe, the machine it would run on, its files, memory and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import constants
from protocol.capacity import worst_case_bytes
from protocol.model_folder import CONFIG, has_config, has_weights, read_config
from protocol.recipe import Recipe
from protocol.tasks import TaskFileError, read_tasks

from services.learner.model_source import folder_under_roots
from services.learner.planning.footprint import (
    Item,
    LearnerFootprint,
    RolloutFootprint,
    decide_recomputation,
    fit_to_cpus,
    learner_footprint,
    rollout_footprint,
    total,
    trained_models,
)
from services.learner.planning.machine import Machine
from services.learner.planning.seconds import Estimate, Span
from services.learner.planning.shapes import (
    BUILT_IN,
    ModelShape,
    UnknownModel,
    shape_from_config,
    split_problems,
)

Measure = Callable[[Path], ModelShape]


@dataclass(frozen=True)
class ModelFiles:
    role: str  # policy or critic
    path: str  # as in the recipe
    folder: Path | None = None  # None: a job would not find the model on this machine
    shape: ModelShape | None = None
    shape_source: str = "from the built-in table"  # or why the shape is unknown
    problem: str | None = None  # why a job would refuse the folder


@dataclass(frozen=True)
class TaskFile:
    field: str  # of the recipe
    path: str
    num_tasks: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Plan:
    """The memory and time of a recipe on a machine.

    Footprints need the shapes of all models. Seconds also need a table of the GPU's speed for the
    dtype, so there are none on CPUs, for float32, or where the job does not fit.
    """

    recipe: Recipe
    machine: Machine
    models: tuple[ModelFiles, ...]
    tasks: tuple[TaskFile, ...]
    learner: LearnerFootprint | None = None
    rollout: RolloutFootprint | None = None
    seconds: tuple[Span, ...] = ()  # the parts of a step, the step, the run
    problems: tuple[str, ...] = ()  # of models that were tried
    remarks: tuple[str, ...] = ()  # on models, prompts and memory

    @property
    def shapes(self) -> tuple[ModelShape | None, ModelShape | None]:
        """The policy's and the critic's."""
        return self.models[0].shape, self.models[1].shape if len(self.models) > 1 else None

    @property
    def learner_fits(self) -> bool:
        machine = self.machine
        if self.recipe.only_evaluates:
            return True
        return self.learner is not None and self.learner.fits(
            machine.learner_bytes, machine.learner_bytes_at_rest
        )

    @property
    def host(self) -> tuple[Item, ...]:
        """The memory that the job takes of a node."""
        learner = self.learner
        rollout = self.rollout
        machine = self.machine
        if learner is None or rollout is None:
            return ()
        ranks = machine.placement.num_ranks
        engines = len(machine.placement.rollouts)
        if machine.takes_turns:
            asleep = engines * machine.gpus_per_engine * rollout.weights.bytes
            return *learner.host, Item("engines asleep", asleep, f"weights of {engines}")
        if not machine.on_cpus:
            return learner.host
        engine = rollout.weights.bytes + machine.engine_cache_bytes
        return (
            *learner.host,
            Item("ranks of the learner", ranks * learner.peak, f"{ranks} x its peak"),
            Item("engines", engines * engine, f"{engines} x weights, keys and values"),
        )

    @property
    def host_fits(self) -> bool:
        return total(self.host) <= self.machine.usable_host_bytes

    @property
    def engine_fits(self) -> bool:
        """Whether the smallest engine holds its weights and a response of full length."""
        if self.rollout is None or not self.rollout.responses_held:
            return False
        engine_bytes = self.rollout.weights.bytes + self.machine.engine_cache_bytes
        return engine_bytes <= self.machine.engine_bytes

    @property
    def split_problems(self) -> list[str]:
        policy = self.shapes[0]
        if policy is None:
            return []
        placement = self.machine.placement
        return list(split_problems(placement, policy.heads, policy.key_value_heads))

    @property
    def works(self) -> bool:
        fits = self.learner_fits and self.host_fits and self.engine_fits
        return fits and not self.split_problems

    @property
    def held_out(self) -> dict[str, int]:
        """Tasks of each evaluation: those in its file, or in the recipe if the file is missing."""
        counts = {tasks.path: tasks.num_tasks for tasks in self.tasks}
        return {
            name: counts.get(self.recipe.held_out_files[name]) or evaluation.tasks or 0
            for name, evaluation in self.recipe.evaluations.items()
        }

    @property
    def redis_bytes(self) -> int:
        return worst_case_bytes(self.recipe, self.held_out)


def make_plan(recipe: Recipe, machine: Machine, measure: Measure | None = None) -> Plan:
    """Find the files of a recipe, and compute its memory and time.

    Args:
        measure: returns the shape of a model of another family than Llama and Qwen, or raises
            ValueError.
    """
    files = tuple(_find_models(recipe, machine, measure))
    plan = Plan(recipe, machine, files, tuple(_read_task_files(recipe)))
    policy, critic = plan.shapes
    if policy is None or (recipe.critic is not None and critic is None):
        return plan
    if machine.on_cpus:
        smaller = fit_to_cpus(recipe, policy, critic, machine)
        tokens = smaller.training.micro_batch_tokens
        if tokens != recipe.training.micro_batch_tokens:
            remark = (
                f"micro-batches will have at most {tokens:,} tokens: more do not fit into the "
                "memory"
            )
            plan = replace(plan, remarks=(remark,))
        recipe = smaller
    num_ranks = machine.placement.num_ranks
    ranks_on_node = machine.ranks_of_node

    def fits(recipe: Recipe) -> bool:
        footprint = learner_footprint(recipe, policy, critic, num_ranks, ranks_on_node)
        return footprint.fits(machine.learner_bytes, machine.learner_bytes_at_rest)

    if recipe.only_evaluates:
        return replace(plan, rollout=rollout_footprint(recipe, policy, machine))
    recipe = decide_recomputation(recipe, fits)
    plan = replace(plan, recipe=recipe)
    rollout = rollout_footprint(recipe, policy, machine)
    learner = learner_footprint(recipe, policy, critic, num_ranks, ranks_on_node)
    plan = replace(plan, learner=learner, rollout=rollout)
    is_counted = any(shape is not None and shape.counted for shape in plan.shapes)
    if machine.on_cpus or recipe.model.dtype == "float32" or not plan.works or is_counted:
        return plan
    models = trained_models(recipe, policy, critic, num_ranks, ranks_on_node)
    estimate = Estimate(recipe, models, machine, rollout)
    return replace(plan, seconds=estimate.spans(plan.held_out))


def _find_models(recipe: Recipe, machine: Machine, measure: Measure | None) -> Iterator[ModelFiles]:
    """Find the policy, and the critic if the recipe has one, as a job does."""
    sources = [("policy", "model.path", recipe.model.path)]
    if recipe.critic is not None:
        path = recipe.critic.path
        field = "model.path" if path is None else "critic.path"
        sources.append(("critic", field, path or recipe.model.path))
    for role, field, path in sources:
        folder = problem = None
        try:
            folder = folder_under_roots(path, machine.model_roots, field)
            if folder is None and machine.model_hub:
                folder = _find_download(path)
        except (OSError, ValueError) as error:
            problem = str(error)
        if folder is not None:
            yield ModelFiles(role, path, folder, *_read_shape(folder, measure))
        elif path in BUILT_IN:
            yield ModelFiles(role, path, shape=BUILT_IN[path], problem=problem)
        else:
            reason = f"not on this machine, and not in the built-in table ({', '.join(BUILT_IN)})"
            yield ModelFiles(role, path, shape_source=reason, problem=problem)


def _read_shape(folder: Path, measure: Measure | None) -> tuple[ModelShape | None, str]:
    """Return the shape and its source, or None and why it is unknown."""
    try:
        return shape_from_config(read_config(folder)), "its config.json"
    except UnknownModel as error:
        problem: ValueError = error
    except (OSError, ValueError) as error:
        return None, f"{folder / CONFIG} cannot be read: {error}"
    if measure is not None:
        try:
            return measure(folder), "its parameters, counted; all else as of a Llama of its size"
        except ValueError as error:
            problem = error
    return None, f"{folder / CONFIG}: {problem}"


def _find_download(path: str) -> Path | None:
    """Find a complete model in the cache of `huggingface_hub`."""
    cache = Path(constants.HF_HUB_CACHE) / f"models--{path.replace('/', '--')}"
    snapshots = sorted(cache.glob("snapshots/*"))
    complete = (folder for folder in snapshots if has_config(folder) and has_weights(folder))
    return next(complete, None)


def _read_task_files(recipe: Recipe) -> Iterator[TaskFile]:
    """Read and check the task files; paths are relative to the current directory."""
    for field, path in recipe.task_fields.items():
        try:
            yield TaskFile(field, path, len(read_tasks(Path(path))))
        except TaskFileError as error:
            cause = error.__cause__
            problem = cause.strerror if isinstance(cause, OSError) else error.problems[0]
            yield TaskFile(field, path, problem=problem)
