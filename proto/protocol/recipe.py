"""Recipes: the file format of a job's settings, and its validation.

A recipe is a TOML file and a message. The API validates it, and the job stores it. Unknown keys are
refused. A recipe says nothing about deployment, which the environment configures; it may only name
a machine on which it fits.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, JsonValue, ValidationError, model_validator

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
SESSION_STEPS = 10**9  # no bound: the client of a session ends it
MAX_RESPONSES = 16384  # vLLM samples at most this many responses to one prompt
_FILE_KEYS = ("extends", "without")
_MAX_REFILL = 4  # dynamic sampling multiplies the groups in flight by at most this

Tables = dict[str, Any]


class Purpose(StrEnum):
    """The use of a group. Each purpose has its own ledger."""

    PRETRAIN = "pretrain"  # of the critic
    TRAIN = "train"
    EVAL = "eval"


class Lora(Table):
    """A low-rank adapter on frozen weights (arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1, le=512, description="the rank of the adapter's matrices")
    alpha: float = Field(default=32.0, gt=0, description="the adapter is scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        default=(),
        description='linear layers with an adapter, such as "q_proj"; empty: all but the head',
    )
    merge: bool = Field(
        default=False,
        description="save the merged model as the result, so that other jobs can start from it",
    )
    adapter: PathText | None = Field(
        default=None,
        min_length=1,
        description="the folder of the adapter that a job evaluates; the gateway sets it",
    )


class Model(Table):
    """The model that training starts from, and how a task becomes a prompt."""

    path: PathText = Field(
        min_length=1, description="a Hugging Face folder below `WEIR_MODEL_ROOTS`, or a hub id"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="bfloat16", description="the type of the weights in learner and engine"
    )
    prompt_template: str | None = Field(
        default=None,
        description="a text that contains {prompt}; none: the model's chat template",
    )
    chat_template_options: TemplateOptions = Field(
        default_factory=dict[str, bool | int | str],
        description="variables of the chat template, such as `enable_thinking = false`",
    )
    max_context: int = Field(
        default=4096, ge=2, description="the largest number of tokens of a prompt with its response"
    )
    lora: Lora | None = Field(
        default=None, description="settings of a LoRA adapter; none: train all weights"
    )

    @model_validator(mode="after")
    def _template_has_a_prompt(self) -> Self:
        if self.prompt_template is not None and "{prompt}" not in self.prompt_template:
            raise ValueError("prompt_template must contain {prompt}")
        return self

    @model_validator(mode="after")
    def _options_have_a_chat_template(self) -> Self:
        if self.chat_template_options and self.prompt_template is not None:
            raise ValueError(
                "chat_template_options do nothing with prompt_template; remove one of them"
            )
        return self


class Tasks(Table):
    """The task files: paths in a recipe file, ids of uploaded files in a submitted recipe."""

    train: PathText = Field(min_length=1, description="the tasks to train on")
    held_out: PathText | None = Field(default=None, description="the tasks to evaluate on")


class Sampling(Table):
    """How one response is sampled."""

    temperature: float = Field(
        default=1.0, gt=0, description="the sampling temperature; log-probs are computed at it"
    )
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="the nucleus sampling threshold; must be 1 in training"
    )
    max_tokens: int = Field(
        ge=1,
        description="the most tokens of a response or an episode's turn; below `model.max_context`",
    )
    stop: tuple[StopText, ...] = Field(
        default=(), max_length=16, description="texts that end a response, at most 16"
    )


class Evaluation(Table):
    """Accuracy on held-out tasks, before the first step and after the last."""

    samples: int = Field(default=4, ge=1, le=MAX_RESPONSES, description="responses per task")
    tasks: int | None = Field(
        default=None, ge=1, description="how many tasks to use, from the first; none: all"
    )
    sampling: Sampling | None = Field(
        default=None, description="sampling settings; none: those of training"
    )
    every: int | None = Field(
        default=None,
        ge=1,
        description="steps between evaluations; none: only before and after training",
    )


class OtherEvaluation(Evaluation):
    """An evaluation on another file of held-out tasks."""

    held_out: PathText = Field(
        min_length=1, description="a task file: a path, or the id of an uploaded file"
    )


class Evaluations(Evaluation):
    """Evaluations on `tasks.held_out` and other files, before and after training."""

    others: Mapping[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")], OtherEvaluation] = (
        Field(default_factory=dict, description="evaluations on other files, by name")
    )


