"""What crosses a process boundary: every message of Weir, frozen and complete.

The life of one datum is a chain of types, one per stage::

    Task -> RolloutRequest -> RolloutGroup -> GradedGroup -> (trained) -> PolicyVersion

A group's identity is its *key*, ``"train:17"``: its purpose and number. A repeat of a message has
the same, and changes nothing. Arrays are flat; ``lengths`` says where one response ends.
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


def _array_of(dtype: str) -> PlainValidator:
    def as_read_only(value: Any) -> np.ndarray:
        try:
            array = np.ascontiguousarray(value, dtype=np.dtype(dtype))
        except (TypeError, OverflowError) as error:
            raise ValueError(f"expected an array of {dtype}: {error}") from error
        if array.ndim != 1:
            raise ValueError(f"expected one dimension, got shape {array.shape}")
        (view := array.view()).flags.writeable = False
        return view

    return PlainValidator(as_read_only)


Int32Array = Annotated[np.ndarray, _array_of("<i4")]
Uint8Array = Annotated[np.ndarray, _array_of("|u1")]
Float32Array = Annotated[np.ndarray, _array_of("<f4")]
NOT_GIVEN = "(not given)"  # the prompt of a task that is only for a trial, and has none


class Message(BaseModel):
    """A frozen value that travels between services; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


def as_text(content: object) -> object:
    """The content of a chat message: a list of text parts as one text, anything else as it is."""
    if not isinstance(content, list):
        return content
    return "".join(map(_text_of_part, cast(list[object], content)))


def _text_of_part(part: object) -> str:
    match part:  # pyright: ignore[reportMatchNotExhaustive]
        case {"type": "text", "text": str(text)}:
            return text
    raise ValueError("only text is read: give a string, or parts of type 'text'")


class ChatMessage(Message):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(as_text)]


class Task(Message):
    """One problem: a prompt (plain or as messages), and what graders hold a response against.

    A task whose grader needs no answer may lack it.
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
        """The prompt as one text; the turns of a conversation carry their roles."""
        if self.messages is None:
            return self.prompt or ""
        if len(self.messages) == 1:
            return self.messages[0].content
        return "\n\n".join(f"[{turn.role}]\n{turn.content}" for turn in self.messages)


def group_key(purpose: Purpose, number: int) -> str:
    """The identity of a group within its job, for example ``"train:17"``."""
    return f"{purpose}:{number}"


class RolloutRequest(Message):
    """The learner asks for one group: ``group_size`` responses to one task."""

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
    min_version: int = Field(default=0, ge=0)  # older weights must not answer this request
    version: int | None = None  # where no other may: that of an evaluation
    in_environment: bool = False  # each response is an episode

    @property
    def key(self) -> str:
        return group_key(self.purpose, self.number)


class VersionSpan(Message):
    """The policy's own tokens in ``[start, end)`` of a response were sampled under one version."""

    attempt: int
    version: int
    start: int
    end: int

    def shift(self, offset: int) -> Self:
        """The same span of a text that begins ``offset`` tokens earlier."""
        return self.model_copy(update={"start": self.start + offset, "end": self.end + offset})


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


class Turn(Message):
    role: str
    content: str


class Episode(Message):
    """What an environment says of a response that took several turns."""

    reward: FiniteFloat | None = None  # on the environment's own scale
    problem: str = ""  # a code, where the environment or the machine broke: no fault of the policy
    words: str = ""  # of the environment about it
    turns: int = 0  # responses of the policy
    seconds: Mapping[str, float] = Field(default_factory=dict)  # by part: model, environment
    conversation: tuple[Turn, ...] = ()

    @model_validator(mode="after")
    def _rewarded_or_broken(self) -> Self:
        if (self.reward is None) != bool(self.problem):
            raise ValueError("an episode has either a reward or a problem")
        return self


OPENS_THINKING = "<think>"
CLOSES_THINKING = "</think>"


class Response(Message):
    """What is not an array of one sampled response."""

    text: str  # the policy's own, with special tokens, but for the one that ends it
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    episode: Episode | None = None

    @property
    def is_broken(self) -> bool:
        """Whether there is nothing to learn from it: it has no tokens."""
        return self.episode is not None and bool(self.episode.problem)


