"""What every table of a recipe is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table of the recipe; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