class Rollout(Table):
    """The sampling of groups for training."""

    group_size: int = Field(default=8, ge=1, le=MAX_RESPONSES, description="responses to each task")
    sampling: Sampling = Field(description="how each response is sampled")
    kv_after_sync: Literal["recompute", "keep"] = Field(
        default="recompute",
        description="whether unfinished responses keep their KV cache when weights change",
    )


class Environment(Table):
    """Episodes of several turns, with tools or an environment between them, as responses."""

    taskset: str | None = Field(
        default=None,
        min_length=1,
        description="a taskset of `verifiers`, by the name of its package or module",
    )
    url: str | None = Field(
        default=None, pattern=r"^(https?|wss?)://", description="the address of an OpenEnv server"
    )
    command: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None,
        min_length=1,
        description="an agent that calls `OPENAI_BASE_URL` and prints the reward as its last line",
    )
    settings: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        description="arguments of the taskset, or of the OpenEnv server's reset",
    )
    max_turns: int = Field(
        default=10, ge=1, description="the most responses of the policy in an episode"
    )
    episode_timeout_s: float = Field(
        default=600.0,
        gt=0,
        le=86400,
        description="seconds that an episode may take with all tries, without calls of the model",
    )
    concurrency: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="the most episodes at a time in each environment worker",
    )
    retries: int = Field(
        default=1, ge=0, le=10, description="how often an episode that breaks is played again"
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.taskset, self.url, self.command).count(None) != 2:
            raise ValueError("give exactly one of taskset, url and command")
        if self.settings and self.command is not None:
            raise ValueError("settings: a command reads none; give it arguments")
        return self


class Client(Table):
    """The session of a client that sends the steps as operations."""

    silent_s: float = Field(
        default=60.0,
        gt=0,
        description="seconds without a call of the client after which the job is paused",
    )