class RolloutGroup(Message):
    """G responses to one request, with the log-probability each token had when it was sampled.

    A response may hold tokens of tools or of an environment between the policy's own. They are
    context: nothing learns from them. Spans cover them too, so that a response has no gaps, and
    each span has a token of the policy's own. An episode that broke has no tokens. ``lengths``
    count all tokens, as do the limit of the context, memory and work; rewards, losses, staleness
    and metrics count the policy's own.
    """

    request: RolloutRequest
    prompt_ids: Int32Array  # [prompt_token]
    token_ids: Int32Array  # [token], all responses one after another
    behavior_logprobs: Float32Array  # [token], nats, after temperature; 0 where not its own
    own: Uint8Array | None = None  # [token], 1 if the policy sampled it, else 0; None: all 1
    lengths: Int32Array  # [group], tokens per response
    responses: tuple[Response, ...]  # [group]
    begins_thinking: bool = False  # each response: the prompt ends in `OPENS_THINKING`
    sampling_seconds: float = Field(ge=0)

    @property
    def key(self) -> str:
        return self.request.key

    def bounds(self) -> list[tuple[int, int]]:
        ends = np.cumsum(self.lengths).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @property
    def is_own(self) -> np.ndarray:
        """Which tokens the policy sampled, [token] bool."""
        return np.ones(len(self.token_ids), bool) if self.own is None else self.own == 1

    @property
    def own_lengths(self) -> np.ndarray:
        """The policy's own tokens per response, [group] int."""
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
                f"asked for {self.request.group_size} responses, got {len(self.responses)} with "
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
                raise ValueError(f"responses[{index}] broke, but has {length} tokens")
        return self

    @model_validator(mode="after")
    def _own_says_whose_each_token_is(self) -> Self:
        if self.own is None:
            return self
        if len(self.own) != len(self.token_ids) or (self.own > 1).any():
            raise ValueError(
                f"own must hold a 0 or a 1 for each of the {len(self.token_ids)} tokens; leave it "
                "out if all are the policy's"
            )
        if self.behavior_logprobs[self.own == 0].any():
            raise ValueError("behavior_logprobs must be 0 where own is 0: the policy sampled none")
        for index, (first, end) in enumerate(self.bounds()):
            if not self.own[first:end].any() and not self.responses[index].is_broken:
                raise ValueError(
                    f"responses[{index}] has no token of the policy's own; let the group fail"
                )
            for span in self.responses[index].spans:
                own = self.own[first + span.start : first + span.end]
                if span.start < span.end and not own.any():
                    raise ValueError(
                        f"responses[{index}].spans: the policy sampled nothing in [{span.start}, "
                        f"{span.end}); make it part of the span before or after it"
                    )
        return self


class Mark(Message):
    """A place in a response's text where a verifier looked, and what it found there."""

    start: int = Field(ge=0)  # characters
    end: int = Field(ge=0)
    verdict: Literal["right", "wrong", "unknown"]
    note: str = ""


class Graded(Message):
    """A score that a verifier stands for, in [0, 1]; ``reason`` says why a response is wrong."""

    kind: Literal["graded"] = "graded"
    value: float = Field(ge=0, le=1)
    reason: str | None = None
    breakdown: Mapping[str, FiniteFloat] = Field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    comments: Mapping[str, str] = Field(default_factory=dict)  # a judge's words, by criterion


class Ungradable(Message):
    """No score, through no fault of the response; never to be read as 0."""

    kind: Literal["ungradable"] = "ungradable"
    reason: str


Score = Annotated[Graded | Ungradable, Field(discriminator="kind")]


RIGHT = 1 - 1e-9  # and above: weights that add up to 1 fall short of it in floats


def is_right(value: float) -> bool:
    return value >= RIGHT


class Grade(Message):
    """The verdict on one response; ``process`` is None where the rubric did not ask for it."""

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
    """Why a group could not be made."""

    DEATHS = "deaths"
    FAILURES = "failures"
    UNREADABLE = "unreadable"
    UNWORKABLE = "unworkable"  # it would be the same in every worker


