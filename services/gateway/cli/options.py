"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

JobId: TypeAlias = Annotated[str, typer.Argument(metavar="JOB")]
RecipeFile: TypeAlias = Annotated[Path, typer.Argument(metavar="RECIPE")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Limit: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")]
