"""Choose the version to serve, and the streams that this rollout leaves to others.

A rollout serves the newest version, unless it has requests of an evaluation. Then it serves the
evaluated version until it has answered them. It stays there for as long afterwards as two loads
would take, since the next request may be on its way. An evaluation during training is for a quarter
of the rollouts, at least one. The other rollouts continue to train. A rollout that is alone
evaluates first: turns would not shorten the longest step, and each turn loads weights twice.
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

    @contextmanager
    def hold(self, request: Request) -> Iterator[None]:
        self.requests.append(request)
        try:
            yield
        finally:
            self.requests.remove(request)
            if request.version is not None:
                self._evaluated = request.version
                self._evaluated_at = time.monotonic()
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
        if newest.evaluated is not None and lingers:
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
        streams: set[Stream] = set()
        if self._declines:
            streams.add(REQUESTS)
        is_training = self.newest is not None and self.newest.number < self.last_version
        if is_training and place >= max(1, replicas // 4):
            streams.add(EVAL_REQUESTS)
        return streams

    def call_keys(self, job_id: str, place: int, replicas: int) -> Iterator[str]:
        """Yield the keys of the job's own calls to take, those of an evaluation first."""
        excluded = self.excluded_streams(place, replicas)
        if EVAL_REQUESTS not in excluded:
            yield f"eval:{job_id}"
        if REQUESTS not in excluded:
            yield f"work:{job_id}"

    @property
    def _stays(self) -> bool:
        """Whether a leased evaluation measures the served version."""
        versions = {request.version for request in self.requests}
        return self.serving is not None and self.serving.number in versions


def _may_answer(policy: PolicyVersion, request: Request) -> bool:
    return policy.number >= request.min_version and request.version in (None, policy.number)