class GroupFailure(Message):
    kind: FailureKind
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class GradedGroup(Message):
    """A group with one grade per response, or the reason why it could not be made."""

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
            raise ValueError("a graded group holds either a group or a failure")
        if self.group is not None and len(self.grades) != len(self.group.responses):
            raise ValueError(f"{len(self.grades)} grades, {len(self.group.responses)} responses")
        return self


class Trial(Message):
    """A reward tried on one response; without a text, whether the task's answer can be read."""

    id: str
    reward: Reward
    task: Task
    text: str | None


class TrialResult(Message):
    """What became of a trial; without an outcome ``missing`` says what the grader lacks for it."""

    outcome: Score | None = None
    process: Score | None = None
    missing: str = ""
    scores: Mapping[str, Score] = Field(default_factory=dict)  # by the checks' labels
    details: Mapping[str, str] = Field(default_factory=dict)  # what failed, in words, by reason
    tokens: Mapping[str, int] = Field(default_factory=dict)  # that were spent, by judge's model
    seconds: float = 0.0


class Probes(Message):
    """A sequence that learner and rollouts score under one version, to compare them."""

    tasks: tuple[Task, ...]
    rendered: str  # a digest of their prompts, as the learner reads them
    token_ids: tuple[int, ...]
    # The learner's, of all tokens but the first, in nats; and those of versions before.
    logprobs: tuple[float, ...]
    earlier: Mapping[int, tuple[float, ...]] = Field(default_factory=dict[int, tuple[float, ...]])
    most: float  # that the mean gap may be


Measured = Annotated[
    float | None, BeforeValidator(lambda n: n if n is not None and math.isfinite(n) else None)
]


class ParityReport(Message):
    """How a rollout answered the probes of a version, before it samples with it."""

    job_id: str
    attempt: int
    version: int
    rollout: str  # its name
    mean: Measured  # gap in nats, or relative to the log-probs where these are larger than 1
    max: Measured  # nats
    most: FiniteFloat
    same_prompts: bool  # as the learner's
    holds: int | None = None  # the earlier version whose log-probs are much nearer to its own

    @property
    def agrees(self) -> bool:
        is_near = self.mean is not None and self.mean <= self.most
        return is_near and self.same_prompts and self.holds is None


class PolicyVersion(Message):
    """New weights lie in ``folder``, in the learner's memory, and their manifest has ``digest``."""

    job_id: str
    attempt: int = Field(ge=0)  # 0: not known, or of no job
    number: int = Field(ge=0)
    folder: str
    digest: str
    base: str = ""  # where the weights are an adapter: the folder of the model that it is for
    base_digest: str = ""
    links: tuple[str, ...] = ()  # where other machines find them: see `deltas`
    probes: Probes | None = None
    evaluated: PolicyVersion | None = None  # this or an older one, beside training


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
    phase_seconds_total: Mapping[str, FiniteFloat] | None = None
    totals: Mapping[str, FiniteFloat] | None = None


class StepMetrics(_LearnerMetrics):
    """A training step, or a change of the weights that a session's client made."""

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
    name: str = ""  # of the further file of tasks
    per_task: Mapping[str, tuple[float, int]] | None = None  # correct and graded responses


class EvaluationMetrics(EventData):
    kind: Literal["evaluation"] = "evaluation"
    step: int
    evaluation: EvaluationResult
    groups: Mapping[str, JsonValue] | None = None


class OtherEvaluation(EventData):
    """An evaluation on a further file of tasks, which has a name."""

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
    begins: bool = False  # an attempt, by which the job is under way again

    @property
    def type(self) -> Literal["message", "metrics"]:
        return "message" if isinstance(self.data, Notice | OtherEvaluation) else "metrics"


