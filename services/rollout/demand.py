"""Choose the version to serve, and the streams that this rollout leaves to others.

A rollout serves the newest version, unless it has requests of an evaluation. Then it serves the
evaluated version until it has answered them. It stays there for as long afterwards as two loads
would take, since the next request may be on its way. An evaluation during training is for a quarter
of the rollouts, at least one. The other rollouts continue to train.

A rollout that is alone takes turns. It takes groups of the evaluation until the first of them is
answered. Training's turn is three times as long as these took, unless training has no requests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field

from protocol.calls import Terms
from protocol.messages import PolicyVersion, RolloutRequest
from protocol.recipe import Purpose
from protocol.streams import EVAL_REQUESTS, REQUESTS, Stream

Request = RolloutRequest | Terms
_MIN_LINGER_S = 0.5
_MAX_LINGER_S = 30.0
# How many times as long as the evaluation's turn the following turn of training takes.
_TRAINING_TURNS = 3


@dataclass
class Demand:
    """The requests of this rollout: those that wait for a version, and those in the engine."""

    newest: PolicyVersion | None = None
    # None while weights are loaded.
    serving: PolicyVersion | None = None
    requests: list[Request] = field(default_factory=list[Request])
    sampling: list[Request] = field(default_factory=list[Request])
    # The job's last version: no request trains on it.
    last_version: int = 0
    is_alone: bool = True
    # How long to stay at the evaluated version after its last answer.
    linger_s: float = _MIN_LINGER_S
    _evaluated: int | None = None
    _evaluated_at: float = 0.0
    # Whether requests for newer weights are left to other rollouts.
    _declines: bool = False
    # The beginning of the evaluation's last turn, and of its next one. The latter is known once a
    # group of the turn has been answered.
    _turn_began: float = 0.0
    _next_turn: float = 0.0
    _turn_job: str = ""
    # The end of the last request.
    _idle_since: float = 0.0

    @contextmanager
    def hold(self, request: Request) -> Iterator[None]:
        takes_turns = self._is_training and _is_evaluation_group(request)
        if takes_turns and not self._evaluates:
            self._turn_began = time.monotonic()
            self._next_turn = 0.0
            self._turn_job = request.job_id
        self.requests.append(request)
        try:
            yield
        finally:
            self.requests.remove(request)
            self._idle_since = now = time.monotonic()
            if request.version is not None:
                self._evaluated = request.version
                self._evaluated_at = now
            if takes_turns:
                self._next_turn = now + _TRAINING_TURNS * (now - self._turn_began)
            self._declines = self._declines and self._stays

    @contextmanager
    def sample(self, request: Request) -> Iterator[None]:
        self.sampling.append(request)
        try:
            yield
        finally:
            self.sampling.remove(request)

    def set_load_time(self, seconds: float) -> None:
        """Linger for as long as it would take to load the newest version and to return."""
        self.linger_s = min(max(_MIN_LINGER_S, 2 * seconds), _MAX_LINGER_S)

    @property
    def target(self) -> PolicyVersion | None:
        """The version to serve: that of a leased evaluation, or else the newest."""
        newest = self.newest
        if newest is None:
            return None
        versions = {request.version for request in self.requests if request.job_id == newest.job_id}
        lingers = time.monotonic() - self._evaluated_at < self.linger_s
        if newest.evaluated is not None and lingers and not self._training_waits:
            versions.add(self._evaluated)
        for policy in (self.serving, newest.evaluated):
            if policy and policy.job_id == newest.job_id and policy.number in versions:
                return policy
        return newest

    @property
    def may_switch(self) -> bool:
        """Whether the target may be loaded now: no request in the engine needs a newer version."""
        target = self.target
        if target is None or target is self.newest:
            return True
        return all(_may_answer(target, request) for request in self.sampling)

    def may_begin(self, request: Request) -> bool:
        """Whether a request may be sampled now, without a delay of the switch to the target."""
        serving = self.serving
        if serving is None or serving.job_id != request.job_id:
            return False
        if not _may_answer(serving, request):
            return False
        target = self.target
        return self.may_switch or target is None or _may_answer(target, request)

    def is_for_others(self, request: Request) -> bool:
        """Whether another rollout should sample a request for newer weights.

        It should while this rollout evaluates. This rollout then leases no training requests until
        the evaluation ends.
        """
        declines = (
            not self.is_alone
            and request.purpose is not Purpose.EVAL
            and self._stays
            and self.serving is not None
            and request.min_version > self.serving.number
        )
        self._declines = self._declines or declines
        return declines

    def excluded_streams(self, place: int, replicas: int) -> Set[Stream]:
        """Return the streams that this one of ``replicas`` rollouts does not read now."""
        self.is_alone = replicas < 2
        if self.is_alone:
            return {EVAL_REQUESTS} if self._is_training and self._is_training_turn else set()
        streams: set[Stream] = set()
        if self._declines:
            streams.add(REQUESTS)
        if self._is_training and place >= max(1, replicas // 4):
            streams.add(EVAL_REQUESTS)
        return streams

    def call_keys(self, job_id: str, place: int, replicas: int) -> Iterator[str]:
        """Yield the keys of the job's own calls to take, those of an evaluation first."""
        excluded = self.excluded_streams(place, replicas)
        if EVAL_REQUESTS not in excluded or self.is_alone:
            yield f"eval:{job_id}"
        if REQUESTS not in excluded:
            yield f"work:{job_id}"

    @property
    def _evaluates(self) -> bool:
        return any(_is_evaluation_group(request) for request in self.requests)

    @property
    def _is_training(self) -> bool:
        return self.newest is not None and self.newest.number < self.last_version

    @property
    def _turn_has_ended(self) -> bool:
        """Whether a group of the evaluation's last turn has been answered, in this job."""
        newest = self.newest
        return newest is not None and newest.job_id == self._turn_job and self._next_turn > 0

    @property
    def _is_training_turn(self) -> bool:
        """Whether a rollout that is alone takes no more groups of the evaluation for now."""
        if self._evaluates or not self._turn_has_ended:
            return self._turn_has_ended
        now = time.monotonic()
        is_busy = bool(self.requests) or now < self._idle_since + _MIN_LINGER_S
        return is_busy and now < self._next_turn

    @property
    def _training_waits(self) -> bool:
        """Whether the evaluation's turn is over, and requests wait for newer weights."""
        serving = self.serving
        if serving is None or not self.is_alone or not self._turn_has_ended:
            return False
        return any(request.min_version > serving.number for request in self.requests)

    @property
    def _stays(self) -> bool:
        """Whether a leased evaluation measures the served version."""
        versions = {request.version for request in self.requests}
        return self.serving is not None and self.serving.number in versions


def _is_evaluation_group(request: Request) -> bool:
    """Whether it is an evaluation's own request. A call of an episode waits for no turn."""
    return isinstance(request, RolloutRequest) and request.version is not None


def _may_answer(policy: PolicyVersion, request: Request) -> bool:
    return policy.number >= request.min_version and request.version in (None, policy.number)
