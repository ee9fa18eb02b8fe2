"""Weir against TRL's GRPOTrainer, in one run: ``python -m benchmarks.end_to_end``.

``--parts demo tails smollm2`` selects parts: the demo's model, its tasks with heavy-tailed lengths
(`benchmarks.long_tails`), and SmolLM2-135M-Instruct from PyPI with stories of one sum. All rows of
a part have the same model, tasks, sampling, batch, optimizer, machine, and versions of torch,
transformers and vLLM. TRL samples with transformers or with vLLM, in an environment of its own.

Core-seconds are for 1,000 samples, of all processes and their children, also of those that have
ended. The first steps do not count, nor does the start of any process. Weir's last steps do not
count either, since their samples were made while it trained the steps before. *Weir / TRL* compares
each figure with the better of TRL's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
from protocol.recipe import Recipe, load_recipe

from benchmarks import long_tails
from benchmarks.jobs import a_demo_recipe, a_stack, run
from services.chassis.cost import core_seconds, find_family
from tests.stack.conftest import ROOT, Json

PYTHON = ROOT / "runs/benchmarks/trl/bin/python"
SMOLLM2 = ROOT / "runs/benchmarks/smollm2"
PACKAGES = ("trl==1.16.0", "datasets==5.2.0", "pyarrow==26.0.1", "pandas==3.1.1")
DEPENDENCIES = (
    "multiprocess==0.70.19",
    "python-dateutil==4.0.0",
    "six==1.17.0",
    "pytz==2026.6",
    "tzdata==2026.6",
)
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
# Names of processes by a part of their command lines; their children have the same names.
_PROGRAMS = {
    "EngineCore": "engine",
    "services.rollout": "rollout",
    "services.learner": "learner",
    "services.grader": "grader",
    "valkey-server": "Valkey",
    "services.gateway": "gateway",
    "services.environment": "environment",
}
_NAMES = (*_PROGRAMS.values(), "supervisor")


@dataclass(frozen=True)
class Part:
    """A job for Weir and for TRL; ``recipe`` has Weir's measured steps.

    Where TRL needs minutes for a step it makes fewer.
    """

    recipe: Recipe
    warm_up: int
    trl_steps: int
    finds_answer: bool = False  # the reward is 1 where the answer stands in the response


@dataclass(frozen=True)
class Speed:
    """The measurements of a run."""

    samples: float  # per second
    core_seconds: Mapping[str, float]  # per thousand samples, by the name of a process
    reward: float  # mean of the measured steps


class TrainerFailed(RuntimeError):
    """TRL cannot train here; the text is the error."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument("--threads", type=int, default=1, help="of TRL")
    parser.add_argument("--brief", action="store_true", help="two steps, to see that all run")
    options = parser.parse_args()
    install_trl()
    names = " | ".join(_NAMES)
    print(f"| | | samples a second | core-seconds | {names} | reward |")
    print(f"|---|---|---|---|{'---|' * len(_NAMES)}---|")
    for name in options.parts:
        title, make = _PARTS[name]
        compare(title, make(2 if options.brief else None), options.threads)


def compare(title: str, part: Part, threads: int) -> None:
    """Print the rows of a part."""
    trl: list[Speed] = []
    for trainer, vllm in (("TRL, transformers", False), ("TRL, vLLM", True)):
        try:
            speed = run_trl(part, threads, vllm=vllm)
        except TrainerFailed as error:
            print(f"| {title} | {trainer} | fails: {error} |", flush=True)
        else:
            trl.append(speed)
            print(f"| {title} | {trainer} | {_cells(speed)} |", flush=True)
    weir = run_weir(part)
    print(f"| {title} | Weir | {_cells(weir)} |", flush=True)
    if trl:
        samples = weir.samples / max(speed.samples for speed in trl)
        cost = _total(weir) / min(map(_total, trl))
        print(f"| {title} | Weir / TRL | {samples:.2f} × | {cost:.2f} × |", flush=True)


def _total(speed: Speed) -> float:
    return sum(speed.core_seconds.values())


def _cells(speed: Speed) -> str:
    by_name = [
        f"{speed.core_seconds[name]:.3g}" if name in speed.core_seconds else "" for name in _NAMES
    ]
    first = f"{speed.samples:.3g} | {_total(speed):,.4g} | "
    return first + " | ".join([*by_name, f"{speed.reward:.3f}"])


def _make_demo(steps: int | None) -> Part:
    return Part(_grpo(steps or 40, warm_up=5), warm_up=5, trl_steps=steps or 40)


def _make_tails(steps: int | None) -> Part:
    folder = long_tails.prepare()
    recipe = _grpo(
        steps or 30,
        warm_up=1,
        groups=6,
        model={"path": str(folder / "model"), "max_context": long_tails.MAX_CONTEXT},
        tasks={"train": str(folder / "train.jsonl")},
        rollout={"sampling": {"temperature": 1.0, "max_tokens": long_tails.MAX_TOKENS}},
        optimizer={"learning_rate": 1e-6},
    )
    return Part(recipe, warm_up=1, trl_steps=steps or 3)