class Algorithm(Table):
    """Formulas that turn rewards into an update, and their settings.

    ``services/learner/algorithms`` implements the formulas. Each reads the settings that it names.
    """

    advantage: AdvantageName = Field(
        default="papo", description="the formula of advantages, see recipe.md"
    )
    lambda_process: float = Field(
        default=1.0, ge=0, description="the weight of PAPO's process term"
    )
    ddof: Literal[0, 1] = Field(
        default=1,
        description="the divisor of the variance is n - ddof: 1 for a sample, 0 for a population",
    )
    denominator: Literal["add", "max"] = Field(
        default="add",
        description="the divisor of advantages: std + `std_eps`, or max(std, `std_eps`)",
    )
    std_eps: float = Field(
        default=1e-6, gt=0, description="a small number that keeps the division by the std finite"
    )
    gamma: float = Field(default=1.0, gt=0, le=1, description="the discount of GAE")
    lambda_actor: float = Field(
        default=0.95, ge=0, le=1, description="the lambda of GAE for the policy's advantages"
    )
    lambda_critic: float = Field(
        default=1.0, ge=0, le=1, description="the lambda of GAE for the critic's targets"
    )
    length_alpha: float = Field(
        default=0.05,
        gt=0,
        description="the alpha of `length_adaptive_gae`: lambda is 1 - 1 / (alpha × length)",
    )
    whiten: bool = Field(
        default=False,
        description="normalize advantages to mean 0 and variance 1 over a step's tokens",
    )

    objective: ObjectiveName = Field(
        default="clip", description="the formula of the policy loss, see recipe.md"
    )
    clip_low: float = Field(
        default=0.2,
        gt=0,
        description="the ratio is clipped at 1 - clip_low (`gmpo`: its logarithm at -clip_low; "
        "`dppo` and `ipo`: a probability may fall by clip_low)",
    )
    clip_high: float = Field(
        default=0.28,
        gt=0,
        description="the ratio is clipped at 1 + clip_high (`gmpo`: its logarithm at clip_high; "
        "`dppo` and `ipo`: a probability may rise by clip_high)",
    )
    dual_clip: float = Field(
        default=3.0, gt=1, description="with negative advantages the loss is at most this times |A|"
    )
    tau_positive: float = Field(
        default=1.0, gt=0, description="the steepness of SAPO's gate for positive advantages"
    )
    tau_negative: float = Field(
        default=1.05, gt=0, description="the steepness of SAPO's gate for other advantages"
    )
    old_logprobs: Literal["rollout", "recompute"] = Field(
        default="rollout", description="the log-probs in the ratio's denominator"
    )
    correction: CorrectionName = Field(
        default="none", description="the formula of importance weights, see recipe.md"
    )
    correction_cap: float = Field(
        default=2.0, gt=0, description="the largest importance weight of a correction"
    )
    correction_floor: float = Field(
        default=0.0,
        ge=0,
        description="the smallest importance weight that a correction does not mask",
    )

    aggregation: AggregationName = Field(
        default="token_mean",
        description="the formula of a token's weight in the loss, see recipe.md",
    )
    divergence: DivergenceName = Field(
        default="k3", description="the estimator of the KL divergence, see recipe.md"
    )
    divergence_weight: float = Field(
        default=0.0,
        ge=0,
        description="the weight of the KL to the starting model, which stays in memory if above 0",
    )
    entropy_weight: float = Field(default=0.0, ge=0, description="the weight of the entropy bonus")
    positive_lm_weight: float = Field(
        default=0.0, ge=0, description="the weight of correct responses' NLL (mu of VAPO)"
    )

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.correction != "none" and self.old_logprobs != "recompute":
            raise ValueError(
                f"correction = {self.correction!r} compares recomputed with sampled log-probs; "
                "set old_logprobs = 'recompute'"
            )
        if self.correction_floor >= self.correction_cap:
            raise ValueError("correction_floor must be below correction_cap")
        if self.objective in {"clip", "dual_clip"} and self.clip_low >= 1:
            raise ValueError(f"clip_low must be below 1 for objective = {self.objective!r}")
        return self

    @model_validator(mode="after")
    def _no_setting_is_idle(self) -> Self:
        """Refuse settings without effect, which mislead readers of the recipe."""
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
    """The amount and staleness of data, and the execution of a step."""

    steps: int = Field(
        ge=0,
        description="the number of training steps; 0: only evaluate, and load no model to train",
    )
    groups_per_step: int = Field(default=16, ge=1, description="the number of tasks in a step")
    updates_per_batch: int = Field(
        default=1, ge=1, description="the number of optimizer updates in a step"
    )
    max_staleness: int = Field(
        default=1,
        ge=0,
        description="how many weights versions a sampled token may lag behind; 0: on-policy",
    )
    dynamic_sampling: bool = Field(
        default=False, description="replace each group in which all advantages are 0"
    )
    max_oversampling: float = Field(
        default=10.0,
        ge=1,
        description="dynamic sampling samples at most this many times `groups_per_step`",
    )
    max_failed: float = Field(
        default=0.5, ge=0, le=1, description="the share of failed groups above which the job pauses"
    )
    max_parity: float | None = Field(
        default=None,
        gt=0,
        description="the mean log-prob gap between rollout and learner above which the job pauses; "
        "none: derived from `model.dtype` and the first versions",
    )
    on_nonfinite: Literal["skip", "pause"] = Field(
        default="skip",
        description="the reaction to a loss or gradient that is not finite; both skip the update",
    )
    micro_batch_tokens: int = Field(
        default=16384,
        ge=1,
        description="tokens of a forward pass on each rank; a longer sample has a pass of its own, "
        "and CPU memory may allow fewer",
    )
    logprob_chunk_tokens: int = Field(
        default=1024, ge=1, description="the number of tokens of which logits are in memory at once"
    )
    sequence_parallel: int = Field(
        default=1,
        ge=1,
        description="the number of ranks that share a sample, for contexts of 32k tokens and more",
    )
    checkpoint_every: int = Field(
        default=10, ge=1, description="the number of steps between checkpoints"
    )
    recompute_activations: bool | Literal["auto"] = Field(
        default="auto",
        description="recompute activations in the backward pass: less memory, a third more time; "
        "auto: if they do not fit into the memory",
    )
    compile_layers: bool = Field(
        default=False,
        description="compile layers with torch.compile: faster steps on a GPU, but a start that "
        "takes minutes longer; what follows the head is always compiled on a GPU",
    )
    flash_attention: Literal[2, 3] = Field(
        default=2,
        description="the FlashAttention version on a GPU; 3 needs a Hopper GPU and flash-attn-3",
    )
    seed: int = Field(
        default=0,
        ge=-(2**63),
        lt=2**63,
        description="the seed of sampling, the order of tasks, and the adapter",
    )

    @model_validator(mode="after")
    def _updates_divide_the_groups(self) -> Self:
        if self.updates_per_batch > self.groups_per_step:
            raise ValueError("updates_per_batch must be at most groups_per_step")
        return self


