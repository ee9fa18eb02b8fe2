"""Recipe: what to learn, from which tasks, by which algorithm.

A recipe is a TOML file and a message: it is validated where it enters, sent through the API, and
stored with the job. Unknown keys are refused. Where things run is not in here: that is deployment,
and comes from the environment.
"""

from __future__ import annotations

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

AdvantageName = Literal["grpo", "papo"]
ObjectiveName = Literal["clip"]
AggregationName = Literal["token_mean"]
VerifierName = Literal["math_answer", "equation_steps"]


class Purpose(StrEnum):
    """Why a group is asked for. Each purpose has its own ledger."""

    TRAIN = "train"
    EVAL = "eval"


class Table(BaseModel):
    """A table of the recipe; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Model(Table):
    """The model to start from, and how a task becomes its prompt."""

    path: str = Field(min_length=1, description="a Hugging Face folder, or a hub id")
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    prompt_template: str | None = Field(
        default=None,
        description="plain template with {prompt}; without one the model's chat template is used",
    )
    max_context: int = Field(default=4096, ge=2, description="prompt and response, in tokens")

    @model_validator(mode="after")
    def _template_has_a_place(self) -> Self:
        if self.prompt_template is not None and "{prompt}" not in self.prompt_template:
            raise ValueError("prompt_template must contain {prompt}")
        return self


class Tasks(Table):
    """The task files: paths in a recipe file, ids of uploaded files in a submitted recipe."""

    train: str = Field(min_length=1)
    held_out: str | None = None


class Sampling(Table):
    """How one response is sampled."""

    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(ge=1)
    stop: tuple[str, ...] = ()


class Rollout(Table):
    """How a group is sampled during training."""

    group_size: int = Field(default=8, ge=1)
    sampling: Sampling
    kv_after_sync: Literal["recompute", "keep"] = "recompute"


class Reward(Table):
    """Which verifier says what is right, and which one scores how it was reached."""

    outcome: VerifierName = "math_answer"
    process: VerifierName | None = None
    max_ungradable: float = Field(default=0.05, ge=0, le=1)


class Algorithm(Table):
    """Advantage, objective and aggregation, each picked by name from the learner's tables."""

    advantage: AdvantageName = "papo"
    lambda_process: float = Field(default=1.0, ge=0)
    objective: ObjectiveName = "clip"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    aggregation: AggregationName = "token_mean"


class Training(Table):
    """How long, how much at a time, and how stale the data may be."""

    steps: int = Field(ge=1)
    groups_per_step: int = Field(default=16, ge=1)
    updates_per_batch: int = Field(default=1, ge=1, description="optimizer steps per batch")
    max_staleness: int = Field(default=1, ge=0, description="0 is on-policy")
    micro_batch_tokens: int = Field(default=16384, ge=1)
    checkpoint_every: int = Field(default=10, ge=1)
    seed: int = 0

    @model_validator(mode="after")
    def _updates_divide_the_groups(self) -> Self:
        if self.updates_per_batch > self.groups_per_step:
            raise ValueError("updates_per_batch must be at most groups_per_step")
        return self


class Optimizer(Table):
    """AdamW with a linear warm-up to a constant learning rate."""

    learning_rate: float = Field(default=1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=0, ge=0, description="in optimizer updates")
    max_grad_norm: float = Field(default=1.0, gt=0)
    zero_stage: Literal[0, 1, 2, 3] = 1


class Evaluation(Table):
    """Accuracy on the held-out file before and after training, and every so many steps."""

    samples: int = Field(default=4, ge=1, description="responses per task")
    tasks: int | None = Field(default=None, ge=1, description="only the first so many tasks")
    sampling: Sampling | None = Field(default=None, description="without: as in training")
    every: int | None = Field(default=None, ge=1)


class Recipe(Table):
    """What to learn. See ``recipes/`` for runnable ones."""

    name: str = Field(min_length=1, max_length=64)
    model: Model
    tasks: Tasks
    rollout: Rollout
    reward: Reward = Reward()
    algorithm: Algorithm = Algorithm()
    training: Training
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation | None = None

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.algorithm.advantage == "papo" and self.reward.process is None:
            raise ValueError("algorithm.advantage = 'papo' needs reward.process, a rubric verifier")
        if self.evaluation is not None and self.tasks.held_out is None:
            raise ValueError("evaluation needs tasks.held_out, a file of held-out tasks")
        if self.rollout.sampling.max_tokens >= self.model.max_context:
            raise ValueError("rollout.sampling.max_tokens must be below model.max_context")
        return self

    @property
    def groups_in_flight(self) -> int:
        """At most so many training groups are asked for and not yet trained."""
        return (self.training.max_staleness + 1) * self.training.groups_per_step

    @property
    def evaluation_sampling(self) -> Sampling:
        """How evaluation responses are sampled."""
        if self.evaluation is not None and self.evaluation.sampling is not None:
            return self.evaluation.sampling
        return self.rollout.sampling


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names each field and what is wrong with it."""


def explain(error: ValidationError, whole: str = "recipe") -> str:
    """One line per problem: the field's dotted name, or ``whole``, and what is wrong with it."""
    lines: list[str] = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"]) or whole
        if problem["type"] == "extra_forbidden":
            lines.append(f"{field}: unknown key; remove it or check its spelling")
        elif problem["type"] == "missing":
            lines.append(f"{field}: required, but missing")
        else:
            lines.append(f"{field}: {problem['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


def parse_recipe(data: object) -> Recipe:
    """Validate plain data as a recipe.

    Raises:
        RecipeError: naming each wrong field.
    """
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(explain(error)) from error


def load_recipe(path: Path) -> Recipe:
    """Read a recipe from a TOML file.

    Raises:
        RecipeError: if the file is missing, is not TOML, or is not a recipe.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: no such file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    try:
        return parse_recipe(data)
    except RecipeError as error:
        raise RecipeError(f"{path}:\n{error}") from error
