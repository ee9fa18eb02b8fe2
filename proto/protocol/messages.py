"""Messages between processes.

A group passes through a chain of types, one per stage::

    Task -> RolloutRequest -> RolloutGroup -> GradedGroup -> (trained) -> PolicyVersion

A group's identity is its *key*, such as ``"train:17"``: its purpose and number. A repeated message
has the same key and no effect. Arrays are flat; ``lengths`` has the tokens of each response.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    PlainValidator,
    model_validator,
)

from protocol.recipe import Purpose, Recipe, Sampling
from protocol.rewards import Check, JudgeCheck, MathAnswer, ModelJudge, Reward


def _flat_array(dtype: str) -> PlainValidator:
    def to_read_only(value: Any) -> np.ndarray:
        try:
            array = np.ascontiguousarray(value, dtype=np.dtype(dtype))
        except (TypeError, OverflowError) as error:
            raise ValueError(f"expected an array of {dtype}: {error}") from error
        if array.ndim != 1:
            raise ValueError(f"expected one dimension, got shape {array.shape}")
        view = array.view()
        view.flags.writeable = False
        return view

    return PlainValidator(to_read_only)


Int32Array = Annotated[np.ndarray, _flat_array("<i4")]
Uint8Array = Annotated[np.ndarray, _flat_array("|u1")]
Float32Array = Annotated[np.ndarray, _flat_array("<f4")]
NOT_GIVEN = "(not given)"  # the prompt of a trial's task without one


class Message(BaseModel):
    """A frozen message between services without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


def as_text(content: object) -> object:
    """Join the text parts of a chat message's content; return other content unchanged."""
    if not isinstance(content, list):
        return content
    return "".join(map(_part_text, cast(list[object], content)))


def _part_text(part: object) -> str:
    match part:  # pyright: ignore[reportMatchNotExhaustive]
        case {"type": "text", "text": str(text)}:
            return text
    raise ValueError("only text is supported: give a string, or parts of type 'text'")


class ChatMessage(Message):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(as_text)]


