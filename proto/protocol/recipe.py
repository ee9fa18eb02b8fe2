"""Recipes: the file format of a job's settings, and its validation.

A recipe is a TOML file and a message. The API validates it, and the job stores it. Unknown keys are
refused. A recipe says nothing about deployment, which the environment configures; it may only name
a machine on which it fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
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
from protocol.recipe_files import RecipeError, explain, load_tables, suggest_setting
from protocol.recipe_tasks import PART_NAME, Tasks
from protocol.rewards import Reward

_FORMULAS = {
    "advantage": GROUP_ADVANTAGES | CRITIC_ADVANTAGES,
    "objective": OBJECTIVES,
    "correction": CORRECTIONS,
}
SESSION_STEPS = 10**9  # no bound: the client of a session ends it
MAX_RESPONSES = 16384  # vLLM samples at most this many responses to one prompt
_MAX_REFILL = 4  # dynamic sampling multiplies the groups in flight by at most this


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

    others: Mapping[Annotated[str, Field(pattern=PART_NAME)], OtherEvaluation] = Field(
        default_factory=dict, description="evaluations on other files, by name"
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
    budget_gpu_hours: float | None = Field(
        default=None,
        gt=0,
        le=2**40,
        description="GPU-hours after which the job pauses with a checkpoint, hours on a machine "
        "without GPUs; none: no limit",
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
    """The price of the machine, and what `weir plan` assumes on a computer without GPUs."""

    gpus: str | None = Field(
        default=None, min_length=1, description="the GPUs of each service, as in `WEIR_GPUS`"
    )
    gpu_memory: float | None = Field(
        default=None, gt=0, le=2**20, description="the memory of a GPU in GiB"
    )
    host_memory: float | None = Field(
        default=None, gt=0, le=2**20, description="the host memory of a node in GiB"
    )
    price_per_gpu_hour: float | None = Field(
        default=None,
        ge=0,
        le=2**20,
        description="the price of an hour of a GPU, or of a machine without GPUs; none: no price",
    )


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
        if self.only_evaluates:
            return self
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
        return self

    @model_validator(mode="after")
    def _advantage_decides_on_a_critic(self) -> Self:
        name = self.algorithm.advantage
        if self.only_evaluates:
            return self
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
    def task_fields(self) -> dict[str, str]:
        """The task files by the fields that name them."""
        files = {
            f"tasks.sources.{name}.train" if name else "tasks.train": file
            for name, file in self.tasks.train_files.items()
        }
        if self.tasks.held_out is not None:
            files["tasks.held_out"] = self.tasks.held_out
        for name, evaluation in (self.evaluation.others if self.evaluation else {}).items():
            files[f"evaluation.others.{name}.held_out"] = evaluation.held_out
        return files

    @property
    def held_out_files(self) -> dict[str, str]:
        if self.evaluation is None:
            return {}
        files = {name: other.held_out for name, other in self.evaluation.others.items()}
        return {**({"": self.tasks.held_out} if self.tasks.held_out else {}), **files}

    def evaluation_sampling(self, evaluation: Evaluation) -> Sampling:
        return evaluation.sampling or self.rollout.sampling


def parse_recipe(data: object) -> Recipe:
    """Validate plain data as a recipe, or raise a `RecipeError` that names each wrong field."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(explain(error, suggest=partial(suggest_setting, Recipe))) from error


def load_recipe(path: Path) -> Recipe:
    """Read a recipe from a TOML file, or raise a `RecipeError`."""
    data = load_tables(path)
    try:
        return parse_recipe(data)
    except RecipeError as error:
        raise RecipeError(f"{path}:\n{error}") from error
