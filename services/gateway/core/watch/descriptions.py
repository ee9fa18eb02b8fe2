"""Descriptions of processes for people."""

from __future__ import annotations

from protocol.messages import Doing, Status


def describe_activity(status: Status) -> str:
    """Describe the activity of a process: "trains step 17"."""
    if status.doing is Doing.IS_NOT_READY:
        return status.why
    if status.at_once and status.doing in {Doing.PLAYS, Doing.ANSWERS}:
        verb, noun = status.doing.split("_")
        if status.at_once == 1:
            noun = noun.removesuffix("s")
        return f"{verb} {status.at_once} {noun}"
    number = "" if status.number is None else f" {status.number}"
    fault = f": {status.why}" if status.doing is Doing.FAILS else ""
    return f"{status.doing.replace('_', ' ')}{number}{fault}"


def describe_process(status: Status, subject: str = "") -> str:
    """Describe the activity of a process and its time: "rollout-1 samples groups, 12 s"."""
    subject = subject or status.name
    separator = ":" if status.doing is Doing.IS_NOT_READY else ""
    return f"{subject}{separator} {describe_activity(status)}, {format_duration(status.for_s)}"


def format_duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