class Task(Message):
    """A prompt, plain or as messages, with the fields that graders compare a response with.

    Tasks for graders that need no answer may lack it.
    """

    id: str = Field(min_length=1)
    prompt: str | None = Field(default=None, min_length=1)
    messages: tuple[ChatMessage, ...] | None = Field(default=None, min_length=1)
    answer: str | None = Field(default=None, min_length=1)
    solution: str | None = None
    metadata: Mapping[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_kind_of_prompt(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of 'prompt' and 'messages'")
        return self

    @property
    def problem(self) -> str:
        """The prompt as one text; several turns have headers with their roles."""
        if self.messages is None:
            return self.prompt or ""
        if len(self.messages) == 1:
            return self.messages[0].content
        return "\n\n".join(f"[{turn.role}]\n{turn.content}" for turn in self.messages)


def group_key(purpose: Purpose, number: int) -> str:
    """The identity of a group within its job, for example ``"train:17"``."""
    return f"{purpose}:{number}"


class RolloutRequest(Message):
    """A request of the learner for ``group_size`` responses to one task."""

    job_id: str
    attempt: int = Field(ge=1)
    number: int = Field(ge=0)
    purpose: Purpose
    step: int = Field(ge=0)
    task: Task
    group_size: int = Field(ge=1)
    sampling: Sampling
    prompt_template: str | None = None
    seed: int
    min_version: int = Field(default=0, ge=0)  # the oldest weights version that may answer
    version: int | None = None  # the only version that may answer, in an evaluation
    in_environment: bool = False  # responses are episodes

    @property
    def key(self) -> str:
        return group_key(self.purpose, self.number)


class VersionSpan(Message):
    """The weights version that sampled the policy's tokens in ``[start, end)`` of a response."""

    attempt: int
    version: int
    start: int
    end: int

    def shift(self, offset: int) -> Self:
        """Return the span for a text that begins ``offset`` tokens earlier."""
        return self.model_copy(update={"start": self.start + offset, "end": self.end + offset})


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


class Turn(Message):
    role: str
    content: str


class Episode(Message):
    """An environment's report on a response of several turns."""

    reward: FiniteFloat | None = None  # on the environment's own scale
    problem: str = ""  # the code of a failure of the environment or the machine
    words: str = ""  # the environment's description of the failure
    turns: int = 0  # responses of the policy
    seconds: Mapping[str, float] = Field(default_factory=dict)  # of model and environment
    conversation: tuple[Turn, ...] = ()

    @model_validator(mode="after")
    def _rewarded_or_broken(self) -> Self:
        if (self.reward is None) != bool(self.problem):
            raise ValueError("an episode has either a reward or a problem")
        return self


OPENS_THINKING = "<think>"
CLOSES_THINKING = "</think>"


class Response(Message):
    """A sampled response without its arrays."""

    text: str  # of the policy, with special tokens except for the last
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    episode: Episode | None = None

    @property
    def is_broken(self) -> bool:
        """Whether its episode failed, so that it has no tokens."""
        return self.episode is not None and bool(self.episode.problem)


class RolloutGroup(Message):
    """All responses to one request, with the log-prob of each token at sampling time.

    A response may contain tokens of tools or of an environment between the policy's. They are
    context and have no loss. Spans cover all tokens without gaps, and each non-empty span has a
    token of the policy. A failed episode has no tokens. ``lengths`` count all tokens, as do the
    limits of context and memory; rewards, losses, staleness and metrics count the policy's tokens.
    """

    request: RolloutRequest
    prompt_ids: Int32Array  # [prompt_token]
    token_ids: Int32Array  # [token], of all responses in order
    behavior_logprobs: Float32Array  # [token], nats, after temperature; 0 for other tokens
    own: Uint8Array | None = None  # [token], 1 for tokens of the policy, else 0; None: all 1
    lengths: Int32Array  # [group], tokens per response
    responses: tuple[Response, ...]  # [group]
    begins_thinking: bool = False  # the prompt ends in `OPENS_THINKING`
    sampling_seconds: float = Field(ge=0)

    @property
    def key(self) -> str:
        return self.request.key

    def bounds(self) -> list[tuple[int, int]]:
        ends = np.cumsum(self.lengths).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @property
    def policy_mask(self) -> np.ndarray:
        """Whether the policy sampled a token, [token] bool."""
        return np.ones(len(self.token_ids), bool) if self.own is None else self.own == 1

    @property
    def policy_lengths(self) -> np.ndarray:
        """The number of the policy's tokens per response, [group] int."""
        if self.own is None:
            return self.lengths
        return np.array([self.own[start:end].sum() for start, end in self.bounds()], dtype=int)

    @model_validator(mode="after")
    def _arrays_agree(self) -> Self:
        num_tokens = int(self.lengths.sum())
        if len(self.token_ids) != num_tokens or len(self.behavior_logprobs) != num_tokens:
            raise ValueError(
                f"lengths add up to {num_tokens} tokens, but there are {len(self.token_ids)} token "
                f"ids and {len(self.behavior_logprobs)} log-probs"
            )
        if not len(self.lengths) == len(self.responses) == self.request.group_size:
            raise ValueError(
                f"expected {self.request.group_size} responses, got {len(self.responses)} with "
                f"{len(self.lengths)} lengths"
            )
        if not np.isfinite(self.behavior_logprobs).all():
            raise ValueError("behavior_logprobs must be finite")
        return self

    @model_validator(mode="after")
    def _spans_cover_each_response(self) -> Self:
        for index, response in enumerate(self.responses):
            edge = 0
            length = int(self.lengths[index])
            for span in response.spans:
                if span.start != edge or span.end < span.start:
                    raise ValueError(f"responses[{index}].spans leave a gap at token {edge}")
                edge = span.end
            if edge != length:
                raise ValueError(f"responses[{index}].spans cover {edge} of {length} tokens")
            if response.is_broken and length:
                raise ValueError(f"responses[{index}] failed, but has {length} tokens")
        return self

    @model_validator(mode="after")
    def _own_marks_tokens_of_the_policy(self) -> Self:
        if self.own is None:
            return self
        if len(self.own) != len(self.token_ids) or (self.own > 1).any():
            raise ValueError(
                f"own must be 0 or 1 for each of the {len(self.token_ids)} tokens; leave it out if "
                "the policy sampled all of them"
            )
        if self.behavior_logprobs[self.own == 0].any():
            raise ValueError("behavior_logprobs must be 0 where own is 0")
        for index, (first, end) in enumerate(self.bounds()):
            if not self.own[first:end].any() and not self.responses[index].is_broken:
                raise ValueError(
                    f"responses[{index}] has no token of the policy; let the group fail"
                )
            for span in self.responses[index].spans:
                mask = self.own[first + span.start : first + span.end]
                if span.start < span.end and not mask.any():
                    raise ValueError(
                        f"responses[{index}].spans: the policy sampled no token in [{span.start}, "
                        f"{span.end}); merge the span with the one before or after"
                    )
        return self


class Mark(Message):
    """A part of a response's text with a verifier's verdict."""

    start: int = Field(ge=0)  # characters
    end: int = Field(ge=0)
    verdict: Literal["right", "wrong", "unknown"]
    note: str = ""


class Graded(Message):
    """A verifier's score in [0, 1]; ``reason`` is a code for a wrong response."""

    kind: Literal["graded"] = "graded"
    value: float = Field(ge=0, le=1)
    reason: str | None = None
    breakdown: Mapping[str, FiniteFloat] = Field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    comments: Mapping[str, str] = Field(default_factory=dict)  # of a judge, by criterion


class Ungradable(Message):
    """A missing score without a fault of the response; it does not count as 0."""

    kind: Literal["ungradable"] = "ungradable"
    reason: str


Score = Annotated[Graded | Ungradable, Field(discriminator="kind")]


RIGHT = 1 - 1e-9  # the smallest right score: float weights may sum to less than 1


def is_right(value: float) -> bool:
    return value >= RIGHT


class Grade(Message):
    """The scores of one response; ``process`` is None if it was not requested."""

    outcome: Score
    process: Score | None = None

    @property
    def accuracy(self) -> float | None:
        return self.outcome.value if isinstance(self.outcome, Graded) else None

    @property
    def is_right(self) -> bool:
        return self.accuracy is not None and is_right(self.accuracy)

    @property
    def process_score(self) -> float | None:
        return self.process.value if isinstance(self.process, Graded) else None


class FailureKind(StrEnum):
    """The reason why a group failed."""

    DEATHS = "deaths"
    FAILURES = "failures"
    UNREADABLE = "unreadable"
    UNWORKABLE = "unworkable"  # every worker would fail


class GroupFailure(Message):
    kind: FailureKind
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class GradedGroup(Message):
    """A group with one grade per response, or the reason of its failure."""

    purpose: Purpose
    number: int
    group: RolloutGroup | None = None
    grades: tuple[Grade, ...] = ()
    failure: GroupFailure | None = None
    grading_seconds: float = 0.0

    @property
    def key(self) -> str:
        return group_key(self.purpose, self.number)

    @model_validator(mode="after")
    def _graded_or_failed(self) -> Self:
        if (self.group is None) == (self.failure is None):
            raise ValueError("a graded group has either a group or a failure")
        if self.group is not None and len(self.grades) != len(self.group.responses):
            raise ValueError(f"{len(self.grades)} grades, {len(self.group.responses)} responses")
        return self


class Trial(Message):
    """A request to grade one response, or without ``text`` to check the task's answer."""

    id: str
    reward: Reward
    task: Task
    text: str | None


class TrialResult(Message):
    """The result of a trial; without an outcome ``missing`` names a requirement of the grader."""

    outcome: Score | None = None
    process: Score | None = None
    missing: str = ""
    scores: Mapping[str, Score] = Field(default_factory=dict)  # by label of the check
    details: Mapping[str, str] = Field(default_factory=dict)  # descriptions of failures, by reason
    tokens: Mapping[str, int] = Field(default_factory=dict)  # by model of the judge
    seconds: float = 0.0


class Probes(Message):
    """A sequence for comparing the log-probs of learner and rollouts under one version."""

    tasks: tuple[Task, ...]
    rendered: str  # the digest of the prompts that the learner renders
    token_ids: tuple[int, ...]
    # The learner's, in nats, of all tokens except the first.
    logprobs: tuple[float, ...]
    # The same under earlier versions.
    earlier: Mapping[int, tuple[float, ...]] = Field(default_factory=dict[int, tuple[float, ...]])
    most: float  # the largest allowed mean gap


Measured = Annotated[
    float | None, BeforeValidator(lambda n: n if n is not None and math.isfinite(n) else None)
]


class ParityReport(Message):
    """A rollout's result on the probes of a version, before it samples with it."""

    job_id: str
    attempt: int
    version: int
    rollout: str
    mean: Measured  # gap in nats, or relative to log-probs larger than 1
    max: Measured  # nats
    most: FiniteFloat
    same_prompts: bool  # whether it renders the learner's prompts
    holds: int | None = None  # the earlier version with much closer log-probs, if any

    @property
    def agrees(self) -> bool:
        is_near = self.mean is not None and self.mean <= self.most
        return is_near and self.same_prompts and self.holds is None


class PolicyVersion(Message):
    """New weights in ``folder``, in the learner's memory, with their manifest's ``digest``."""

    job_id: str
    attempt: int = Field(ge=0)  # 0: unknown, or no job
    number: int = Field(ge=0)
    folder: str
    digest: str
    base: str = ""  # the folder of the base model if the weights are an adapter
    base_digest: str = ""
    links: tuple[str, ...] = ()  # folders for other machines: see `deltas`
    probes: Probes | None = None
    evaluated: PolicyVersion | None = None  # the version of a concurrent evaluation


class EventData(Message):
    """The content of an event. Undeclared fields are metrics by name."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, int | float | None] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Numbers by name; None if one was not measured."""
        return self.__pydantic_extra__

    def to_json(self) -> dict[str, JsonValue]:
        """Return the fields without their kind, as clients of the REST API see them."""
        return self.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)


class _LearnerMetrics(EventData):
    groups: Mapping[str, JsonValue] | None = None  # the ledger of the step's purpose
    phase_seconds: Mapping[str, FiniteFloat] | None = None  # since the step before
    bill: Mapping[str, JsonValue] | None = None  # until now
    phase_seconds_total: Mapping[str, FiniteFloat] | None = None
    totals: Mapping[str, FiniteFloat] | None = None


class StepMetrics(_LearnerMetrics):
    """A training step, or an update by a session's client."""

    kind: Literal["step"] = "step"
    step: int
    dropped_responses: Mapping[str, int] | None = None  # by reason
    parity: tuple[Mapping[str, JsonValue], ...] = ()


class PretrainMetrics(_LearnerMetrics):
    """A step of the critic before the policy's first step."""

    kind: Literal["pretrain"] = "pretrain"
    pretrain_step: int


class EvaluationResult(EventData):
    step: int
    name: str = ""  # of the file of tasks
    # Correct and graded responses, their mean length in tokens, and the share that is truncated.
    per_task: Mapping[str, tuple[float | None, ...]] | None = None


class EvaluationMetrics(EventData):
    kind: Literal["evaluation"] = "evaluation"
    step: int
    evaluation: EvaluationResult
    groups: Mapping[str, JsonValue] | None = None


class OtherEvaluation(EventData):
    """An evaluation on another file of tasks."""

    kind: Literal["other_evaluation"] = "other_evaluation"
    step: int
    other_evaluation: EvaluationResult
    groups: Mapping[str, JsonValue] | None = None


class Notice(Message):
    """The details of a message for people."""

    model_config = ConfigDict(allow_inf_nan=False)
    kind: Literal["notice"] = "notice"
    details: Mapping[str, JsonValue] = Field(default_factory=dict)

    def to_json(self) -> dict[str, JsonValue]:
        return dict(self.details)


AnyEventData = Annotated[
    StepMetrics | PretrainMetrics | EvaluationMetrics | OtherEvaluation | Notice,
    Field(discriminator="kind"),
]


class JobEvent(Message):
    """An entry of a job's history; a repeated ``id`` is recorded once."""

    id: str
    job_id: str
    created_at: float = Field(default_factory=time.time, ge=0, le=1e11)  # seconds since 1970
    level: Literal["info", "warn", "error"] = "info"
    message: str
    data: AnyEventData = Notice()
    begins: bool = False  # whether an attempt begins, so that the job runs again

    @property
    def type(self) -> Literal["message", "metrics"]:
        return "message" if isinstance(self.data, Notice | OtherEvaluation) else "metrics"


class Capabilities(Message):
    """The names of a grader's verifiers and judges."""

    verifiers: tuple[str, ...]
    judges: tuple[str, ...]

    def find_missing(self, check: Check) -> str | None:
        """Return the unmet requirement of a check with its remedy, or None."""
        if check.verifier == "python" and "python" not in self.verifiers:
            return (
                "the graders run no Python of clients; set WEIR_GRADER_PYTHON=on where they run, "
                "or use string_check, text_similarity, score_model or a multi of them"
            )
        if check.verifier not in self.verifiers:
            return (
                f"no verifier is called {check.verifier!r}; name the module that adds it in "
                "WEIR_GRADER_EXTENSIONS where the graders run"
            )
        if isinstance(check, MathAnswer) and check.unknown == "judge":
            check = ModelJudge()
        if not isinstance(check, JudgeCheck) or check.model in self.judges:
            return None
        if not self.judges:
            return (
                "the recipe asks a model to grade, but the graders know none; set WEIR_JUDGE_URL "
                "and WEIR_JUDGE_MODEL where they run"
            )
        judges = ", ".join(map(repr, self.judges))
        return (
            f"the graders know no model {check.model!r}, but {judges}; "
            "use one of these, or name it in WEIR_JUDGES where they run"
        )


class Phase(StrEnum):
    """The phase of a process."""

    STARTING = "starting"
    LOADING = "loading"
    WORKING = "working"
    WAITING = "waiting"


class Doing(StrEnum):
    """The activity of a process, as a code that the gateway describes."""

    STARTS = "starts"
    STARTS_ENGINE = "starts_its_engine"
    LOADS_MODEL = "loads_the_model"
    LOADS_VERSION = "loads_version"
    IDLE = "is_idle"
    IS_NOT_READY = "is_not_ready"
    FAILS = "fails_at_every_group"
    JOB_IS_PAUSED = "waits_while_the_job_is_paused"
    WAITS_FOR_JOB = "waits_for_a_job"
    WAITS_FOR_GROUPS = "waits"
    WAITS_FOR_CLIENT = "waits_for_its_client"
    WAITS_FOR_GPU = "waits_for_its_turn_on_the_gpu"
    SLEEPS = "sleeps_while_the_learner_computes"
    WORKS = "works"
    SAMPLES = "samples_groups"
    ANSWERS = "answers_calls"
    PLAYS = "plays_episodes"
    GRADES = "grades_groups"
    TRAINS = "trains_step"
    PRETRAINS = "pretrains_step"
    OPERATES = "does_operation"
    PUBLISHES = "publishes_version"
    SAVES = "writes_a_checkpoint"
    KEEPS_SAMPLES = "keeps_samples"
    MEASURES_PARITY = "measures_parity"
    WRITES_MODEL = "writes_the_model"

    @property
    def phase(self) -> Phase:
        if self in {Doing.STARTS, Doing.STARTS_ENGINE, Doing.LOADS_MODEL}:
            return Phase.STARTING
        if self in {Doing.IDLE, Doing.IS_NOT_READY, Doing.JOB_IS_PAUSED}:
            return Phase.WAITING
        waits = {Doing.WAITS_FOR_JOB, Doing.WAITS_FOR_GROUPS, Doing.WAITS_FOR_CLIENT}
        if self in waits | {Doing.SLEEPS}:
            return Phase.WAITING
        return Phase.LOADING if self is Doing.LOADS_VERSION else Phase.WORKING


class Failure(Message):
    """The error that ended a process before it was ready."""

    words: str
    job_id: str | None = None  # the job with the model that failed to load, if any


class Status(Message):
    """The status of a process, sent with every heartbeat; ``replica`` survives restarts."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str
    service: str
    replica: str
    beats: int  # the number of heartbeats; it stands still if the process hangs
    ready: bool
    doing: Doing
    number: int | None = None  # of the step or version
    why: str = ""  # the reason why it is not ready
    for_s: float = Field(ge=0)  # by the clock of the process
    waits_for: tuple[str, ...] = ()  # keys of groups
    holds: Mapping[str, float] = Field(default_factory=dict)  # seconds by key of group
    moved: int = 0  # a counter of the engine's progress
    at_once: int = 0  # current episodes, or a rollout's current calls of episodes
    waits_for_memory: bool = False
    starts: int = 1  # since it was last ready, with this one
    failure: Failure | None = None  # of the last start
    capabilities: Capabilities | None = None  # of a grader
    parity: tuple[ParityReport, ...] = ()  # of a rollout: its last reports


class JobRef(Message):
    job_id: str


class Requested(StrEnum):
    """The user's request for a job, which only the gateway writes."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class JobState(StrEnum):
    """The state of a job; the learner writes it, or the gateway while the job is queued."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}


class Fault(StrEnum):
    """The cause of an attempt's end, which decides the job's next state."""

    NOBODY = "nobody"  # the job continues
    JOB = "job"  # the job fails at once
    UNKNOWN = "unknown"  # the job continues; the third in a row without progress fails it
    MEMORY = "memory"  # the job continues with smaller micro-batches, or is held up
    MACHINE = "machine"  # the job is held up, and continues after other jobs
    ENGINES = "engines"  # the same; the rollouts' engines failed before the job


class ErrorKind(StrEnum):
    PROBLEM = "problem"
    SILENT_CLIENT = "silent_client"  # the job is paused until the client's next call


class JobError(Message):
    """The reason why a job failed or is paused."""

    message: str
    kind: ErrorKind = ErrorKind.PROBLEM

    def __str__(self) -> str:
        return self.message


class JobRecord(Message):
    id: str
    created_at: FiniteFloat
    recipe: Recipe
    num_tasks: int | None = None  # of training; None for a session
    request: Mapping[str, JsonValue] = Field(default_factory=dict)  # the body of the REST request
    requested: Requested = Requested.RUN
    state: JobState = JobState.QUEUED
    attempt: int = 0
    attempts_since_checkpoint: int = 0  # since the last progress or reported end of an attempt
    failures: int = 0  # attempts in a row that the job made fail without progress
    step: int = 0
    micro_batch_tokens: int | None = None  # replaces the recipe's, which was too large
    budget_gpu_hours: FiniteFloat | None = None  # replaces the recipe's
    unreadable_answers: int | None = None  # tasks left out; None: not checked
    readable_solutions: float | None = None  # the share that `equation_steps` can judge
    started_at: FiniteFloat | None = None
    finished_at: FiniteFloat | None = None
    error: JobError | None = None
    fault: Fault | None = None  # the cause if it is held up
    result: Mapping[str, JsonValue] = Field(default_factory=dict)

    @property
    def budget(self) -> float | None:
        """The GPU-hours after which the job pauses."""
        return self.budget_gpu_hours or self.recipe.training.budget_gpu_hours


class ActiveJob(Message):
    """The job and attempt that the stack works on."""

    job_id: str
    attempt: int
    recipe: Recipe
