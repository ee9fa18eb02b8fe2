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
from typing import Any

from protocol.recipe import Recipe

from benchmarks import long_tails
from benchmarks.jobs import WARM_UP, a_demo_recipe, a_stack, run
from tests.stack.conftest import ROOT, Json, Stack, of_home

PYTHON = ROOT / "runs/benchmarks/trl/bin/python"
PACKAGES = ("trl==1.16.0", "datasets==5.2.0", "pyarrow==26.0.1", "pandas==3.1.1")
THEIR_NEEDS = (
    *("multiprocess==0.70.19", "python-dateutil==4.0.0", "six==1.17.0", "pytz==2026.6"),
    "tzdata==2026.6",
)
LAST = 5  # steps whose mean reward is told
_ALONE = {  # what TRL's vLLM and torch want to know
    **{"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"},
}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Speed:
    """What a run has shown."""

    samples: float  # a second
    core_seconds: float  # for a thousand samples
    reward: float  # of the last steps


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="of the demo; an eighth with tails")
    parser.add_argument("--threads", type=int, default=1, help="of TRL")
    parser.add_argument("--tasks", choices=("the demo", "heavy tails"), help="both, if not given")
    given = parser.parse_args()
    recipes = {"the demo": _demo(given.steps), "heavy tails": _heavy_tails(given.steps // 8)}
    if given.tasks:
        recipes = {given.tasks: recipes[given.tasks]}
    install_trl()
    heads = ("tasks", "", "samples a second", "core seconds for 1,000", "reward of the last steps")
    print("|", " | ".join(heads), "|\n" + "|---" * len(heads) + "|")
    for name, recipe in recipes.items():
        speeds = {"TRL, transformers": with_trl(recipe, given.threads, vllm=False)}
        try:
            speeds["TRL, vLLM"] = with_trl(recipe, given.threads, vllm=True)
        except subprocess.CalledProcessError:
            print(f"| {name} | TRL, vLLM | it failed | | |", flush=True)
        speeds["Weir"] = with_weir(recipe)
        for who, speed in speeds.items():
            cells = [f"{speed.samples:.3g}", f"{speed.core_seconds:.1f}", f"{speed.reward:.3f}"]
            print("|", " | ".join([name, who, *cells]), "|", flush=True)
        weir = speeds.pop("Weir")
        trl = max(speeds.values(), key=lambda speed: speed.samples)
        cells = [
            f"{weir.samples / trl.samples:.2f} ×",
            f"{trl.core_seconds / weir.core_seconds:.2f} ×",
        ]
        print("|", " | ".join([name, "Weir / TRL", *cells, ""]), "|", flush=True)


def _demo(steps: int, **tables: Any) -> Recipe:
    """GRPO on the outcome alone: nobody else has a process score."""
    training = {"steps": steps, "checkpoint_every": 10 * steps}
    reward = {"outcome": "math_answer", "process": []}
    return a_demo_recipe(**{"training": training, "reward": reward, "evaluation": None, **tables})


def _heavy_tails(steps: int) -> Recipe:
    folder = long_tails.made()
    return _demo(
        steps,
        model={"path": str(folder / "model"), "max_context": long_tails.MAX_CONTEXT},
        tasks={"train": str(folder / "train.jsonl")},
        rollout={"sampling": {"temperature": 1.0, "max_tokens": long_tails.MAX_TOKENS}},
        optimizer={"learning_rate": 1e-6},
    )


def with_weir(recipe: Recipe) -> Speed:
    """One job on a stack of its own."""
    spent: dict[int, float] = {}

    def after_step(step: int) -> None:
        if step in {WARM_UP, recipe.training.steps}:
            spent[step] = _core_seconds(stack)

    with a_stack() as stack:
        job = run(stack, recipe, after_step)
    samples = job.total("samples")
    core_seconds = spent[recipe.training.steps] - spent[WARM_UP]
    rewards = [step["reward"] for step in job.steps[-LAST:]]
    return Speed(samples / job.seconds, 1000 * core_seconds / samples, sum(rewards) / LAST)


def _core_seconds(stack: Stack) -> float:
    """Of a stack's processes, and of those of their children that have ended."""
    ticks = 0
    for process_id in of_home(stack.home):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def install_trl() -> None:
    """Make TRL's environment, unless it is there."""
    if PYTHON.exists():
        return
    folder = PYTHON.parents[1]
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    purelib = next(folder.glob("lib/python*/site-packages"))
    (purelib / "project.pth").write_text(sysconfig.get_paths()["purelib"])
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, *PACKAGES, *THEIR_NEEDS], check=True)


def with_trl(recipe: Recipe, threads: int, *, vllm: bool) -> Speed:
    """The same in a process of TRL."""
    samples = recipe.training.groups_per_step * recipe.rollout.group_size
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "settings.json", Path(folder) / "result.json"
        given.write_text(
            json.dumps(_settings(recipe, samples) | {"threads": threads, "vllm": vllm})
        )
        command = [PYTHON, "-m", "benchmarks.with_trl", given, result]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **_ALONE}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        told: Json = json.loads(result.read_text())
    first, last = told["batches"][WARM_UP - 1], told["batches"][-1]
    measured = samples * (len(told["batches"]) - WARM_UP)
    return Speed(
        measured / (last["time"] - first["time"]),
        1000 * (last["core_seconds"] - first["core_seconds"]) / measured,
        sum(told["rewards"][-LAST:]) / LAST,
    )


def _settings(recipe: Recipe, samples: int) -> Json:
    algorithm, optimizer, sampling = recipe.algorithm, recipe.optimizer, recipe.rollout.sampling
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
