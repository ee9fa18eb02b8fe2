"""What each method does to the demo's model: accuracy, length and entropy, over several seeds.

``python -m benchmarks.methods RECIPE... [--seeds 0 1 2] [--to methods.json]`` trains every
recipe with every seed on a stack of its own, keeps each result as soon as it is there (a run that
is there already is not repeated), and prints the tables. Without recipes it only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from protocol.recipe import Evaluation, Recipe, Sampling, load_recipe
from scipy import stats

from examples.arithmetic.demo import running_stack
from weir.client import WeirClient
from weir.stack import find_stack, model_for

RESULTS = Path("benchmarks/methods.json")
HOME = Path("runs/methods")
DEMO = {"PAPO": "recipes/demo.toml", "GRPO": "recipes/demo-grpo.toml"}
_LAST_STEPS = 5  # entropy and length are means over so many

Json = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Train what is missing, print the tables."""
    parser = argparse.ArgumentParser(description="Train recipes with several seeds; compare them.")
    parser.add_argument("recipes", nargs="*", type=Path, metavar="RECIPE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE")
    given = parser.parse_args(arguments)
    runs: list[Json] = json.loads(given.to.read_text()) if given.to.exists() else []
    there = {(run["recipe"], run["seed"]) for run in runs}
    # All recipes once before any twice, so that an early end leaves a whole table.
    wanted = [(path, seed) for seed in given.seeds for path in given.recipes]
    missing = [(path, seed) for path, seed in wanted if (str(path), seed) not in there]
    if missing:
        os.environ["WEIR_HOME"] = str(HOME)
        with running_stack(HOME):
            for path, seed in missing:
                runs.append({"recipe": str(path), "seed": seed} | train(seeded(path, seed)))
                given.to.write_text(json.dumps(runs, indent=1) + "\n")
                print(f"{path} seed {seed}: {runs[-1]['accuracy']:.3f}", file=sys.stderr)
    print(table(runs), demo_table(runs), sep="\n\n")
    return 0


def seeded(path: Path, seed: int) -> Recipe:
    """The recipe with another seed, and evaluated as all others are: on all tasks, unsharpened."""
    recipe = load_recipe(path)
    training = recipe.training.model_copy(update={"seed": seed})
    sampling = Sampling(max_tokens=recipe.rollout.sampling.max_tokens)
    evaluation = Evaluation(samples=4, sampling=sampling)
    return recipe.model_copy(update={"training": training, "evaluation": evaluation})


def train(recipe: Recipe) -> Json:
    """Submit a recipe, follow it to its end; returns what the table shows of it."""
    stack = find_stack()
    with WeirClient(stack.url, stack.api_key) as weir:
        job = weir.submit_recipe(recipe, model=model_for(stack, recipe.model.path))
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
    """A row per twin, in Markdown: means over seeds with their 95 % intervals."""
    rows = ["| twin | accuracy | tokens | entropy |", "|---|---|---|---|"]
    accuracy, length, entropy = (
        intervals(runs, "accuracy", "{:.3f}".format),
        intervals(runs, "response_length", "{:.1f}".format),
        intervals(runs, "entropy", "{:.3f}".format),
    )
    rows += [
        f"| `{twin}` | {accuracy[twin]} | {length[twin]} | {entropy[twin]} |" for twin in length
    ]
    return "\n".join(rows)


def demo_table(runs: Sequence[Json]) -> str:
    """The demo with its methods in columns, in Markdown: means over seeds with their intervals."""
    columns = [[run for run in runs if run["recipe"] == path] for path in DEMO.values()]
    if not all(columns):
        return ""
    number = min(len(column) for column in columns)
    rows = [f"| {number} seeds, mean ± 95 % interval | {' | '.join(DEMO)} |", "|---|---|---|"]
    for label, name, form in (
        ("held-out accuracy before (512 tasks × 4)", "accuracy_before", "{:.3f}"),
        ("held-out accuracy after training", "accuracy", "{:.3f}"),
        ("process score of correct answers before", "process_before", "{:.3f}"),
        ("process score of correct answers after", "process", "{:.3f}"),
    ):
        values = [interval([run[name] for run in column], form.format) for column in columns]
        rows.append(f"| {label} | {' | '.join(values)} |")
    return "\n".join(rows)


def intervals(runs: Sequence[Json], name: str, write: Callable[[float], str]) -> dict[str, str]:
    """A number of each twin over its seeds, by the name of its published run."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if run["recipe"] not in DEMO.values():
            values.setdefault(run["recipe"].removeprefix("recipes/tiny/"), []).append(run[name])
    return {twin: interval(of_twin, write) for twin, of_twin in values.items()}


def interval(values: Sequence[float], write: Callable[[float], str]) -> str:
    """The mean, and half the width of Student's 95 % interval over seeds."""
    if len(values) < 2:
        return write(values[0])
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return f"{write(fmean(values))} ± {write(half)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
