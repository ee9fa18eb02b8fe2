"""Recipe: what to learn, from which tasks, by which algorithm.

A recipe is a TOML file and a message: it is validated where it enters, sent through the API, and
stored with the job. Unknown keys are refused. Where things run is not in here: that is deployment,
and comes from the environment; a recipe only names a machine on which it fits.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from protocol.names import (
    CORRECTIONS,
    CRITIC_ADVANTAGES,
    GROUP_ADVANTAGES,
    OBJECTIVES,
    AdvantageName,
    AggregationName,
    CorrectionName,
    DivergenceName,
    Formula,
    ObjectiveName,
    PathText,
    StopText,
    Table,
    TemplateOptions,
)
from protocol.rewards import Reward

_FORMULAS = {
    "advantage": GROUP_ADVANTAGES | CRITIC_ADVANTAGES,
    "objective": OBJECTIVES,
    "correction": CORRECTIONS,
}
MOST_STEPS = 10**9  # of a client, which says when it ends
MOST_RESPONSES = 16384  # that vLLM samples to one prompt
_OF_A_FILE = ("extends", "without")
_MAX_REFILL = 4  # dynamic sampling has at most so many times the groups in flight

Tables = dict[str, Any]


class Purpose(StrEnum):
    """Why a group is asked for. Each purpose has its own ledger."""

    PRETRAIN = "pretrain"  # for the critic, before the policy moves
    TRAIN = "train"
    EVAL = "eval"


class Lora(Table):
    """An adapter of low rank is trained, and the model's own weights stay (arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1, le=512, description="of the adapter's matrices")
    alpha: float = Field(default=32.0, gt=0, description="the adapter is scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        default=(), description='linear layers, such as "q_proj"; none given: all but the head'
    )
    merge: bool = Field(
        default=False,
        description="the result is the merged model, which other jobs can start from",
    )


class Model(Table):
    """The model that training starts from, and how a task becomes a prompt."""

    path: PathText = Field(
        min_length=1, description="a Hugging Face folder below `WEIR_MODEL_ROOTS`, or a hub id"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="bfloat16", description="of the weights, in learner and engine"
    )
    prompt_template: str | None = Field(
        default=None,
        description="a text with {prompt} in it; none: the model's chat template",
    )
    chat_template_options: TemplateOptions = Field(
        default_factory=dict[str, bool | int | str],
        description="variables of the chat template, such as `enable_thinking = false`",
    )
    max_context: int = Field(default=4096, ge=2, description="tokens of prompt and response")
    lora: Lora | None = Field(default=None, description="train an adapter; none: all weights")

    @model_validator(mode="after")
    def _template_has_a_place(self) -> Self:
        if self.prompt_template is not None and "{prompt}" not in self.prompt_template:
            raise ValueError("prompt_template must contain {prompt}")
        return self

    @model_validator(mode="after")
    def _options_have_a_chat_template(self) -> Self:
        if self.chat_template_options and self.prompt_template is not None:
            raise ValueError(
                "chat_template_options do nothing where prompt_template is set; remove one of them"
            )
        return self


class Tasks(Table):
    """The task files: paths in a recipe file, ids of uploaded files in a submitted recipe."""

    train: PathText = Field(min_length=1, description="the tasks to train on")
    held_out: PathText | None = Field(default=None, description="the tasks to evaluate on")


class Sampling(Table):
    """How one response is sampled."""

    temperature: float = Field(
        default=1.0, gt=0, description="log-probs are those at this temperature"
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="below 1 in evaluations only")
    max_tokens: int = Field(
        ge=1, description="of a response, or of each turn of an episode; below `model.max_context`"
    )
    stop: tuple[StopText, ...] = Field(
        default=(), max_length=16, description="texts that end a response, at most 16"
    )


class Evaluation(Table):
    """Accuracy on held-out tasks, before the first step and after the last."""

    samples: int = Field(default=4, ge=1, le=MOST_RESPONSES, description="responses per task")
    tasks: int | None = Field(default=None, ge=1, description="only the first tasks of the file")
    sampling: Sampling | None = Field(default=None, description="none: as in training")
    every: int | None = Field(default=None, ge=1, description="also evaluate every this many steps")


class OtherEvaluation(Evaluation):
    """The same on a further file of held-out tasks."""

    held_out: PathText = Field(min_length=1, description="a path, or the id of an uploaded file")