Beta = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Table):
    """AdamW with a linear warm-up to a constant learning rate."""

    learning_rate: float = Field(
        default=1e-6, gt=0, description="the learning rate after the warm-up"
    )
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), description="AdamW's beta1 and beta2")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay")
    warmup_steps: int = Field(
        default=0, ge=0, description="the length of the warm-up in optimizer updates"
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="the norm to which gradients are clipped"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=1,
        description="the ZeRO stage: ranks shard optimizer states (1), gradients (2) and "
        "weights (3); bfloat16 needs at least 1",
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        default="none",
        description="the tensors kept in host memory: `optimizer` means moments and float32 "
        "weights, `all` also the model's weights; slower",
    )

    @model_validator(mode="after")
    def _offload_has_its_stage(self) -> Self:
        """DeepSpeed offloads only sharded tensors."""
        needed = {"none": 0, "optimizer": 1, "all": 3}[self.offload]
        if self.zero_stage < needed:
            raise ValueError(f"offload = {self.offload!r} needs zero_stage >= {needed}")
        return self


def check_sums(model: Model, optimizer: Optimizer, name: str = "optimizer") -> None:
    """Check that gradients are summed in float32, which DeepSpeed does for bfloat16 only with ZeRO.

    Raises:
        ValueError: if the sum would lose small gradients; the message names the field.
    """
    if model.dtype == "bfloat16" and optimizer.zero_stage == 0:
        raise ValueError(
            f"{name}.zero_stage = 0 sums gradients in bfloat16, which loses small ones; set it to "
            "1, or set model.dtype = 'float32'"
        )


class CriticOptimizer(Optimizer):
    """The optimizer of the critic."""

    learning_rate: float = Field(
        default=2e-6, gt=0, description="the learning rate after the warm-up"
    )


class Critic(Table):
    """The critic that GAE needs."""

    path: PathText | None = Field(
        default=None,
        min_length=1,
        description="the model folder that the critic starts from; none: the policy's",
    )
    optimizer: CriticOptimizer = Field(
        default=CriticOptimizer(), description="the settings of `[optimizer]`, for the critic"
    )
    value_clip: float | None = Field(
        default=None,
        gt=0,
        description="the largest change of a value from its old one in the loss; none: no clipping",
    )
    pretrain_steps: int = Field(
        default=0,
        ge=0,
        description="steps of the critic on Monte-Carlo returns before the policy's first step",
    )
    pretrain_until: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="the explained variance, averaged over three steps, at which pretraining ends "
        "early; none: it never does",
    )

    @model_validator(mode="after")
    def _pretraining_can_end(self) -> Self:
        if self.pretrain_until is not None and self.pretrain_steps <= 3:
            raise ValueError("pretrain_until does nothing below 4 pretrain_steps; remove it")
        return self


class Machine(Table):
    """The machine that `weir plan` assumes on a computer without GPUs; jobs ignore it."""

    gpus: str = Field(min_length=1, description="the GPUs of each service, as in `WEIR_GPUS`")
    gpu_memory: float = Field(gt=0, le=2**20, description="the memory of a GPU in GiB")
    host_memory: float = Field(gt=0, le=2**20, description="the host memory of a node in GiB")


