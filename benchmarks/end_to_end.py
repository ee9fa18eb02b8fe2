"""Weir against TRL's GRPOTrainer, in one run: ``python -m benchmarks.end_to_end``.

Same model, tasks, sampling, batch, optimizer and machine: the demo, and its tasks with heavy-tailed
lengths (`benchmarks.long_tails`). TRL has an environment of its own with the same torch,
transformers and vLLM. The last line compares Weir with the faster TRL.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from protocol.recipe import Recipe

from benchmarks import long_tails
from benchmarks.jobs import WARM_UP, a_demo_recipe, a_stack, run
from tests.stack.conftest import ROOT, Json, Stack, of_home

PYTHON = ROOT / "runs/benchmarks/trl/bin/python"
PACKAGES = ("trl==1.16.0", "datasets==5.2.0", "pyarrow==26.0.1", "pandas==3.1.1")
DEPENDENCIES = (
    "multiprocess==0.70.19",
    "python-dateutil==4.0.0",
    "six==1.17.0",
    "pytz==2026.6",
    "tzdata==2026.6",
)
LAST_STEPS = 5  # the reward is the mean of these
_TRL_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29577",
}
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Speed:
    """The measurements of a run."""

    samples: float  # per second
    core_seconds: float  # per thousand samples
    reward: float  # mean of the last steps


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="of the demo; an eighth with tails")
    parser.add_argument("--threads", type=int, default=1, help="of TRL")
    parser.add_argument("--tasks", choices=("the demo", "heavy tails"), help="default: both")
    options = parser.parse_args()
    recipes = {
        "the demo": _demo(options.steps),
        "heavy tails": _heavy_tails(options.steps // 8),
    }
    if options.tasks:
        recipes = {options.tasks: recipes[options.tasks]}
    install_trl()
    print("| tasks | | samples a second | core seconds for 1,000 | reward of the last steps |")
    print("|---|---|---|---|---|")
    for name, recipe in recipes.items():
        speeds = {"TRL, transformers": run_trl(recipe, options.threads, vllm=False)}
        try:
            speeds["TRL, vLLM"] = run_trl(recipe, options.threads, vllm=True)
        except subprocess.CalledProcessError:
            print(f"| {name} | TRL, vLLM | it failed | | |", flush=True)
        speeds["Weir"] = run_weir(recipe)
        _print_rows(name, speeds)


def _print_rows(tasks: str, speeds: dict[str, Speed]) -> None:
    for trainer, speed in speeds.items():
        cells = f"{speed.samples:.3g} | {speed.core_seconds:.1f} | {speed.reward:.3f}"
        print(f"| {tasks} | {trainer} | {cells} |", flush=True)
    weir = speeds.pop("Weir")
    trl = max(speeds.values(), key=lambda speed: speed.samples)
    samples = weir.samples / trl.samples
    core_seconds = trl.core_seconds / weir.core_seconds
    print(f"| {tasks} | Weir / TRL | {samples:.2f} × | {core_seconds:.2f} × | |", flush=True)


def _demo(steps: int, **tables: Any) -> Recipe:
    """GRPO on the outcome only, since TRL has no process score."""
    training = {"steps": steps, "checkpoint_every": 10 * steps}
    reward = {"outcome": "math_answer", "process": []}
    return a_demo_recipe(**{"training": training, "reward": reward, "evaluation": None, **tables})


def _heavy_tails(steps: int) -> Recipe:
    folder = long_tails.prepare()
    return _demo(
        steps,
        model={"path": str(folder / "model"), "max_context": long_tails.MAX_CONTEXT},
        tasks={"train": str(folder / "train.jsonl")},
        rollout={"sampling": {"temperature": 1.0, "max_tokens": long_tails.MAX_TOKENS}},
        optimizer={"learning_rate": 1e-6},
    )


def run_weir(recipe: Recipe) -> Speed:
    """Run one job on a stack of its own."""
    used: dict[int, float] = {}

    def after_step(step: int) -> None:
        if step in {WARM_UP, recipe.training.steps}:
            used[step] = _core_seconds(stack)

    with a_stack() as stack:
        job = run(stack, recipe, after_step)
    samples = job.total("samples")
    core_seconds = used[recipe.training.steps] - used[WARM_UP]
    reward = fmean(step["reward"] for step in job.steps[-LAST_STEPS:])
    return Speed(samples / job.seconds, 1000 * core_seconds / samples, reward)


def _core_seconds(stack: Stack) -> float:
    """Return the CPU time of a stack's processes and of their children that have ended."""
    ticks = 0
    for process_id in of_home(stack.home):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_SECOND


def install_trl() -> None:
    """Make TRL's virtual environment if it is missing."""
    if PYTHON.exists():
        return
    folder = PYTHON.parents[1]
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    purelib = next(folder.glob("lib/python*/site-packages"))
    (purelib / "project.pth").write_text(sysconfig.get_paths()["purelib"])
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, *PACKAGES, *DEPENDENCIES], check=True)


def run_trl(recipe: Recipe, threads: int, *, vllm: bool) -> Speed:
    """Run the same job in a process of TRL."""
    samples = recipe.training.groups_per_step * recipe.rollout.group_size
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings.json"
        result = Path(folder) / "result.json"
        settings.write_text(
            json.dumps(_settings(recipe, samples) | {"threads": threads, "vllm": vllm})
        )
        command = [PYTHON, "-m", "benchmarks.with_trl", settings, result]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **_TRL_ENVIRONMENT}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        measured: Json = json.loads(result.read_text())
    first = measured["batches"][WARM_UP - 1]
    last = measured["batches"][-1]
    total = samples * (len(measured["batches"]) - WARM_UP)
    return Speed(
        total / (last["time"] - first["time"]),
        1000 * (last["core_seconds"] - first["core_seconds"]) / total,
        fmean(measured["rewards"][-LAST_STEPS:]),
    )


def _settings(recipe: Recipe, samples: int) -> Json:
    algorithm = recipe.algorithm
    optimizer = recipe.optimizer
    sampling = recipe.rollout.sampling
    return {
        "model": str(ROOT / recipe.model.path),
        "tasks": str(ROOT / recipe.tasks.train),
        "max_context": recipe.model.max_context,
        "steps": recipe.training.steps,
        "samples": samples,
        "updates_per_batch": recipe.training.updates_per_batch,
        "group_size": recipe.rollout.group_size,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "learning_rate": optimizer.learning_rate,
        "warmup_steps": optimizer.warmup_steps,
        "betas": list(optimizer.betas),
        "max_grad_norm": optimizer.max_grad_norm,
        "clip_low": algorithm.clip_low,
        "clip_high": algorithm.clip_high,
        "seed": recipe.training.seed,
    }


if __name__ == "__main__":
    main()
