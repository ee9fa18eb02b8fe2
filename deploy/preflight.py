"""Check a machine with GPUs before the stack starts: ``weir doctor --box``.

In containers this file runs alone, so it imports the standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_GIB = 2**30
# The first driver for CUDA 13, which torch and vLLM are built for.
_MIN_DRIVER = 580
# A checkpoint of a 1.5B model takes 20 GiB, with the state of its optimizer.
_MIN_DISK_GIB = 30
_MIN_MEMORY_GIB = 30
# For NCCL, and for the weights that `weir up` publishes there.
_MIN_SHARED_GIB = 8


@dataclass(frozen=True)
class Check:
    name: str
    is_met: bool
    fact: str
    remedy: str
    # Whether the stack cannot run without it.
    is_required: bool = True

    @property
    def label(self) -> str:
        return "ok" if self.is_met else "MISSING" if self.is_required else "advice"

    def __str__(self) -> str:
        line = f"{self.label:8} {self.name}: {self.fact}"
        return line if self.is_met else f"{line}; {self.remedy}"


def check_machine(num_gpus: int, root: Path) -> Iterator[Check]:
    """Yield the checks of a machine on which the stack takes this many GPUs."""
    yield from _check_gpus(num_gpus, root)
    yield from _check_sizes(root)
    overcommit = _read(root / "proc/sys/vm/overcommit_memory")
    yield Check(
        "vm.overcommit_memory",
        overcommit == "1",
        overcommit,
        "Redis may fail to rewrite its log when memory is short: "
        "'sudo sysctl vm.overcommit_memory=1'",
        is_required=False,
    )


def _check_gpus(num_gpus: int, root: Path) -> Iterator[Check]:
    answer = _ask_nvidia_smi()
    drivers = re.findall(r"^\d+\.[\d.]+$", answer, re.MULTILINE)
    # A container without the toolkit still sees the driver of the kernel.
    module = re.findall(r" (\d+\.[\d.]+) ", _read(root / "proc/driver/nvidia/version"))
    driver = next(iter(drivers + module), "none")
    yield Check(
        "driver",
        driver != "none" and int(driver.partition(".")[0]) >= _MIN_DRIVER,
        driver,
        f"CUDA 13 needs NVIDIA's driver {_MIN_DRIVER} or later: install it, and reboot",
    )
    fewer = f"'weir compose {len(drivers)}' writes a file for those that are there"
    toolkit = (
        "install the NVIDIA Container Toolkit, then 'sudo nvidia-ctk runtime configure "
        "--runtime=docker' and 'sudo systemctl restart docker'"
    )
    yield Check(
        "GPUs",
        len(drivers) >= num_gpus,
        f"{len(drivers)} of {num_gpus}" if drivers else f"none: {answer}",
        fewer if drivers else f"nvidia-smi must list them; in a container, {toolkit}",
    )
    if shutil.which("docker") and not shutil.which("nvidia-ctk"):
        yield Check("toolkit", False, "containers would see no GPU", toolkit, is_required=False)


def _ask_nvidia_smi() -> str:
    """Return the driver's version for each GPU, or an error."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout + done.stderr).strip()


def _check_sizes(root: Path) -> Iterator[Check]:
    total = re.search(r"MemTotal: +(\d+)", _read(root / "proc/meminfo"))
    memory = int(total[1]) * 1024 if total else 0
    limit = _read(root / "sys/fs/cgroup/memory.max")
    if limit.isdigit():
        memory = min(memory, int(limit))
    for name, size, minimum, remedy in (
        (
            "disk",
            shutil.disk_usage(".").free,
            _MIN_DISK_GIB,
            "'docker system prune' removes unused images",
        ),
        ("memory", memory, _MIN_MEMORY_GIB, "take a machine or a container with more"),
        (
            "/dev/shm",
            shutil.disk_usage("/dev/shm").total,
            _MIN_SHARED_GIB,
            "'sudo mount -o remount,size=16G /dev/shm', or start the container with --shm-size=16g",
        ),
    ):
        fact = f"{size / _GIB:.1f} GiB, of at least {minimum}"
        yield Check(name, size >= minimum * _GIB, fact, remedy)


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def main(
    arguments: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> int:
    """Print the checks, or those whose names are given; return 1 if the stack cannot run."""
    num_gpus = environment.get("WEIR_NUM_GPUS") or "1"
    if not num_gpus.isdecimal():
        print(f"WEIR_NUM_GPUS={num_gpus}: give the number of GPUs")
        return 1
    checks = check_machine(int(num_gpus), root)
    chosen = [check for check in checks if not arguments or check.name in arguments]
    print(*chosen, sep="\n")
    if all(check.label != "MISSING" for check in chosen):
        return 0
    if environment.get("WEIR_PREFLIGHT") == "warn":
        return 0
    print("in containers, WEIR_PREFLIGHT=warn starts the stack all the same")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
