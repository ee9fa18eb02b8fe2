"""``weir plan RECIPE``: what a recipe means with all its defaults, and what it takes to run.

Nothing is loaded, downloaded or sent. Exit status: 0, or 2 if the recipe or an option is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from protocol.recipe import RecipeError, load_recipe

from services.learner.planning.machine import MOST, Here, Options, PlanError, machine_of
from services.learner.planning.plan import make_plan
from services.learner.planning.view import as_json, show

BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        recipe = load_recipe(Path(given.recipe))
        options = Options(given.gpus, given.gpu_memory, given.host_memory)
        machine = machine_of(options, recipe.machine, os.environ, _this_machine())
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
        "WEIR_GPUS, else those of this machine, else the recipe's [machine], else CPUs",
    )
    parser.add_argument(
        "--gpu-memory",
        type=_gib,
        metavar="GIB",
        help="of a GPU; else as here, or as in the recipe, else 80",
    )
    parser.add_argument(
        "--host-memory", type=_gib, metavar="GIB", help="of a node; else as here, or in the recipe"
    )
    return parser


def _this_machine() -> Here:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Here(tuple(os.listdir("/dev")), pages, _bytes_of_smallest_gpu())


def _bytes_of_smallest_gpu() -> int | None:
    """None without GPUs, or where their driver says nothing."""
    asked = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
        return min(int(line) for line in said.stdout.split()) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


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
