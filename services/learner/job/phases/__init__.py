"""The phases of a job, each of which makes it advance when it is due."""

from __future__ import annotations

from typing import Protocol


class Phase(Protocol):
    """One kind of work: evaluation, the critic's pretraining, or training."""

    @property
    def is_due(self) -> bool:
        """Whether it comes next, unless a phase before it is due."""
        ...

    async def advance(self) -> None:
        """Take one step."""
        ...