class Evaluations(Evaluation):
    """Evaluations on ``tasks.held_out`` and on further files, before and after training."""

    others: Mapping[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")], OtherEvaluation] = (
        Field(default_factory=dict, description="further evaluations by name")
    )


class Rollout(Table):
    """How a group is sampled during training."""

    group_size: int = Field(
        default=8, ge=1, le=MOST_RESPONSES, description="responses to each task"
    )
    sampling: Sampling = Field(description="how each response is sampled")
    kv_after_sync: Literal["recompute", "keep"] = Field(
        default="recompute", description="the KV cache of unfinished responses when weights change"
    )


class Environment(Table):
    """Where responses are episodes of several turns, with tools or an environment between them."""

    taskset: str | None = Field(
        default=None,
        min_length=1,
        description="a taskset of `verifiers`, by the name of its package or module",
    )
    url: str | None = Field(
        default=None, pattern=r"^(https?|wss?)://", description="an OpenEnv server"
    )
    command: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None,
        min_length=1,
        description="an agent that speaks to `OPENAI_BASE_URL`; its last line is the reward",
    )
    settings: Mapping[str, JsonValue] = Field(
        default_factory=dict, description="of the taskset, or of the OpenEnv server's reset"
    )
    max_turns: int = Field(default=10, ge=1, description="responses of the policy in an episode")
    episode_timeout_s: float = Field(
        default=600.0,
        gt=0,
        le=86400,
        description="of an episode, all its tries included, and no calls of the model",
    )
    concurrency: int = Field(
        default=64, ge=1, le=4096, description="episodes at a time in each environment worker"
    )
    retries: int = Field(default=1, ge=0, le=10, description="of an episode that breaks")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(each is not None for each in (self.taskset, self.url, self.command)) != 1:
            raise ValueError("give exactly one of taskset, url and command")
        if self.settings and self.command is not None:
            raise ValueError("settings: a command reads none; give it arguments")
        return self


class Client(Table):
    """Where a client gives the steps, operation by operation: the job is its session."""

    silent_s: float = Field(
        default=60.0, gt=0, description="without a sign of the client, then the job is paused"
    )


class Algorithm(Table):
    """How rewards become an update: formulas by name, and their settings.

    ``services/learner/algorithms`` holds the formulas; an entry takes the settings it names.
    """

    advantage: AdvantageName = Field(default="papo", description="a formula of recipe.md")
    lambda_process: float = Field(default=1.0, ge=0, description="weight of PAPO's process term")
    ddof: Literal[0, 1] = Field(
        default=1, description="1: standard deviation of a sample; 0: of a population"
    )
    denominator: Literal["add", "max"] = Field(
        default="add", description="divide by std + `std_eps`, or by max(std, `std_eps`)"
    )
    std_eps: float = Field(default=1e-6, gt=0, description="keeps the division finite")
    gamma: float = Field(default=1.0, gt=0, le=1, description="discount of GAE")
    lambda_actor: float = Field(
        default=0.95, ge=0, le=1, description="lambda of the policy's advantages"
    )
    lambda_critic: float = Field(
        default=1.0, ge=0, le=1, description="lambda of the critic's targets"
    )
    length_alpha: float = Field(default=0.05, gt=0, description="lambda is 1 - 1 / (this × length)")
    whiten: bool = Field(
        default=False, description="advantages to mean 0, variance 1 over a step's tokens"
    )

    objective: ObjectiveName = Field(default="clip", description="a formula of recipe.md")
    clip_low: float = Field(
        default=0.2,
        gt=0,
        description="the ratio is clipped at 1 - this (`gmpo`: its logarithm at -this; `dppo` and "
        "`ipo`: a probability may fall by this)",
    )
    clip_high: float = Field(default=0.28, gt=0, description="and at 1 + this; likewise")
    dual_clip: float = Field(default=3.0, gt=1, description="bound for negative advantages")
    tau_positive: float = Field(
        default=1.0, gt=0, description="steepness of SAPO's gate for positive advantages"
    )
    tau_negative: float = Field(default=1.05, gt=0, description="and for the others")
    old_logprobs: Literal["rollout", "recompute"] = Field(
        default="rollout", description="the log-probs that the ratio is taken against"
    )
    correction: CorrectionName = Field(default="none", description="a formula of recipe.md")
    correction_cap: float = Field(default=2.0, gt=0, description="largest importance weight")
    correction_floor: float = Field(
        default=0.0, ge=0, description="smallest importance weight that is not masked"
    )

    aggregation: AggregationName = Field(default="token_mean", description="a formula of recipe.md")
    divergence: DivergenceName = Field(default="k3", description="a formula of recipe.md")
    divergence_weight: float = Field(
        default=0.0,
        ge=0,
        description="of the KL to the starting model; above 0 that is kept as well",
    )
    entropy_weight: float = Field(default=0.0, ge=0, description="of the entropy bonus")
    positive_lm_weight: float = Field(
        default=0.0, ge=0, description="of the NLL of correct responses (mu of VAPO)"
    )

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.correction != "none" and self.old_logprobs != "recompute":
            raise ValueError(
                f"correction = {self.correction!r} weighs recomputed against sampled log-probs; "
                "set old_logprobs = 'recompute'"
            )
        if self.correction_floor >= self.correction_cap:
            raise ValueError("correction_floor must be below correction_cap")
        if self.objective in {"clip", "dual_clip"} and self.clip_low >= 1:
            raise ValueError(f"clip_low must be below 1 for objective = {self.objective!r}")
        return self

    @model_validator(mode="after")
    def _no_setting_is_idle(self) -> Self:
        """A setting that changes nothing misleads whoever reads the recipe."""
        for part, formulas in _FORMULAS.items():
            chosen = formulas.get(getattr(self, part))
            for setting in {name: None for formula in formulas.values() for name in formula.takes}:
                if chosen and setting not in chosen.takes and self._differs(setting):
                    takers = (repr(name) for name, f in formulas.items() if setting in f.takes)
                    raise ValueError(
                        f"{setting} does nothing with {part} = {getattr(self, part)!r}; remove it, "
                        f"or choose {' or '.join(takers)}"
                    )
        if self._differs("divergence") and self.divergence_weight == 0:
            raise ValueError("divergence does nothing while divergence_weight is 0; remove it")
        return self

    def _differs(self, setting: str) -> bool:
        return getattr(self, setting) != type(self).model_fields[setting].default