class Recipe(Table):
    """All settings of a job. `recipes/` has examples."""

    name: str = Field(min_length=1, max_length=64, description="the name of the experiment")
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
    def _sessions_need_no_tasks_and_steps(cls, data: Any) -> Any:
        """Fill in the tables that a session ignores."""
        if not isinstance(data, Mapping) or data.get("client") is None:
            return data
        return {
            "tasks": {"train": "client"},
            "rollout": {"sampling": {"max_tokens": 1}},
            "training": {"steps": SESSION_STEPS},
            "algorithm": {"advantage": "grpo"},
            **data,
        }

    @model_validator(mode="before")
    @classmethod
    def _evaluations_need_no_algorithm(cls, data: Any) -> Any:
        """Fill in an algorithm without requirements if the job makes no step."""
        training = data.get("training") if isinstance(data, Mapping) else None
        if isinstance(training, Mapping) and training.get("steps") == 0:
            return {"algorithm": {"advantage": "grpo"}, **data}
        return data

    @model_validator(mode="before")
    @classmethod
    def _episodes_have_a_reward(cls, data: Any) -> Any:
        """Take the environment's reward if the recipe names no outcome."""
        if not isinstance(data, Mapping) or data.get("environment") is None:
            return data
        reward = data.get("reward", {})
        if isinstance(reward, Mapping) and "outcome" not in reward:
            return {**data, "reward": {**reward, "outcome": "environment"}}
        return data

    @model_validator(mode="after")
    def _episodes_have_an_environment(self) -> Self:
        reads_episode = any(check.verifier == "environment" for check in self.reward.outcome)
        if self.environment is None and reads_episode:
            raise ValueError("reward.outcome = 'environment' needs the table [environment]")
        if self.environment is not None and self.reward.overlong_buffer is not None:
            raise ValueError(
                "reward.overlong_buffer does not work for episodes; remove it, or have the "
                "environment punish long ones"
            )
        return self

    @model_validator(mode="after")
    def _evaluation_has_tasks(self) -> Self:
        has_files = self.tasks.held_out is not None or (self.only_evaluates and self.evaluations)
        if self.evaluation is not None and not has_files:
            raise ValueError("evaluation needs tasks.held_out, a file of held-out tasks")
        if self.only_evaluates and self.evaluation is None:
            raise ValueError("training.steps = 0 only evaluates; add the table [evaluation]")
        if self.model.lora is not None and self.model.lora.adapter and not self.only_evaluates:
            raise ValueError("model.lora.adapter is only for training.steps = 0; remove it")
        return self

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        max_tokens = self.rollout.sampling.max_tokens
        if max_tokens >= self.model.max_context:
            raise ValueError("rollout.sampling.max_tokens must be below model.max_context")
        for name, evaluation in self.evaluations.items():
            if self.evaluation_sampling(evaluation).max_tokens >= self.model.max_context:
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
    def _learner_can_compute_the_logprobs(self) -> Self:
        if self.rollout.sampling.top_p < 1:
            raise ValueError(
                "rollout.sampling.top_p must be 1: the learner cannot compute the log-probs of a "
                "truncated distribution; only evaluation.sampling may lower it"
            )
        return self

    @model_validator(mode="after")
    def _advantage_has_its_inputs(self) -> Self:
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
                "training.dynamic_sampling drops groups without a reward, from which "
                "algorithm.advantage = 'reinforce' learns; remove it"
            )
        if formula.compares and self.rollout.group_size < 2:
            raise ValueError(f"algorithm.advantage = {name!r} needs rollout.group_size >= 2")
        if name in CRITIC_ADVANTAGES and self.critic is None:
            raise ValueError(f"algorithm.advantage = {name!r} needs the table [critic]")
        if name in GROUP_ADVANTAGES and self.critic is not None:
            raise ValueError(f"algorithm.advantage = {name!r} uses no [critic]; leave it out")
        return self

    @property
    def only_evaluates(self) -> bool:
        return self.training.steps == 0

    @property
    def groups_in_flight(self) -> int:
        """The largest number of training groups that are requested and not yet trained on."""
        training = self.training
        refill = min(_MAX_REFILL, training.max_oversampling) if training.dynamic_sampling else 1
        return math.ceil((training.max_staleness + 1) * training.groups_per_step * refill)

    @property
    def longest_response(self) -> int:
        """The largest number of the policy's tokens in a response or in all turns of an episode.

        A prompt has at least one token.
        """
        turns = 1 if self.environment is None else self.environment.max_turns
        return min(turns * self.rollout.sampling.max_tokens, self.model.max_context - 1)

    @property
    def num_pretrain_steps(self) -> int:
        """The largest number of steps that train the critic alone, before the policy."""
        return self.critic.pretrain_steps if self.critic is not None else 0

    @property
    def pretrain_steps_in_words(self) -> str:
        may_be_fewer = self.critic is not None and self.critic.pretrain_until is not None
        return "at most " * may_be_fewer + f"{self.num_pretrain_steps:,}"

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """All evaluations by name; the name of the one on ``tasks.held_out`` is empty."""
        if self.evaluation is None:
            return {}
        first = {} if self.tasks.held_out is None else {"": self.evaluation}
        return {**first, **self.evaluation.others}

    @property
    def task_files(self) -> tuple[str, ...]:
        files = (self.tasks.train, self.tasks.held_out or "", *self.held_out_files.values())
        return tuple(dict.fromkeys(filter(None, files)))

    @property
    def held_out_files(self) -> dict[str, str]:
        if self.evaluation is None:
            return {}
        files = {name: other.held_out for name, other in self.evaluation.others.items()}
        return {**({"": self.tasks.held_out} if self.tasks.held_out else {}), **files}

    def evaluation_sampling(self, evaluation: Evaluation) -> Sampling:
        return evaluation.sampling or self.rollout.sampling


