"""How responses are sampled, and evaluations on held-out tasks: tables of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from protocol.tables import PathText, Table

MOST_RESPONSES = 16384  # that vLLM samples to one prompt


class Sampling(Table):
    """How one response is sampled."""

    temperature: float = Field(
        default=1.0, gt=0, description="log-probs are those at this temperature"
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="below 1 in evaluations only")
    max_tokens: int = Field(ge=1, description="of a response; below `model.max_context`")
    stop: tuple[str, ...] = Field(default=(), description="texts that end a response")


class Evaluation(Table):
    """Accuracy on held-out tasks, before the first step and after the last."""

    samples: int = Field(default=4, ge=1, le=MOST_RESPONSES, description="responses per task")
    tasks: int | None = Field(default=None, ge=1, description="only the first tasks of the file")
    sampling: Sampling | None = Field(default=None, description="none: as in training")
    every: int | None = Field(default=None, ge=1, description="also evaluate every this many steps")


class OtherEvaluation(Evaluation):
    """The same on a further file of held-out tasks."""

    held_out: PathText = Field(min_length=1, description="a path, or the id of an uploaded file")


class Evaluations(Evaluation):
    """Evaluations on ``tasks.held_out`` and on further files, before and after training."""

    others: Mapping[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")], OtherEvaluation] = (
        Field(default_factory=dict, description="further evaluations by name")
    )
