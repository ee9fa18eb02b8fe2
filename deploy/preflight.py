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
class Box:
    """The facts about a machine that this process sees."""

    driver: str
    num_gpus: int
    # The reason why nvidia-smi lists no GPU.
    gpu_error: str
    # Whether docker is there, and NVIDIA's toolkit for it is not.
    lacks_toolkit: bool
    disk_gib: float
    memory_gib: float
    shared_gib: float
    overcommit: str


@dataclass(frozen=True)
class Check:
    name: str
    is_met: bool
    fact: str
    remedy: str
    # Whether the stack cannot run without it.
    is_required: bool = True

    @property
    def is_fatal(self) -> bool:
        return self.is_required and not self.is_met

    def __str__(self) -> str:
        if self.is_met:
            return f"ok       {self.name}: {self.fact}"
        label = "MISSING " if self.is_required else "advice  "
        return f"{label} {self.name}: {self.fact}; {self.remedy}"


def read_box(root: Path = Path("/")) -> Box:
    drivers, gpu_error = _list_drivers()
    # A container without the toolkit still sees the driver of the kernel.
    module = re.search(r" (\d+\.[\d.]+) ", _read(root / "proc/driver/nvidia/version"))
    memory = re.search(r"MemTotal: +(\d+)", _read(root / "proc/meminfo"))
    limit = _read(root / "sys/fs/cgroup/memory.max")
    sizes = [int(memory[1]) * 1024] if memory else []
    sizes += [int(limit)] if limit.isdigit() else []
    return Box(
        driver=drivers[0] if drivers else module[1] if module else "",
        num_gpus=len(drivers),
        gpu_error=gpu_error,
        lacks_toolkit=bool(shutil.which("docker")) and not shutil.which("nvidia-ctk"),
        disk_gib=shutil.disk_usage(".").free / _GIB,
        memory_gib=min(sizes, default=0) / _GIB,
        shared_gib=shutil.disk_usage("/dev/shm").total / _GIB,
        overcommit=_read(root / "proc/sys/vm/overcommit_memory"),
    )


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _list_drivers() -> tuple[list[str], str]:
    """Return the driver's version for each GPU, and the reason if there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    drivers = re.findall(r"^\d+\.[\d.]+$", done.stdout, re.MULTILINE)
    return drivers, "" if drivers else (done.stdout + done.stderr).strip()


def check_box(box: Box, num_gpus: int) -> Iterator[Check]:
    """Yield the checks of a machine on which the stack takes this many GPUs."""
    yield Check(
        "driver",
        int(box.driver.partition(".")[0] or 0) >= _MIN_DRIVER,
        box.driver or "none",
        f"CUDA 13 needs NVIDIA's driver {_MIN_DRIVER} or later: install it, and reboot",
    )
    fewer = f"'weir compose {box.num_gpus}' writes a file for those that are there"
    toolkit = (
        "install the NVIDIA Container Toolkit, then 'sudo nvidia-ctk runtime configure "
        "--runtime=docker' and 'sudo systemctl restart docker'"
    )
    yield Check(
        "GPUs",
        box.num_gpus >= num_gpus,
        f"{box.num_gpus} of {num_gpus}" + (f" ({box.gpu_error})" if box.gpu_error else ""),
        fewer if box.num_gpus else f"nvidia-smi must list them; in a container, {toolkit}",
    )
    if box.lacks_toolkit:
        yield Check("toolkit", False, "containers would see no GPU", toolkit, is_required=False)
    for name, size, minimum, remedy in (
        ("disk", box.disk_gib, _MIN_DISK_GIB, "'docker system prune' removes unused images"),
        ("memory", box.memory_gib, _MIN_MEMORY_GIB, "take a machine or a container with more"),
        (
            "/dev/shm",
            box.shared_gib,
            _MIN_SHARED_GIB,
            "'sudo mount -o remount,size=16G /dev/shm', or start the container with --shm-size=16g",
        ),
    ):
        fact = f"{size:.0f} GiB" if size >= minimum else f"{size:.1f} of {minimum} GiB"
        yield Check(name, size >= minimum, fact, remedy)
    yield Check(
        "vm.overcommit_memory",
        box.overcommit == "1",
        box.overcommit or "unknown",
        "Redis may fail to rewrite its log when memory is short: "
        "'sudo sysctl vm.overcommit_memory=1'",
        is_required=False,
    )


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Print the checks, or those whose names are given; return 1 if the stack cannot run."""
    checks = check_box(read_box(), int(environment.get("WEIR_NUM_GPUS") or 1))
    chosen = [check for check in checks if not arguments or check.name in arguments]
    print(*chosen, sep="\n", flush=True)
    if not any(check.is_fatal for check in chosen):
        return 0
    if environment.get("WEIR_PREFLIGHT") == "warn":
        print("WEIR_PREFLIGHT=warn: going on all the same")
        return 0
    print("WEIR_PREFLIGHT=warn goes on all the same")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