class RecipeError(ValueError):
    """An invalid recipe; the message names each wrong field with its problem."""


def explain(
    error: ValidationError,
    whole: str = "recipe",
    suggest: Callable[[str], str] = lambda _: "remove it or check its spelling",
) -> str:
    """Return one line per problem: the field's dotted name, or ``whole``, and the message.

    ``suggest`` returns the remedy for an unknown key.
    """
    lines: list[str] = []
    for problem in error.errors():
        parts = map(str, problem["loc"])
        field = ".".join(part for part in parts if not part.startswith("<")) or whole
        if problem["type"] == "extra_forbidden" and field in _FILE_KEYS:
            lines.append(
                f"{field}: works only in a file, as for `weir run FILE`; "
                "give all settings here, as `weir plan FILE` shows them"
            )
        elif problem["type"] == "extra_forbidden":
            lines.append(f"{field}: unknown key; {suggest(field)}")
        elif problem["type"] == "missing":
            lines.append(f"{field}: required, but missing")
        else:
            lines.append(f"{field}: {problem['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


def _suggest_setting(field: str) -> str:
    settings = list(_walk_settings(Recipe))
    elsewhere = [path for path in settings if path.endswith("." + field.rpartition(".")[2])]
    depth = field.count(".")
    similar = [path for path in settings if path.count(".") >= depth]
    near = difflib.get_close_matches(field, similar, n=1, cutoff=0.8) or elsewhere
    return f"did you mean {near[0]!r}?" if near else "remove it or check its spelling"


def _walk_settings(table: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings below a table."""
    for name, setting in table.model_fields.items():
        yield prefix + name
        for kind in (setting.annotation, *get_args(setting.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _walk_settings(kind, f"{prefix}{name}.")


def parse_recipe(data: object) -> Recipe:
    """Validate plain data as a recipe, or raise a `RecipeError` that names each wrong field."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(explain(error, suggest=_suggest_setting)) from error


def load_tables(path: Path) -> Tables:
    """Read a TOML file and the files that it extends, or raise a `RecipeError`."""
    return _apply_file(path, {}, children=())


def _apply_file(path: Path, tables: Tables, children: tuple[Path, ...]) -> Tables:
    """Apply the changes of a file's parents to the tables, in order, and then its own."""
    changes = _read_toml(path)
    children = (*children, path.resolve())
    for parent in _pop_texts(changes, "extends", path):
        file = path.parent / parent
        if not file.is_file():
            raise RecipeError(
                f"{path}: extends: {file}: no such file; give a path from the folder of this file"
            )
        if file.resolve() in children:
            raise RecipeError(f"{path}: extends: {parent} is this file or extends it; remove one")
        tables = _apply_file(file, tables, children)
    for setting in _pop_texts(changes, "without", path):
        if not _remove_setting(tables, setting):
            raise RecipeError(
                f"{path}: without: no parent sets {setting}; remove it or check its spelling"
            )
    return merge_tables(tables, changes)


def _read_toml(path: Path) -> Tables:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: no such file") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecipeError(f"{path}: not UTF-8: {error}; save the file as UTF-8") from error
    try:
        return tomllib.loads(text)
    except ValueError as error:  # syntax, or a number of thousands of digits
        raise RecipeError(f"{path}: not valid TOML: {error}{_show_place(text, error)}") from error


def _show_place(text: str, error: ValueError) -> str:
    """Return the character that a TOML error is about."""
    place = re.search(r"at line (\d+), column (\d+)", str(error))
    if place is None:
        return ""
    line = text.split("\n")[int(place[1]) - 1]
    character = line[int(place[2]) - 1 :][:1]
    return f": {character!r} in {line.strip()!r}" if character else ""


def _pop_texts(tables: Tables, key: str, path: Path) -> list[str]:
    value = tables.pop(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RecipeError(f"{path}: {key}: must be a text or a list of texts")
    return texts


def _remove_setting(tables: Tables, setting: str) -> bool:
    """Remove a setting from its table; return False if the table lacks it."""
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
    """Merge tables key by key, but replace tables named in ``together`` and all other values."""
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