class Capabilities(Message):
    """What a grader can be asked for, by the names that a recipe may give."""

    verifiers: tuple[str, ...]
    judges: tuple[str, ...]

    def lacking(self, check: Check) -> str | None:
        """What graders with these capabilities lack for a check, and the remedy; None: nothing."""
        if check.verifier == "python" and "python" not in self.verifiers:
            return (
                "the graders run no client's code; set WEIR_GRADER_PYTHON=on where they run, or "
                "use string_check, text_similarity, score_model or a multi of them"
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
        known = ", ".join(map(repr, self.judges))
        return (
            f"the graders know no model {check.model!r}, but {known}; "
            "use one of these, or name it in WEIR_JUDGES where they run"
        )


class Phase(StrEnum):
    """How far a process is, for those that wait for it."""

    STARTING = "starting"
    LOADING = "loading"
    WORKING = "working"
    WAITING = "waiting"


class Doing(StrEnum):
    """What a process does: a code, which the gateway reads out to people."""

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
    """What ended a process that was never ready."""

    words: str
    job_id: str | None = None  # of the model that no engine started on; None: it was no job's


class Status(Message):
    """What a process is doing, told with every heartbeat; ``replica`` is kept by its restarts."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str
    service: str
    replica: str
    beats: int  # whoever sees it stand still knows that the process shows no life
    ready: bool
    doing: Doing
    number: int | None = None  # of the step or the version that it does it to
    why: str = ""  # where it is not ready, for people
    for_s: float = Field(ge=0)  # by the process's own clock
    waits_for: tuple[str, ...] = ()  # keys of groups that have not arrived
    holds: Mapping[str, float] = Field(default_factory=dict)  # groups it has, by key; seconds
    moved: int = 0  # of a rollout: differs from the one before if its engine has done anything
    at_once: int = 0  # episodes that are played, or calls of episodes in a rollout's hands
    waits_for_memory: bool = False
    starts: int = 1  # in a row, this one included, since it was last ready
    failure: Failure | None = None  # of the last of them
    capabilities: Capabilities | None = None  # of a grader
    parity: tuple[ParityReport, ...] = ()  # of a rollout: its last answers to probes


class JobRef(Message):
    job_id: str


class Requested(StrEnum):
    """What the user wants of a job; the gateway writes it, everyone obeys it."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class JobState(StrEnum):
    """What a job actually does; the learner writes it (the gateway only while it is queued)."""

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
    """Whose fault ended an attempt at a job, and so what that costs the job."""

    NOBODY = "nobody"  # nothing: it goes on
    JOB = "job"  # it fails at once
    UNKNOWN = "unknown"  # it goes on; the third in a row without progress fails it
    MEMORY = "memory"  # it goes on in smaller micro-batches, or is held up if there are none
    MACHINE = "machine"  # it is held up, and tried again when others have had their turn
    ENGINES = "engines"  # the same, for rollouts whose engines failed before it came


class ErrorKind(StrEnum):
    PROBLEM = "problem"
    SILENT_CLIENT = "silent_client"  # the job is paused until its client's next call


class JobError(Message):
    """Why a job failed, or why it is paused."""

    message: str
    kind: ErrorKind = ErrorKind.PROBLEM

    def __str__(self) -> str:
        return self.message


class JobRecord(Message):
    id: str
    created_at: FiniteFloat
    recipe: Recipe
    num_tasks: int | None = None  # to train on; None for a session
    request: Mapping[str, JsonValue] = Field(default_factory=dict)  # the REST body, as it came
    requested: Requested = Requested.RUN
    state: JobState = JobState.QUEUED
    attempt: int = 0
    attempts_since_checkpoint: int = 0  # begun since the last progress, or report of how one ended
    failures: int = 0  # attempts in a row that broke by a fault of the job's own, without progress
    step: int = 0
    micro_batch_tokens: int | None = None  # in the place of the recipe's, which was too large
    unreadable_answers: int | None = None  # tasks that are left out for them; None: not checked
    readable_solutions: float | None = None  # the share that `equation_steps` can judge
    started_at: FiniteFloat | None = None
    finished_at: FiniteFloat | None = None
    error: JobError | None = None
    fault: Fault | None = None  # for which it is held up
    result: Mapping[str, JsonValue] = Field(default_factory=dict)


class ActiveJob(Message):
    """The one job that this stack works on, and which life of the learner works on it."""

    job_id: str
    attempt: int
    recipe: Recipe
