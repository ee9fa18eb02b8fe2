"""Compare methods on the demo's model: accuracy, length and entropy, over several seeds.

``python -m benchmarks.methods RECIPE... [--seeds 0 1 2] [--to methods.json]`` trains every
recipe with every seed on a stack, stores each result at once (stored runs are not repeated), and
prints the tables. Without recipes it only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from protocol.recipe import Evaluation, Recipe, Sampling, load_recipe
from scipy import stats

from examples.arithmetic.demo import running_stack
from weir.client import WeirClient
from weir.stack import find_stack, model_name

RESULTS = Path("benchmarks/methods.json")
HOME = Path("runs/methods")
DEMO = {"PAPO": "recipes/demo.toml", "GRPO": "recipes/demo-grpo.toml"}
_LAST_STEPS = 5  # entropy and length are means over these

Json = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Train missing runs and print the tables."""
    parser = argparse.ArgumentParser(description="Train recipes with several seeds; compare them.")
    parser.add_argument("recipes", nargs="*", type=Path, metavar="RECIPE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args(arguments)
    runs: list[Json] = json.loads(options.to.read_text()) if options.to.exists() else []
    finished = {(run["recipe"], run["seed"]) for run in runs}
    # All recipes run once before any runs twice, so that an interruption leaves a whole table.
    planned = [(path, seed) for seed in options.seeds for path in options.recipes]
    missing = [(path, seed) for path, seed in planned if (str(path), seed) not in finished]
    if missing:
        os.environ["WEIR_HOME"] = str(HOME)
        with running_stack(HOME):
            for path, seed in missing:
                runs.append({"recipe": str(path), "seed": seed} | train(set_seed(path, seed)))
                options.to.write_text(json.dumps(runs, indent=1) + "\n")
                print(f"{path} seed {seed}: {runs[-1]['accuracy']:.3f}", file=sys.stderr)
    print(table(runs), demo_table(runs), sep="\n\n")
    return 0


def set_seed(path: Path, seed: int) -> Recipe:
    """Load a recipe with this seed and an evaluation on all tasks at temperature 1."""
    recipe = load_recipe(path)
    training = recipe.training.model_copy(update={"seed": seed})
    sampling = Sampling(max_tokens=recipe.rollout.sampling.max_tokens)
    evaluation = Evaluation(samples=4, sampling=sampling)
    return recipe.model_copy(update={"training": training, "evaluation": evaluation})


def train(recipe: Recipe) -> Json:
    """Run a recipe to its end, and return the numbers of the table."""
    stack = find_stack()
    with WeirClient(stack.url, stack.api_key) as weir:
        job = weir.submit_recipe(recipe, model=model_name(stack, recipe.model.path))
        events = [event["data"] for event in weir.events(job["id"]) if event["type"] == "metrics"]
        job = weir.job(job["id"])
    if job["status"] != "succeeded":
        raise SystemExit(f"{recipe.name}: {job['id']} {job['status']}: {job['error']}")
    last = [data for data in events if "entropy" in data][-_LAST_STEPS:]
    evaluations = [data["evaluation"] for data in events if "evaluation" in data]
    return {
        "accuracy_before": evaluations[0]["accuracy"],
        "accuracy": evaluations[-1]["accuracy"],
        "process_before": evaluations[0]["process"],
        "process": evaluations[-1]["process"],
        "response_length": fmean(data["response_length"] for data in last),
        "entropy": fmean(data["entropy"] for data in last),
        "train_seconds": job["weir"]["result"]["train_seconds"],
    }


def table(runs: Sequence[Json]) -> str:
    """Return a row per twin in Markdown: means over seeds with their 95 % intervals."""
    rows = ["| twin | accuracy | tokens | entropy |", "|---|---|---|---|"]
    accuracy = intervals(runs, "accuracy", "{:.3f}")
    length = intervals(runs, "response_length", "{:.1f}")
    entropy = intervals(runs, "entropy", "{:.3f}")
    for twin in length:
        rows.append(f"| `{twin}` | {accuracy[twin]} | {length[twin]} | {entropy[twin]} |")
    return "\n".join(rows)


def demo_table(runs: Sequence[Json]) -> str:
    """Return the demo's methods as columns in Markdown, with intervals over seeds."""
    columns = [[run for run in runs if run["recipe"] == path] for path in DEMO.values()]
    if not all(columns):
        return ""
    number = min(len(column) for column in columns)
    rows = [f"| {number} seeds, mean ± 95 % interval | {' | '.join(DEMO)} |", "|---|---|---|"]
    for label, name in (
        ("held-out accuracy before (512 tasks × 4)", "accuracy_before"),
        ("held-out accuracy after training", "accuracy"),
        ("process score of correct answers before", "process_before"),
        ("process score of correct answers after", "process"),
    ):
        values = [interval([run[name] for run in column], "{:.3f}") for column in columns]
        rows.append(f"| {label} | {' | '.join(values)} |")
    return "\n".join(rows)


def intervals(runs: Sequence[Json], name: str, template: str) -> dict[str, str]:
    """Return a number of each twin over its seeds, by the name of its published run."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if run["recipe"] not in DEMO.values():
            values.setdefault(run["recipe"].removeprefix("recipes/tiny/"), []).append(run[name])
    return {twin: interval(numbers, template) for twin, numbers in values.items()}


def interval(values: Sequence[float], template: str) -> str:
    """Return the mean and half the width of Student's 95 % interval over seeds."""
    mean = template.format(fmean(values))
    if len(values) < 2:
        return mean
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return f"{mean} ± {template.format(half)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
