"""Which version the requests in hand ask for, and what is left to other rollouts meanwhile.

A rollout goes to the newest version, unless it has requests of an evaluation: then it stays at the
version that is measured, or goes back to it, until it has answered them, and for as long afterwards
as two loads would take: the next may be on its way. An evaluation beside training is for a quarter
of the rollouts, at least one; the others go on.
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

Asked = RolloutRequest | Terms
_LINGER_S = 0.5
_MOST_LINGER_S = 30.0


@dataclass
class Demand:
    """The requests that this rollout has: those that wait for a version, and those at work."""

    newest: PolicyVersion | None = None
    serving: PolicyVersion | None = None  # none while weights are loaded
    held: list[Asked] = field(default_factory=list[Asked])
    at_work: list[Asked] = field(default_factory=list[Asked])
    last_version: int = 0  # of the job, after which nothing is trained
    is_alone: bool = True
    linger_s: float = _LINGER_S  # after the last answer, since the next may be on its way
    _answered: tuple[int | None, float] = (None, 0.0)  # the version of an evaluation, and when
    _declines: bool = False  # requests that ask for newer weights

    @contextmanager
    def holding(self, request: Asked) -> Iterator[None]:
        self.held.append(request)
        try:
            yield
        finally:
            self.held.remove(request)
            if request.version is not None:
                self._answered = (request.version, time.monotonic())
            self._declines = self._declines and self._stays

    @contextmanager
    def working_on(self, request: Asked) -> Iterator[None]:
        self.at_work.append(request)
        try:
            yield
        finally:
            self.at_work.remove(request)

    def has_loaded(self, seconds: float) -> None:
        """Linger for as long as it would take to go to the newest version and back."""
        self.linger_s = min(max(_LINGER_S, 2 * seconds), _MOST_LINGER_S)

    @property
    def wanted(self) -> PolicyVersion | None:
        """The version to serve: what an evaluation in hand measures, or else the newest."""
        newest = self.newest
        if newest is None:
            return None
        measured = {request.version for request in self.held if request.job_id == newest.job_id}
        last, answered_at = self._answered
        if newest.evaluated is not None and time.monotonic() - answered_at < self.linger_s:
            measured.add(last)
        for policy in (self.serving, newest.evaluated):
            if policy and policy.job_id == newest.job_id and policy.number in measured:
                return policy
        return newest

    @property
    def may_switch(self) -> bool:
        """Whether the wanted version may be loaded now: requests at work need nothing newer."""
        wanted = self.wanted
        return wanted is self.newest or (
            wanted is not None and all(_may_answer(wanted, request) for request in self.at_work)
        )

    def may_begin(self, request: Asked) -> bool:
        """Whether a request may be answered now, and does not keep others from their version."""
        serving = self.serving
        wanted = self.wanted
        if serving is None or serving.job_id != request.job_id:
            return False
        waits = None if self.may_switch else wanted
        return all(_may_answer(policy, request) for policy in (serving, waits) if policy)

    def is_for_others(self, request: Asked) -> bool:
        """Whether somebody else should sample what asks for newer weights than are measured here.

        From then on nothing of that kind is claimed, as long as the evaluation goes on.
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

    def left_to_others(self, place: int, replicas: int) -> Set[Stream]:
        """The streams of which nothing is to be claimed, as one of so many rollouts."""
        self.is_alone = replicas < 2
        left: set[Stream] = set()
        if self.is_alone:
            return left
        if self._declines:
            left.add(REQUESTS)
        trains_on = self.newest is not None and self.newest.number < self.last_version
        if trains_on and place >= max(1, replicas // 4):
            left.add(EVAL_REQUESTS)
        return left

    def calls_taken(self, job_id: str, place: int, replicas: int) -> Iterator[str]:
        """The keys of the job's own calls that are taken, those of an evaluation first."""
        left = self.left_to_others(place, replicas)
        for stream, kind in ((EVAL_REQUESTS, "eval"), (REQUESTS, "work")):
            if stream not in left:
                yield f"{kind}:{job_id}"

    @property
    def _stays(self) -> bool:
        """Whether an evaluation in hand measures what is served."""
        return self.serving is not None and self.serving.number in {r.version for r in self.held}


def _may_answer(policy: PolicyVersion, request: Asked) -> bool:
    return policy.number >= request.min_version and request.version in (None, policy.number)
