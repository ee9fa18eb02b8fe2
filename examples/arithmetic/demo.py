"""The demo: start the stack, train the tiny model with PAPO, show the gain, stop.

``python -m examples.arithmetic.demo`` writes ``runs/demo/summary.json`` and ``curves.png``; with
``--compare`` it trains once more with GRPO and draws both. It uses the command and REST only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.recipe import load_recipe

from examples.arithmetic.curves import draw
from weir.client import WeirClient
from weir.stack import find_stack, model_name

PAPO = Path("recipes/demo.toml")
GRPO = Path("recipes/demo-grpo.toml")
RUNS = Path("runs/demo")
_START_TIMEOUT_S = 320.0  # longer than `weir up` waits, so that its error is shown
_EVERY_STEPS = 10
_EXAMPLES = {"purpose": "eval", "limit": 1000}

Json = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One finished job: its result, the metrics of each of its steps, and an example as text."""

    name: str
    result: Json
    steps: list[Json]
    example: str


class DemoFailed(RuntimeError):
    """The demo cannot continue; the text says where to look."""


def main() -> int:
    """Run the demo, and return the exit status."""
    parser = argparse.ArgumentParser(description="Train a tiny model with PAPO on this machine.")
    parser.add_argument("--compare", action="store_true", help="train with GRPO, too")
    parser.add_argument("--keep", action="store_true", help="leave the stack up until Ctrl-C")
    options = parser.parse_args()
    recipes = [PAPO, GRPO] if options.compare else [PAPO]
    RUNS.mkdir(parents=True, exist_ok=True)
    home = RUNS / "stack"
    os.environ["WEIR_HOME"] = str(home)
    try:
        with running_stack(home) as stack:
            runs = [train(recipe) for recipe in recipes]
            report(runs)
            if options.keep:
                print(f"the stack stays up until Ctrl-C: WEIR_HOME={home} weir chat", flush=True)
                stack.wait()
    except DemoFailed as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def report(runs: list[Run]) -> None:
    """Write the summary and the picture, and print the table and the next commands."""
    summary = summarize(runs[0])
    if len(runs) > 1:
        summary["grpo"] = summarize(runs[1])
    (RUNS / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    draw({run.name: run.steps for run in runs}, RUNS / "curves.png")
    print_table(runs)
    print(runs[0].example)
    print(f"\n{RUNS / 'summary.json'}  {RUNS / 'curves.png'}  model: {summary['model']}")
    print("next: `make demo KEEP=1` to chat with it; `weir up`, then `weir run recipes/demo.toml`")


@contextmanager
def running_stack(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A stack of the demo's own, for as long as the body runs."""
    stack = subprocess.Popen([sys.executable, "-m", "deploy.local", "up"])
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (home / "stack.json").exists():
            if stack.poll() is not None or time.monotonic() > deadline:
                raise DemoFailed(f"the stack did not start; see {home / 'logs'}")
            time.sleep(0.2)
        yield stack
    finally:
        stack.terminate()
        stack.wait()


def train(recipe_path: Path) -> Run:
    """Submit a recipe and follow it to its end."""
    recipe = load_recipe(recipe_path)
    stack = find_stack()
    with WeirClient(stack.url, stack.api_key) as weir:
        job = weir.submit_recipe(recipe, model=model_name(stack, recipe.model.path))
        print(f"{recipe.name}: {job['id']}, {recipe.training.steps} steps", flush=True)
        steps = []
        for event in weir.events(job["id"]):
            show(event, recipe.training.steps)
            if event["type"] == "metrics" and "reward" in event["data"]:
                steps.append(event["data"])
        job = weir.job(job["id"])
        example = describe_example(weir, job["id"])
    if job["status"] != "succeeded":
        reason = (job["error"] or {}).get("message", "no reason given")
        raise DemoFailed(f"{job['id']} {job['status']}: {reason}")
    return Run(recipe.name, job["weir"]["result"], steps, example)


def describe_example(weir: WeirClient, job_id: str) -> str:
    """Return a held-out task with a response before training and one after it."""
    responses = {
        order: {row["task_id"]: row for row in weir.samples(job_id, **_EXAMPLES, order=order)}
        for order in ("oldest", "newest")
    }
    for task_id, before in responses["oldest"].items():
        after = responses["newest"].get(task_id)
        if after and before["accuracy"] == 0 and after["accuracy"] == 1:
            return (
                f"\n{before['prompt']}\n  before: {before['text']!r}\n  after:  {after['text']!r}"
            )
    return ""


def show(event: Json, steps: int) -> None:
    """Print an evaluation or every tenth step."""
    data = event["data"]
    if "evaluation" in data:
        result = data["evaluation"]
        print(
            f"  held out, after {result['step']:3d} steps: accuracy {result['accuracy']:.3f} "
            f"± {result['accuracy_interval']:.3f}, process {result['process']:.3f}",
            flush=True,
        )
    elif "reward" in data and data["step"] % _EVERY_STEPS == 0:
        print(
            f"  step {data['step']:3d}/{steps}: accuracy {data['accuracy']:.3f}, process "
            f"{data.get('process', float('nan')):.3f}, entropy {data['entropy']:.3f}, "
            f"{data['tokens_per_second']:,.0f} tokens/s",
            flush=True,
        )


def summarize(run: Run) -> Json:
    """Return the numbers of ``summary.json``."""
    names = (
        "accuracy_before",
        "accuracy_after",
        "process_before",
        "process_after",
        "steps",
        "train_seconds",
        "samples_per_second",
        "tokens_per_second",
        "parity_max_abs",
        "parity_tokens",
        "groups",
        "evaluation_groups",
        "evaluations",
        "checkpoint",
        "model",
    )
    return {"name": run.name} | {name: run.result[name] for name in names}


def print_table(runs: list[Run]) -> None:
    """Print the results of the runs in columns."""
    rows = [
        ("held-out accuracy before", "accuracy_before", "{:.3f}"),
        ("held-out accuracy after", "accuracy_after", "{:.3f}"),
        ("process of correct before", "process_before", "{:.3f}"),
        ("process of correct after", "process_after", "{:.3f}"),
        ("training steps", "steps", "{}"),
        ("training seconds", "train_seconds", "{:.0f}"),
        ("sampled tokens a second", "tokens_per_second", "{:,.0f}"),
        ("largest log-prob gap, engine to learner", "parity_max_abs", "{:.1e}"),
    ]
    print("\n" + " " * 40 + "".join(f"{run.name:>14}" for run in runs))
    for label, name, form in rows:
        values = "".join(f"{form.format(run.result[name]):>14}" for run in runs)
        print(f"{label:40}{values}")


if __name__ == "__main__":
    sys.exit(main())
