"""How long the list of models takes, and one model of it.

``python -m tests.benchmarks.models`` makes 1,000 base models of 12 files each and 1,000 jobs with a
model and two checkpoints, and prints one table. ``--models`` and ``--jobs`` say how many.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from services.chassis.deployment import Deployment
from services.gateway.models.catalog import all_models
from services.gateway.models.folders import resolve_model

FILES = ("config.json", "model.safetensors", *(f"tokenizer-{number}.json" for number in range(10)))
ROUNDS = 5


def a_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).touch()


def best_of(work: Callable[[], object]) -> float:
    """Seconds of the fastest round."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root, data = Path(name, "models").resolve(), Path(name, "data").resolve()
        for number in range(given.models):
            a_model(root / f"family-{number % 20}" / f"model-{number}")
        for number in range(given.jobs):
            for made in ("model", "checkpoints/step-000002/model", "checkpoints/step-000004/model"):
                a_model(data / "jobs" / f"ftjob-{number:024x}" / made)
        deployment = Deployment.from_environment(
            {
                "WEIR_REDIS_URL": "redis://none",
                "WEIR_DATA_DIR": str(data),
                "WEIR_MODEL_ROOTS": str(root),
                "WEIR_PORT": "0",
            }
        )
        listed = len(all_models(deployment))
        assert listed == given.models + 3 * given.jobs
        print("| of | takes |\n|---|---|")
        print(f"| a list of {listed:,} | {best_of(lambda: all_models(deployment)) * 1e3:.1f} ms |")
        for model in ("family-1/model-1", f"ftckpt-ftjob-{1:024x}-4"):
            seconds = best_of(lambda model=model: resolve_model(model, deployment))
            print(f"| one, {model} | {seconds * 1e3:.2f} ms |")


if __name__ == "__main__":
    main()
