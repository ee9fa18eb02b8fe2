"""The rubrics that come with Weir: a TOML file each, in ``services/grader/rubrics``."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from protocol.rubric import Rubric

FOLDER = Path(__file__).parents[1] / "rubrics"


@cache
def load(name: str) -> Rubric:
    """The rubric of this name.

    Raises:
        FileNotFoundError: if there is none.
    """
    return Rubric.model_validate(tomllib.loads((FOLDER / f"{name}.toml").read_text()))
