"""All keys in Redis, with the values, writers and readers of each.

====================  ==================================  ==================  =====================
key                   carries                             written by          read by
====================  ==================================  ==================  =====================
jobs                  JobRef                              gateway             learner
job:{id}              JobRecord, a hash                   gateway, learner    all
active                ActiveJob                           learner             rollout, grader
billed                id of the job with an attempt       learner             all
learner               the lease on jobs, a hash           learner             learner
{job}:requests        RolloutRequest (train, pretrain)    learner             rollout
{job}:eval_requests   RolloutRequest (eval)               learner             rollout, first
{job}:episodes        RolloutRequest (train, pretrain)    learner             environment
{job}:eval_episodes   RolloutRequest (eval)               learner             environment, first
{job}:rollouts        RolloutGroup                        samplers            grader
{job}:graded          GradedGroup                         grader              learner
{job}:failed          GradedGroup without a group         samplers            learner
{job}:policy          PolicyVersion                       learner             every rollout
{job}:events          JobEvent                            all                 gateway
{job}:under_way       keys of requested groups, a set     learner             learner, gateway
{job}:faults          failures by entry, a hash           rollout, grader     rollout, grader
lives:{group}         heartbeats of workers, a hash       rollout, grader     rollout, grader
status                Status by replica, a hash           all but gateway     gateway, learner
{job}:event_ids       ids of recorded events, a set       all                 all
{job}:cost            seconds and tokens, a hash          all                 gateway, learner
starts                processes started, by service       all                 gateway
new_policy            a stream of one entry, that wakes   learner             rollout
new_call              a stream of one entry, that wakes   gateway             rollout
trials                Trial, a list that expires          gateway, learner    grader
trial:{id}            TrialResult, a list that expires    grader              gateway, learner
calls                 ids of waiting Calls, a list        gateway             rollout
call_bodies           Call by id, a hash                  gateway             rollout
waited_for:{gateway}  ids of calls and tries, a hash      gateway             rollout
answers:{gateway}     Pieces, a list that expires         rollout             gateway
====================  ==================================  ==================  =====================

Samplers are rollouts and environment workers. All keys begin with ``weir:``. The first attempt of a
job creates its keys. They are deleted when it ends, except for its record, events and cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from protocol.messages import (
    GradedGroup,
    JobEvent,
    JobRef,
    Message,
    PolicyVersion,
    RolloutGroup,
    RolloutRequest,
)
from protocol.recipe import Purpose

PREFIX = "weir:"
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Stream(Generic[M]):
    """A stream of messages of one type. ``group`` is its consumer group, if any."""

    name: str
    carries: type[M]
    group: str | None = None

    def key(self, job_id: str = "") -> str:
        return PREFIX + self.name.format(job=job_id)

    @property
    def short_name(self) -> str:
        """The name without the job, for metrics and messages."""
        return self.name.rpartition(":")[2]


JOBS = Stream("jobs", JobRef)
REQUESTS = Stream("{job}:requests", RolloutRequest, group="rollout")
EVAL_REQUESTS = Stream("{job}:eval_requests", RolloutRequest, group="rollout")
EPISODES = Stream("{job}:episodes", RolloutRequest, group="environment")
EVAL_EPISODES = Stream("{job}:eval_episodes", RolloutRequest, group="environment")
ROLLOUTS = Stream("{job}:rollouts", RolloutGroup, group="grader")
GRADED = Stream("{job}:graded", GradedGroup, group="learner")
FAILED = Stream("{job}:failed", GradedGroup, group="learner")
POLICY = Stream("{job}:policy", PolicyVersion)
EVENTS = Stream("{job}:events", JobEvent)

WORK_STREAMS: tuple[Stream, ...] = (
    *(REQUESTS, EVAL_REQUESTS, EPISODES, EVAL_EPISODES),
    *(ROLLOUTS, GRADED, FAILED),
)

ACTIVE = PREFIX + "active"
BILLED = PREFIX + "billed"
LEARNER = PREFIX + "learner"
STARTS = PREFIX + "starts"
STATUS = PREFIX + "status"
TRIALS = PREFIX + "trials"
CALLS = PREFIX + "calls"
CALL_BODIES = PREFIX + "call_bodies"
NEW_POLICY = PREFIX + "new_policy"
NEW_CALL = PREFIX + "new_call"


def request_stream(purpose: Purpose, in_environment: bool) -> Stream[RolloutRequest]:
    """Return the stream for requests; workers claim from those of evaluations first."""
    is_evaluation = purpose is Purpose.EVAL
    if in_environment:
        return EVAL_EPISODES if is_evaluation else EPISODES
    return EVAL_REQUESTS if is_evaluation else REQUESTS


def job_key(job_id: str) -> str:
    return f"{PREFIX}job:{job_id}"


def trial_key(trial_id: str) -> str:
    return f"{PREFIX}trial:{trial_id}"


def waited_for_key(gateway: str) -> str:
    """The hash of the calls that a gateway process waits for, with their earlier tries."""
    return f"{PREFIX}waited_for:{gateway}"


def answers_key(gateway: str) -> str:
    return f"{PREFIX}answers:{gateway}"


def pending_key(job_id: str) -> str:
    """The set of keys of groups that are requested and not yet ingested."""
    return f"{PREFIX}{job_id}:under_way"


def faults_key(job_id: str) -> str:
    """The hash of the workers that died with an entry, and of replicas where it failed."""
    return f"{PREFIX}{job_id}:faults"


def lives_key(group: str) -> str:
    """The hash that counts the heartbeats of each worker of a group."""
    return f"{PREFIX}lives:{group}"


def event_ids_key(job_id: str) -> str:
    return f"{PREFIX}{job_id}:event_ids"


def cost_key(job_id: str) -> str:
    """The hash of a job's cost: see `protocol.bill`."""
    return f"{PREFIX}{job_id}:cost"


def event_keys(job_id: str) -> list[str]:
    return [EVENTS.key(job_id), event_ids_key(job_id)]
