"""What becomes of a call: a value, or why there is none."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import JsonValue

from services.grader.nursery import LOST_WITH_NURSERY, Death, Worker
from services.grader.pool_pipe import NoAnswer

_GARBLED = "its answer cannot be read"
_STARVED_BELOW = 0.5  # of the deadline, in CPU time


class Cause(StrEnum):
    """Why a call has no value."""

    TIMEOUT = "timeout"
    CRASH = "crash"
    MEMORY = "memory"
    KILLED = "killed"  # from outside, as when the machine is out of memory: not the call's fault
    ERROR = "error"  # the function raised, or call or value do not fit; the worker is unharmed


@dataclass(frozen=True)
class Value:
    """What the function returned."""

    value: JsonValue


@dataclass(frozen=True)
class Failed:
    """The call ended without a value, and what is known about it.

    ``cpu_s`` tells what hung from what was starved: the CPU time in seconds that the worker spent
    on the call, or None if that is not known.
    """

    cause: Cause
    detail: str = ""
    cpu_s: float | None = field(default=None, compare=False)

    def is_machines_fault(self, deadline_s: float) -> bool:
        """Whether this proves nothing of the call: its worker was killed, or hardly ran.

        It hardly ran if it spent less than half of the deadline on a processor. So it counts too
        if what it spent is not known, which happens where the machine is too busy even to bury it:
        a call is to blame only if it surely had its time.
        """
        if self.cause is Cause.TIMEOUT:
            return self.cpu_s is None or self.cpu_s < _STARVED_BELOW * deadline_s
        return self.cause is Cause.KILLED


_CAUSE_OF_DEATH = {"SIGXCPU": Cause.TIMEOUT, "SIGKILL": Cause.KILLED}  # all others are crashes


def outcome_of(
    answer: bytes | NoAnswer | Death, number: int, worker: Worker, deadline_s: float
) -> Value | Failed | None:
    """What a worker's answer or end means; None if the worker was lost without being asked."""
    if isinstance(answer, bytes):
        return _read(answer, number, worker)
    if answer is NoAnswer.LATE:
        return Failed(Cause.TIMEOUT, f"not done after {deadline_s:g} s")
    if answer is NoAnswer.GONE or answer == LOST_WITH_NURSERY:
        return None
    if isinstance(answer, Death):
        return Failed(_CAUSE_OF_DEATH.get(answer.how, Cause.CRASH), answer.how)
    return Failed(Cause.CRASH, _GARBLED)


def harm(outcome: Value | Failed | None) -> str | None:
    """Why the worker cannot go on after this outcome, or None if it can."""
    if outcome is None:
        return "died"
    if isinstance(outcome, Value) or outcome.cause is Cause.ERROR:
        return None
    return outcome.cause.value


def _read(answer: bytes, number: int, worker: Worker) -> Value | Failed:
    try:
        content = json.loads(answer)
        outcome = _told(content, worker.cpu_s)
        if content["number"] == number:
            worker.cpu_s = content["cpu_s"]
            return outcome
    except (ValueError, TypeError, KeyError, RecursionError):
        pass  # whatever a broken process may write
    return Failed(Cause.CRASH, _GARBLED)


def _told(content: dict[str, Any], cpu_before_s: float) -> Value | Failed:
    spent_s = content["cpu_s"] - cpu_before_s
    if "failed" in content:
        return Failed(Cause(content["failed"]), content["detail"], spent_s)
    return Value(content["value"])
