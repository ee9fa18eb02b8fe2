"""``weir plan RECIPE``: what a recipe means with all its defaults, and what it takes to run.

Nothing is loaded, downloaded or sent. Exit status: 0, or 2 if the recipe or an option is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from protocol.recipe import RecipeError, load_recipe

from services.learner.planning.machine import MOST, PlanError, machine_of
from services.learner.planning.plan import make_plan
from services.learner.planning.view import as_json, show

BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        recipe = load_recipe(Path(given.recipe))
        machine = machine_of(given.gpus, given.gpu_memory, os.environ, os.listdir("/dev"))
    except (RecipeError, PlanError) as error:
        print(f"weir: {error}", file=sys.stderr)
        return BAD_INPUT
    plan = make_plan(recipe, machine)
    if given.json:
        print(json.dumps(as_json(plan), indent=1, default=str))
    else:
        show(plan)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weir plan", description="Show what a recipe takes to run; nothing is started."
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("--json", action="store_true", help="machine-readable, sizes in bytes")
    parser.add_argument(
        "--gpus",
        metavar="GPUS",
        help="their number, or a line such as 'learner=0-3 rollout=4,5 rollout=6,7'; else "
        "WEIR_GPUS, else those of this machine, else 2",
    )
    parser.add_argument(
        "--gpu-memory", type=_gib, default=80.0, metavar="GIB", help="of a GPU (80)"
    )
    return parser


def _gib(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 < value <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {MOST:,}")
    return value


if __name__ == "__main__":
    sys.exit(main())
