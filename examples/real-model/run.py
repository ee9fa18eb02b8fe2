"""Teach SmolLM2-135M-Instruct: make the model and tasks, warm it up, train, fetch, ask, stop.

Each stage is a command that a person could type, and prints its cost.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from examples.arithmetic.demo import DemoFailed, running_stack

HERE = Path(__file__).parent
RUNS = Path("runs/real-model")
_QUESTIONS = 6


def main() -> int:
    """Run all stages, and return the exit status."""
    RUNS.mkdir(parents=True, exist_ok=True)
    os.environ["WEIR_HOME"] = str(RUNS / "stack")
    try:
        if not (RUNS / "smollm2").exists():
            with print_cost("the model"):
                command(sys.executable, HERE / "base_model.py", RUNS / "smollm2")
        command(sys.executable, HERE / "tasks.py", RUNS)
        if not (RUNS / "warm").exists():
            with print_cost("the warm start"):
                command("weir", "sft", HERE / "sft.toml", RUNS / "warm")
        with print_cost("the job, with its stack"), running_stack(RUNS / "stack"):
            _train()
    except (DemoFailed, subprocess.CalledProcessError) as error:
        print(f"real-model: {error}", file=sys.stderr)
        return 1
    return 0


def _train() -> None:
    command("weir", "run", HERE / "recipe.toml")
    jobs = subprocess.check_output(["weir", "jobs", "--limit", "1", "--json"], text=True)
    job = json.loads(jobs.splitlines()[0])["id"]
    command("weir", "evaluations", job)
    trained = RUNS / job
    command("weir", "fetch", job, trained)
    for line in (RUNS / "held_out.jsonl").read_text().splitlines()[:_QUESTIONS]:
        task = json.loads(line)
        print(f"{task['prompt']} ({task['answer']})", flush=True)
        command("weir", "chat", job, "--temperature", "0", input=task["prompt"])


def command(*words: str | Path, input: str | None = None) -> None:
    """Run a command as a person would, with its output on this terminal."""
    subprocess.run(list(map(str, words)), check=True, text=True, input=input)


@contextmanager
def print_cost(stage: str) -> Iterator[None]:
    """Print the time, the core-seconds of every process, and their peak memory in total."""
    start = time.monotonic()
    core_seconds_before = _core_seconds()
    peak = [0.0]
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(peak, over), daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        seconds = time.monotonic() - start
        core_seconds = _core_seconds() - core_seconds_before
        print(
            f"{stage}: {seconds:.0f} s, {core_seconds:.0f} core-seconds, {peak[0]:.1f} GiB",
            flush=True,
        )


def _core_seconds() -> float:
    """Return the CPU time of all descendants that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch(peak: list[float], over: threading.Event) -> None:
    while not over.wait(2):
        total = 0
        for process in psutil.Process().children(recursive=True):
            try:
                total += process.memory_info().rss
            except psutil.Error:  # it has ended
                continue
        peak[0] = max(peak[0], total / 2**30)


if __name__ == "__main__":
    sys.exit(main())