class Training(Table):
    """How many steps, of how much data, and how stale the data may be."""

    steps: int = Field(ge=1, description="training steps of the job")
    groups_per_step: int = Field(default=16, ge=1, description="tasks in a step")
    updates_per_batch: int = Field(default=1, ge=1, description="optimizer updates in a step")
    max_staleness: int = Field(
        default=1,
        ge=0,
        description="versions that the weights of a token may lag behind; 0: on-policy",
    )
    dynamic_sampling: bool = Field(
        default=False, description="replace groups whose advantages are all 0"
    )
    max_oversampling: float = Field(
        default=10.0,
        ge=1,
        description="dynamic sampling looks at most at this many times the groups",
    )
    max_failed: float = Field(
        default=0.5, ge=0, le=1, description="the job pauses above this share of failed groups"
    )
    max_parity: float | None = Field(
        default=None,
        gt=0,
        description="the job pauses where the log-probs of a rollout differ by more on average; "
        "none: by `model.dtype` and the first versions",
    )
    on_nonfinite: Literal["skip", "pause"] = Field(
        default="skip",
        description="after an update is left out for a loss or gradient that is not finite",
    )
    micro_batch_tokens: int = Field(
        default=16384,
        ge=1,
        description="of a forward pass, per rank; a longer sample goes alone. On CPUs fewer, "
        "where the memory needs it",
    )
    logprob_chunk_tokens: int = Field(
        default=1024, ge=1, description="tokens whose logits exist at once"
    )
    sequence_parallel: int = Field(
        default=1, ge=1, description="ranks that share each sample, for contexts of 32k and more"
    )
    checkpoint_every: int = Field(default=10, ge=1, description="steps between checkpoints")
    recompute_activations: bool = Field(
        default=False, description="in the backward pass: less memory, a third more time"
    )
    compile_layers: bool = Field(
        default=False,
        description="and log-probs, by torch.compile: faster steps on a GPU, minutes to begin",
    )
    flash_attention: Literal[2, 3] = Field(
        default=2, description="on a GPU; 3 needs a Hopper one (H100, H200) and flash-attn-3"
    )
    seed: int = Field(
        default=0, ge=-(2**63), lt=2**63, description="of sampling, order of tasks, adapter"
    )

    @model_validator(mode="after")
    def _updates_divide_the_groups(self) -> Self:
        if self.updates_per_batch > self.groups_per_step:
            raise ValueError("updates_per_batch must be at most groups_per_step")
        return self


