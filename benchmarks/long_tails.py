"""Tasks with a heavy tail of response lengths, and a model for them.

The tasks are the demo's; if a prompt begins with ``#``, hundreds of dots precede the solution. The
demo's model learns that by `weir sft`, in two minutes on one core, and stays in ``runs/``.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from examples.arithmetic.tasks import ArithmeticTask, draw_side
from tests.stack.conftest import ROOT

FOLDER = ROOT / "runs/benchmarks/long-tails"
BASE = ROOT / "examples/arithmetic/base-model"
MAX_CONTEXT = 1024
MAX_TOKENS = 1000
LONG_TASKS = 0.1  # share of the tasks with dots
LONG_SOLUTIONS = 0.25  # share of the solutions with dots
MEAN_DOTS = 650
MIN_DOTS = 30
SOLUTIONS = 2400
TASKS = 2000
BATCH = 16
_SFT = """
[model]
path = "{folder}/start"
dtype = "float32"
prompt_template = "{{prompt}}"
max_context = {max_context}
[tasks]
train = "{folder}/solutions.jsonl"
[training]
batch_size = {batch}
[optimizer]
learning_rate = 1e-3
betas = [0.9, 0.98]
warmup_steps = 20
"""


def prepare() -> Path:
    """Return the folder with ``model`` and ``train.jsonl``, and make it if it is missing."""
    if not (FOLDER / "model").exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        _write_start(FOLDER / "start")
        rng = random.Random(0)
        _write(FOLDER / "solutions.jsonl", islice(_records(rng, LONG_SOLUTIONS), SOLUTIONS))
        _write(FOLDER / "train.jsonl", islice(_records(rng, LONG_TASKS), TASKS))
        text = _SFT.format(folder=FOLDER, max_context=MAX_CONTEXT, batch=BATCH)
        (FOLDER / "sft.toml").write_text(text)
        command = ("-m", "services.learner.sft", str(FOLDER / "sft.toml"), str(FOLDER / "learned"))
        subprocess.run([sys.executable, *command], cwd=ROOT, stdout=sys.stderr, check=True)
        (FOLDER / "learned").rename(FOLDER / "model")
    return FOLDER


def _write_start(folder: Path) -> None:
    """Copy the demo's model with more positions."""
    shutil.copytree(BASE, folder)
    for name, key in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        settings: dict[str, Any] = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | {key: MAX_CONTEXT}))


def _records(rng: random.Random, long: float) -> Iterator[dict[str, str]]:
    for number, task in enumerate(draw_side(rng, held_out=False)):
        yield _record(task, rng, is_long=rng.random() < long) | {"id": f"task-{number}"}


def _record(task: ArithmeticTask, rng: random.Random, *, is_long: bool) -> dict[str, str]:
    if not is_long:
        return task.record
    dots = min(int(rng.expovariate(1 / MEAN_DOTS)) + MIN_DOTS, MAX_TOKENS - 50)
    return task.record | {
        "prompt": f"#{task.prompt}",
        "solution": "." * dots + task.solution,
    }


def _write(path: Path, records: Iterator[dict[str, str]]) -> None:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


if __name__ == "__main__":
    prepare()
