"""The whole key-space in one file: every key, what it carries, who writes it and who reads it.

====================  ==================================  ==================  =====================
key                   carries                             written by          read by
====================  ==================================  ==================  =====================
jobs                  JobRef                              gateway             learner
job:{id}              JobRecord, a hash                   gateway, learner    all
active                ActiveJob                           learner             rollout, grader
learner               who takes up jobs, a hash           learner             learner
{job}:requests        RolloutRequest (train, pretrain)    learner             rollout
{job}:eval_requests   RolloutRequest (eval)               learner             rollout, first
{job}:episodes        RolloutRequest (train, pretrain)    learner             environment
{job}:eval_episodes   RolloutRequest (eval)               learner             environment, first
{job}:rollouts        RolloutGroup                        samplers            grader
{job}:graded          GradedGroup                         grader              learner
{job}:failed          GradedGroup without a group         samplers            learner
{job}:policy          PolicyVersion                       learner             every rollout
{job}:events          JobEvent                            all                 gateway
{job}:under_way       asked keys not yet taken in, a set  learner             learner, gateway
{job}:faults          who died or failed at what, a hash  rollout, grader     rollout, grader
lives:{group}         heartbeats of workers, a hash       rollout, grader     rollout, grader
status                Status by replica, a hash           all but gateway     gateway, learner
{job}:event_ids       ids of recorded events, a set       all                 all
starts                processes started, by service       all                 gateway
trials                Trial, a list that expires          gateway, learner    grader
trial:{id}            TrialResult, a list that expires    grader              gateway, learner
calls                 ids of Calls that wait, a list      gateway             rollout
call_bodies           Call by id, a hash                  gateway             rollout
waited_for:{gateway}  ids of calls and tries, a hash      gateway             rollout
answers:{gateway}     Pieces, a list that expires         rollout             gateway
====================  ==================================  ==================  =====================

Samplers are rollouts and environment workers. Every key begins with ``weir:``. A job's keys are
made when its learner first takes it up, and go when it ends, but for its record and its events.
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
    """A stream of one type of message. ``group`` is the consumer group that shares the work."""

    name: str
    carries: type[M]
    group: str | None = None

    def key(self, job_id: str = "") -> str:
        return PREFIX + self.name.format(job=job_id)

    @property
    def short_name(self) -> str:
        """What metrics and people call it, whatever the job."""
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
LEARNER = PREFIX + "learner"
STARTS = PREFIX + "starts"
STATUS = PREFIX + "status"
TRIALS = PREFIX + "trials"
CALLS = PREFIX + "calls"
CALL_BODIES = PREFIX + "call_bodies"


def request_stream(purpose: Purpose, in_environment: bool) -> Stream[RolloutRequest]:
    """The stream on which requests of this purpose are asked; evaluation is claimed first."""
    of_training, of_evaluation = (
        (EPISODES, EVAL_EPISODES) if in_environment else (REQUESTS, EVAL_REQUESTS)
    )
    return of_evaluation if purpose is Purpose.EVAL else of_training


def job_key(job_id: str) -> str:
    return f"{PREFIX}job:{job_id}"


def trial_key(trial_id: str) -> str:
    return f"{PREFIX}trial:{trial_id}"


def waited_for_key(gateway: str) -> str:
    """The hash of the calls that a life of a gateway waits for, with the tries made before."""
    return f"{PREFIX}waited_for:{gateway}"


def answers_key(gateway: str) -> str:
    return f"{PREFIX}answers:{gateway}"


def pending_key(job_id: str) -> str:
    """The set of keys of groups that were asked for and not yet taken in."""
    return f"{PREFIX}{job_id}:under_way"


def faults_key(job_id: str) -> str:
    """The hash that names, per entry, the workers that died holding it and where it failed."""
    return f"{PREFIX}{job_id}:faults"


def lives_key(group: str) -> str:
    """The hash that counts the heartbeats of each worker of a group."""
    return f"{PREFIX}lives:{group}"


def event_ids_key(job_id: str) -> str:
    return f"{PREFIX}{job_id}:event_ids"


def keys_of_events(job_id: str) -> list[str]:
    return [EVENTS.key(job_id), event_ids_key(job_id)]