Beta = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Table):
    """AdamW with a linear warm-up to a constant learning rate."""

    learning_rate: float = Field(default=1e-6, gt=0, description="after the warm-up")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), description="of AdamW")
    weight_decay: float = Field(default=0.0, ge=0, description="of AdamW")
    warmup_steps: int = Field(default=0, ge=0, description="in optimizer updates")
    max_grad_norm: float = Field(default=1.0, gt=0, description="gradients are clipped to it")
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=1,
        description="ranks share optimizer (1), gradients (2), weights (3); bfloat16 needs 1",
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        default="none",
        description="to host memory: moments and float32 weights, or all weights; slower",
    )

    @model_validator(mode="after")
    def _offload_has_its_stage(self) -> Self:
        """DeepSpeed offloads what it has split over the ranks."""
        needed = {"none": 0, "optimizer": 1, "all": 3}[self.offload]
        if self.zero_stage < needed:
            raise ValueError(f"offload = {self.offload!r} needs zero_stage >= {needed}")
        return self


def check_sums(model: Model, optimizer: Optimizer, name: str = "optimizer") -> None:
    """DeepSpeed adds gradients of bfloat16 up in float32 under ZeRO only.

    Raises:
        ValueError: naming the field, if small gradients would be lost in the sum.
    """
    if model.dtype == "bfloat16" and optimizer.zero_stage == 0:
        raise ValueError(
            f"{name}.zero_stage = 0 adds gradients up in bfloat16, which loses small ones; set it "
            "to 1, or model.dtype = 'float32'"
        )


class CriticOptimizer(Optimizer):
    """The critic's own AdamW."""

    learning_rate: float = Field(default=2e-6, gt=0, description="after the warm-up")


class Critic(Table):
    """The value model of GAE."""

    path: PathText | None = Field(
        default=None, min_length=1, description="a model folder; none: the policy's model"
    )
    optimizer: CriticOptimizer = Field(
        default=CriticOptimizer(), description="as `[optimizer]`; its own defaults below"
    )
    value_clip: float | None = Field(
        default=None,
        gt=0,
        description="most that a value moves from its old one; none: no clipping",
    )
    pretrain_steps: int = Field(
        default=0,
        ge=0,
        description="the critic's steps before the policy's first, on Monte-Carlo returns",
    )
    pretrain_until: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="explained variance, as the mean of three steps, at which these end early; "
        "none: all of them",
    )

    @model_validator(mode="after")
    def _ends_what_is_begun(self) -> Self:
        if self.pretrain_until is not None and self.pretrain_steps <= 3:
            raise ValueError("pretrain_until does nothing below 4 pretrain_steps; remove it")
        return self


class Machine(Table):
    """The machine that `weir plan` assumes where there are no GPUs; nothing runs by it."""

    gpus: str = Field(min_length=1, description="GPUs of each service, as in `WEIR_GPUS`")
    gpu_memory: float = Field(gt=0, le=2**20, description="GiB of a GPU")
    host_memory: float = Field(gt=0, le=2**20, description="GiB of a node's own memory")


