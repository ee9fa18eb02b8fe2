"""A curriculum against uniform and dynamic sampling, on sums of one, three and five steps.

``python -m benchmarks.curriculum [--seeds 0 1 2] [--steps 220] [--to FILE]`` trains the demo's
model with each method and seed on a stack, stores each curve at once (stored runs are not
repeated), and prints the table: the samples needed to reach a held-out accuracy, with those of
dropped groups. A run ends with the first evaluation after as many samples as uniform sampling has.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from protocol.recipe import Recipe, load_recipe, parse_recipe
from protocol.recipe_files import merge_tables
from scipy.optimize import isotonic_regression

from benchmarks.methods import interval
from examples.arithmetic.demo import running_stack
from examples.arithmetic.tasks import distinct_tasks, to_jsonl
from weir.client import WeirClient
from weir.stack import find_stack, model_name

DEMO = Path("recipes/demo-grpo.toml")
HOME = Path("runs/curriculum")
RESULTS = HOME / "curves.json"
LENGTHS = (1, 3, 5)
NUM_TRAIN = 400  # of each length
NUM_HELD_OUT = 100
NUM_EVALUATIONS = 11
ACCURACIES = (0.15, 0.175, 0.2, 0.225, 0.25)
CURRICULUM = "curriculum"
METHODS: Mapping[str, Mapping[str, Any]] = {
    "uniform": {},
    "dynamic sampling": {"training": {"dynamic_sampling": True}},
    CURRICULUM: {"tasks": {"curriculum": {"retire_above": 0.9, "return_after": 40, "hard": 0.1}}},
}

Json = dict[str, Any]
Curve = list[tuple[float, float]]  # samples, held-out accuracy


def main(arguments: Sequence[str]) -> int:
    """Train the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=load_recipe(DEMO).training.steps)
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args(arguments)
    runs: list[Json] = json.loads(options.to.read_text()) if options.to.exists() else []
    finished = {(run["method"], run["seed"]) for run in runs}
    planned = [(method, seed) for seed in options.seeds for method in METHODS]
    missing = [run for run in planned if run not in finished]
    if missing:
        write_tasks(HOME)
        os.environ["WEIR_HOME"] = str(HOME)
        with running_stack(HOME):
            for method, seed in missing:
                curve = train(make_recipe(method, seed, options.steps))
                runs.append({"method": method, "seed": seed, "curve": curve})
                options.to.parent.mkdir(parents=True, exist_ok=True)
                options.to.write_text(json.dumps(runs, indent=1) + "\n")
                print(f"{method} seed {seed}: {curve[-1]}", file=sys.stderr, flush=True)
    print(table(runs))
    return 0


def write_tasks(folder: Path) -> None:
    """Write a file of training tasks and one of held-out tasks, both of all lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in {"train": NUM_TRAIN, "held_out": NUM_HELD_OUT}.items():
        is_held_out = name == "held_out"
        parts = [
            to_jsonl(distinct_tasks(count, held_out=is_held_out, num_steps=length))
            for length in LENGTHS
        ]
        (folder / f"{name}.jsonl").write_text("".join(parts))


def make_recipe(method: str, seed: int, steps: int) -> Recipe:
    """Return the demo's recipe for tasks of all lengths in equal shares."""
    every = max(1, steps // NUM_EVALUATIONS)
    sampling = {"temperature": 1.0, "max_tokens": 80}
    tables = {
        "name": f"{method} {seed}",
        "model": {"max_context": 112},
        "tasks": {name: str(HOME / f"{name}.jsonl") for name in ("train", "held_out")},
        "rollout": {"sampling": {"max_tokens": 80}},
        "reward": {"process": []},
        "training": {"steps": steps, "seed": seed},
        "evaluation": {"every": every, "tasks": None, "sampling": sampling},
    }
    demo = load_recipe(DEMO).model_dump(mode="json")
    return parse_recipe(merge_tables(merge_tables(demo, tables), METHODS[method]))


def train(recipe: Recipe) -> Curve:
    """Run a recipe until it has the samples of uniform sampling, and return its curve."""
    group_size = recipe.rollout.group_size
    budget = recipe.training.steps * recipe.training.groups_per_step * group_size
    accuracies: dict[int, float] = {}
    samples = [0]  # after each step
    stack = find_stack()
    with WeirClient(stack.url, stack.api_key) as weir:
        job_id = weir.submit_recipe(recipe, model=model_name(stack, recipe.model.path))["id"]
        for event in weir.events(job_id):
            data = event["data"]
            if "evaluation" in data:
                accuracies[data["step"]] = data["evaluation"]["accuracy"]
                if samples[data["step"]] > budget:
                    weir.cancel(job_id)
            elif "looked_at" in data and data["step"] == len(samples):
                samples.append(samples[-1] + int(data["looked_at"]) * group_size)
        job = weir.job(job_id)
    if job["status"] not in {"succeeded", "cancelled"}:
        raise SystemExit(f"{recipe.name}: {job_id} {job['status']}: {job['error']}")
    return [(samples[step], accuracy) for step, accuracy in sorted(accuracies.items())]


def table(runs: Sequence[Json]) -> str:
    """Return a row per accuracy in Markdown: the samples until it, and the curriculum's ratios.

    Cells are means over seeds with 95 % intervals; a ratio compares runs of the same seed.
    """
    curves = {(run["method"], run["seed"]): np.array(run["curve"]) for run in runs}
    finished = Counter(seed for _, seed in curves)
    seeds = [seed for seed, count in sorted(finished.items()) if count == len(METHODS)]
    baselines = [method for method in METHODS if method != CURRICULUM]
    columns = [*METHODS, *(f"curriculum / {method}" for method in baselines)]
    rows = [f"| held-out accuracy | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for accuracy in ACCURACIES:
        samples: dict[str, list[float]] = {}
        for method in METHODS:
            samples[method] = [samples_until(curves[method, seed], accuracy) for seed in seeds]
        cells = [_cell(samples[method], "{:,.0f}") for method in METHODS]
        for method in baselines:
            pairs = zip(samples[CURRICULUM], samples[method], strict=True)
            ratios = [numerator / denominator for numerator, denominator in pairs]
            cells.append(_cell(ratios, "{:.2f}"))
        rows.append(f"| {accuracy} | {' | '.join(cells)} |")
    return "\n".join(rows)


def samples_until(curve: np.ndarray, accuracy: float) -> float:
    """Return where the increasing curve nearest to a curve has an accuracy; NaN: nowhere."""
    increasing = isotonic_regression(curve[:, 1]).x
    above = np.flatnonzero(increasing >= accuracy)
    if not above.size:
        return math.nan
    until = slice(max(0, above[0] - 1), above[0] + 1)
    return float(np.interp(accuracy, increasing[until], curve[until, 0]))


def _cell(values: Sequence[float], template: str) -> str:
    """Return the interval of the values, and how many there are if some are NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return "–"
    is_partial = len(numbers) < len(values)
    return interval(numbers, template) + f" ({len(numbers)} of {len(values)} seeds)" * is_partial


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
