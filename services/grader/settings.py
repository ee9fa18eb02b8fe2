"""Where the grader runs: its own variables of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from services.chassis.deployment import DeploymentError


@dataclass(frozen=True)
class Settings:
    """How many groups are graded at once, by how many processes, and by whose verifiers too."""

    groups_in_flight: int
    workers: int
    extensions: tuple[str, ...] = ()
    python: bool = False  # whether clients' code is run

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the ``WEIR_GRADER_*`` variables.

        Raises:
            DeploymentError: naming the variable that is wrong.
        """
        spare_cores = max(1, len(os.sched_getaffinity(0)) - 1)
        return cls(
            groups_in_flight=_count(environment, "WEIR_GRADER_GROUPS_IN_FLIGHT", 256),
            workers=_count(environment, "WEIR_GRADER_WORKERS", spare_cores),
            extensions=_words(environment.get("WEIR_GRADER_EXTENSIONS", "")),
            python=_switch(environment, "WEIR_GRADER_PYTHON"),
        )


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise DeploymentError(f"{name}={text!r}: give a whole number above 0, such as {default}")
    return int(text)


def _switch(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name) or "off"
    if text not in {"on", "off"}:
        raise DeploymentError(f"{name}={text!r}: say 'on' or 'off'")
    return text == "on"


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
