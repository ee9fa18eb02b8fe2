"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

JobId: TypeAlias = Annotated[str, typer.Argument(metavar="JOB")]
RecipeFile: TypeAlias = Annotated[Path, typer.Argument(metavar="RECIPE")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


def _at_least_one(limit: int) -> int:
    if limit < 1:
        raise typer.BadParameter(f"{limit} shows nothing; give 1 or more.")
    return limit


Limit: TypeAlias = Annotated[
    int, typer.Option(metavar="N", callback=_at_least_one, help="At most so many.")
]