def _make_smollm2(steps: int | None) -> Part:
    example = ROOT / "examples/real-model"
    if not (SMOLLM2 / "model").exists():
        SMOLLM2.mkdir(parents=True, exist_ok=True)
        _run_python(example / "tasks.py", SMOLLM2)
        _run_python(example / "base_model.py", SMOLLM2 / "model")
    template = load_recipe(example / "recipe.toml").model.prompt_template
    recipe = _grpo(
        steps or 2,
        warm_up=1,
        groups=4,
        model={
            "path": str(SMOLLM2 / "model"),
            "max_context": 96,
            "prompt_template": template,
        },
        tasks={"train": str(SMOLLM2 / "train.jsonl")},
        rollout={"group_size": 4, "sampling": {"temperature": 1.0, "max_tokens": 32}},
        reward={"outcome": {"verifier": "string_check", "operation": "like"}, "process": []},
        optimizer={"learning_rate": 1e-6},
    )
    return Part(recipe, warm_up=1, trl_steps=steps or 2, finds_answer=True)


_PARTS: dict[str, tuple[str, Callable[[int | None], Part]]] = {
    "demo": ("the demo", _make_demo),
    "tails": ("heavy tails", _make_tails),
    "smollm2": ("SmolLM2-135M", _make_smollm2),
}


def _grpo(steps: int, *, warm_up: int, groups: int = 16, **tables: Any) -> Recipe:
    """Return a recipe of the outcome only, since TRL has no process score."""
    demo = a_demo_recipe()
    ahead = demo.training.max_staleness + 1
    total = warm_up + steps + ahead
    training = {"steps": total, "groups_per_step": groups, "checkpoint_every": 10 * total}
    reward = {"outcome": "math_answer", "process": []}
    return a_demo_recipe(**{"training": training, "reward": reward, "evaluation": None, **tables})


def _run_python(*words: str | Path) -> None:
    subprocess.run([sys.executable, *words], cwd=ROOT, stdout=sys.stderr, check=True)


def run_weir(part: Part) -> Speed:
    """Run one job on a stack of its own."""
    used: dict[int, dict[str, float]] = {}
    ahead = part.recipe.training.max_staleness + 1
    end = part.recipe.training.steps - ahead

    def after_step(step: int) -> None:
        if step in {part.warm_up, end}:
            used[step] = _core_seconds_by_name(stack.supervisor.pid)

    with a_stack() as stack:
        job = replace(run(stack, part.recipe, after_step), warm_up=part.warm_up, end=end)
    samples = job.total("samples")
    spent = {
        name: 1000 * (seconds - used[part.warm_up][name]) / samples
        for name, seconds in used[end].items()
    }
    return Speed(samples / job.seconds, spent, fmean(step["reward"] for step in job.measured))


def _core_seconds_by_name(supervisor: int) -> dict[str, float]:
    """Return the core-seconds of a stack's processes; children count for their program."""
    names: dict[int, str] = {}
    total: dict[str, float] = defaultdict(float)
    for process_id in find_family(supervisor):
        with suppress(psutil.Error):  # it has ended
            process = psutil.Process(process_id)
            line = " ".join((process.name(), *process.cmdline()))
            inherited = names.get(process.ppid(), "supervisor")
            names[process_id] = next((_PROGRAMS[p] for p in _PROGRAMS if p in line), inherited)
            total[names[process_id]] += core_seconds(process_id)
    return total


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


def run_trl(part: Part, threads: int, *, vllm: bool) -> Speed:
    """Run the same job in a process of TRL, or raise `TrainerFailed`."""
    samples = part.recipe.training.groups_per_step * part.recipe.rollout.group_size
    settings = _settings(part, samples) | {"threads": threads, "vllm": vllm}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "settings.json"
        result = Path(folder) / "result.json"
        source.write_text(json.dumps(settings))
        command = [PYTHON, "-m", "benchmarks.with_trl", source, result]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **_TRL_ENVIRONMENT}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if ended.returncode:
            print(ended.stderr, file=sys.stderr)
            raise TrainerFailed(_last_error(ended.stderr))
        measured: Json = json.loads(result.read_text())
    first = measured["batches"][part.warm_up - 1]
    last = measured["batches"][-1]
    total = samples * part.trl_steps
    core_seconds = 1000 * (last["core_seconds"] - first["core_seconds"]) / total
    return Speed(
        total / (last["time"] - first["time"]),
        {"TRL": core_seconds},
        fmean(measured["rewards"][part.warm_up :]),
    )


def _last_error(output: str) -> str:
    """Return the last error of a traceback."""
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*", output, re.MULTILINE)
    return errors[-1] if errors else output.strip().rpartition("\n")[2]


def _settings(part: Part, samples: int) -> Json:
    recipe = part.recipe
    algorithm = recipe.algorithm
    optimizer = recipe.optimizer
    sampling = recipe.rollout.sampling
    return {
        "model": str(ROOT / recipe.model.path),
        "tasks": str(ROOT / recipe.tasks.train),
        "prompt_template": recipe.model.prompt_template,
        "max_context": recipe.model.max_context,
        "steps": part.warm_up + part.trl_steps,
        "samples": samples,
        "finds_answer": part.finds_answer,
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