class Recipe(Table):
    """What to learn. See ``recipes/`` for runnable ones."""

    name: str = Field(min_length=1, max_length=64, description="of the experiment")
    model: Model
    tasks: Tasks
    rollout: Rollout
    reward: Reward = Reward()
    algorithm: Algorithm = Algorithm()
    training: Training
    environment: Environment | None = None
    client: Client | None = None
    optimizer: Optimizer = Optimizer()
    critic: Critic | None = None
    evaluation: Evaluations | None = None
    machine: Machine | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_client_gives_tasks_and_steps(cls, data: Any) -> Any:
        """So the tables that say how many there are and how they are sampled may be left out."""
        if not isinstance(data, Mapping) or data.get("client") is None:
            return data
        return {
            "tasks": {"train": "client"},
            "rollout": {"sampling": {"max_tokens": 1}},
            "training": {"steps": MOST_STEPS},
            "algorithm": {"advantage": "grpo"},
            **data,
        }

    @model_validator(mode="before")
    @classmethod
    def _an_environment_gives_the_reward(cls, data: Any) -> Any:
        """Unless the recipe names an outcome of its own."""
        if not isinstance(data, Mapping) or data.get("environment") is None:
            return data
        reward = data.get("reward", {})
        if isinstance(reward, Mapping) and "outcome" not in reward:
            return {**data, "reward": {**reward, "outcome": "environment"}}
        return data

    @model_validator(mode="after")
    def _episodes_have_what_they_need(self) -> Self:
        asked = any(check.verifier == "environment" for check in self.reward.outcome)
        if self.environment is None and asked:
            raise ValueError("reward.outcome = 'environment' needs the table [environment]")
        if self.environment is not None and self.reward.overlong_buffer is not None:
            raise ValueError(
                "reward.overlong_buffer is about one response, not an episode; remove it, or have "
                "the environment count"
            )
        return self

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.evaluation is not None and self.tasks.held_out is None:
            raise ValueError("evaluation needs tasks.held_out, a file of held-out tasks")
        max_tokens = self.rollout.sampling.max_tokens
        if max_tokens >= self.model.max_context:
            raise ValueError("rollout.sampling.max_tokens must be below model.max_context")
        for name, evaluation in self.evaluations.items():
            if self.sampling_for(evaluation).max_tokens >= self.model.max_context:
                table = f"evaluation.others.{name}" if name else "evaluation"
                raise ValueError(f"{table}.sampling.max_tokens must be below model.max_context")
        if (self.reward.overlong_buffer or 0) > max_tokens:
            raise ValueError("reward.overlong_buffer must be at most rollout.sampling.max_tokens")
        check_sums(self.model, self.optimizer)
        if self.critic is not None:
            check_sums(self.model, self.critic.optimizer, "critic.optimizer")
        if self.training.compile_layers and self.optimizer.zero_stage == 3:
            raise ValueError(
                "training.compile_layers needs whole layers; set optimizer.zero_stage to at most 2"
            )
        return self

    @model_validator(mode="after")
    def _learner_can_follow_the_sampler(self) -> Self:
        if self.rollout.sampling.top_p < 1:
            raise ValueError(
                "rollout.sampling.top_p must be 1: what was sampled from a cut distribution has "
                "log-probs that the learner does not know; evaluation.sampling may cut it"
            )
        return self

    @model_validator(mode="after")
    def _advantage_has_what_it_needs(self) -> Self:
        name = self.algorithm.advantage
        reward = self.reward
        formula = _FORMULAS["advantage"].get(name, Formula())
        if formula.needs_process and not reward.process:
            raise ValueError(f"algorithm.advantage = {name!r} needs reward.process, a verifier")
        if name == "process_only" and reward.process_for != "all":
            raise ValueError("algorithm.advantage = 'process_only' needs process_for = 'all'")
        if name == "max_rl" and reward.values[0] != 0:
            raise ValueError("algorithm.advantage = 'max_rl' needs a wrong answer to pay 0")
        if name == "reinforce" and self.training.dynamic_sampling:
            raise ValueError(
                "training.dynamic_sampling drops groups of which algorithm.advantage = 'reinforce' "
                "learns: those without a reward; remove it"
            )
        if formula.compares and self.rollout.group_size < 2:
            raise ValueError(f"algorithm.advantage = {name!r} needs rollout.group_size >= 2")
        if name in CRITIC_ADVANTAGES and self.critic is None:
            raise ValueError(f"algorithm.advantage = {name!r} needs the table [critic]")
        if name in GROUP_ADVANTAGES and self.critic is not None:
            raise ValueError(f"algorithm.advantage = {name!r} uses no [critic]; leave it out")
        return self

    @property
    def groups_in_flight(self) -> int:
        """At most so many training groups are asked for and not yet trained."""
        training = self.training
        refill = min(_MAX_REFILL, training.max_oversampling) if training.dynamic_sampling else 1
        return math.ceil((training.max_staleness + 1) * training.groups_per_step * refill)

    @property
    def longest_response(self) -> int:
        """Tokens of the policy in a response, at most: all turns of an episode, as far as they fit.

        A prompt has at least one token.
        """
        turns = 1 if self.environment is None else self.environment.max_turns
        return min(turns * self.rollout.sampling.max_tokens, self.model.max_context - 1)

    @property
    def num_pretrain_steps(self) -> int:
        """At most so many steps of the critic alone come first."""
        return self.critic.pretrain_steps if self.critic is not None else 0

    @property
    def pretrain_steps_in_words(self) -> str:
        may_be_fewer = self.critic is not None and self.critic.pretrain_until is not None
        return "at most " * may_be_fewer + f"{self.num_pretrain_steps:,}"

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """All of them by name; that on ``tasks.held_out`` has the empty one."""
        return {} if self.evaluation is None else {"": self.evaluation, **self.evaluation.others}

    @property
    def task_files(self) -> tuple[str, ...]:
        named = (self.tasks.train, self.tasks.held_out or "", *self.held_out_files.values())
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def held_out_files(self) -> dict[str, str]:
        if self.evaluation is None:
            return {}
        others = {name: other.held_out for name, other in self.evaluation.others.items()}
        return {"": self.tasks.held_out or "", **others}

    def sampling_for(self, evaluation: Evaluation) -> Sampling:
        return evaluation.sampling or self.rollout.sampling


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names each field and what is wrong with it."""


def explain(error: ValidationError, whole: str = "recipe") -> str:
    """One line per problem: the field's dotted name, or ``whole``, and what is wrong with it."""
    lines: list[str] = []
    for problem in error.errors():
        parts = (str(part) for part in problem["loc"])
        field = ".".join(part for part in parts if not part.startswith("<")) or whole
        if problem["type"] == "extra_forbidden" and field in _OF_A_FILE:
            lines.append(
                f"{field}: works only in a file, as for `weir run FILE`; "
                "give all settings here, as `weir plan FILE` shows them"
            )
        elif problem["type"] == "extra_forbidden":
            lines.append(f"{field}: unknown key; remove it or check its spelling")
        elif problem["type"] == "missing":
            lines.append(f"{field}: required, but missing")
        else:
            lines.append(f"{field}: {problem['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


def parse_recipe(data: object) -> Recipe:
    """Validate plain data as a recipe, or raise a `RecipeError` that names each wrong field."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(explain(error)) from error


def load_tables(path: Path) -> Tables:
    """Read a TOML file on top of those that it extends, or raise a `RecipeError`."""
    return _apply_file(path, {}, children=())


def _apply_file(path: Path, tables: Tables, children: tuple[Path, ...]) -> Tables:
    """Apply the changes of a file's parents to the tables, in order, and then its own."""
    own = _read_toml(path)
    children = (*children, path.resolve())
    for parent in _pop_texts(own, "extends", path):
        file = path.parent / parent
        if not file.is_file():
            raise RecipeError(
                f"{path}: extends: {file}: no such file; give a path from the folder of this file"
            )
        if file.resolve() in children:
            raise RecipeError(f"{path}: extends: {parent} is this file or extends it; remove one")
        tables = _apply_file(file, tables, children)
    for setting in _pop_texts(own, "without", path):
        if not _remove_setting(tables, setting):
            raise RecipeError(
                f"{path}: without: no parent sets {setting}; remove it or check its spelling"
            )
    return merge_tables(tables, own)


def _read_toml(path: Path) -> Tables:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: no such file") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # its encoding, its grammar, or a number of thousands of digits
        raise RecipeError(f"{path}: not valid TOML: {error}") from error


def _pop_texts(tables: Tables, key: str, path: Path) -> list[str]:
    value = tables.pop(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RecipeError(f"{path}: {key}: must be a text or a list of texts")
    return texts


def _remove_setting(tables: Tables, setting: str) -> bool:
    """Remove it from its table; False if it is not there."""
    *outer, last = setting.split(".")
    table: Any = tables
    for name in outer:
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict) or last not in table:
        return False
    del table[last]
    return True


def merge_tables(
    tables: Mapping[str, Any], changes: Mapping[str, Any], together: Collection[str] = ()
) -> Tables:
    """Tables merge key by key, but not those named ``together``; any other value is replaced."""
    merged = {
        key: merge_tables(tables[key], value, together)
        for key, value in changes.items()
        if key not in together and isinstance(value, dict) and isinstance(tables.get(key), dict)
    }
    return {**tables, **changes, **merged}


def load_recipe(path: Path) -> Recipe:
    """Read a recipe from a TOML file, or raise a `RecipeError`."""
    data = load_tables(path)
    try:
        return parse_recipe(data)
    except RecipeError as error:
        raise RecipeError(f"{path}:\n{error}") from error
