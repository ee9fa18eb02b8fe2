"""The check of a machine with GPUs names each fault of it, and the remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy import preflight
from tests.tables import table

GIB = 2**30
MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
LISTS = "echo 580.95.05; echo 580.95.05"
LABELS = {"ok", "MISSING", "advice"}


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class Machine:
    """A machine with two GPUs, programs of which the sources are on PATH, and sizes in GiB."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.programs = folder / "root", folder / "bin"
        self.programs.mkdir()
        self.sizes = {".": 100, "/dev/shm": 16}
        self.environment = {"WEIR_NUM_GPUS": "2"}
        self.write("proc/meminfo", f"MemTotal:       {64 * 2**20} kB\nMemFree: 1 kB\n")
        self.write("proc/driver/nvidia/version", MODULE)
        self.write("proc/sys/vm/overcommit_memory", "1\n")
        self.write("sys/fs/cgroup/memory.max", "max\n")
        self.install("nvidia-smi", LISTS)
        monkeypatch.setenv("PATH", str(self.programs))
        monkeypatch.setattr(shutil, "disk_usage", self.disk_usage)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def install(self, name: str, source: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{source}\n")
        path.chmod(0o755)

    def disk_usage(self, path: str) -> Usage:
        size = self.sizes[path] * GIB
        return Usage(size, 0, size)

    def check(self, capsys: pytest.CaptureFixture[str], *names: str) -> tuple[int, dict[str, str]]:
        """Return the exit status, and the line of each check by its name."""
        status = preflight.main(names, self.environment, self.root)
        lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
        checks = [(label, text) for label, text in lines if label in LABELS]
        return status, {text.partition(":")[0]: f"{label} {text}" for label, text in checks}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_machine_that_has_everything_is_ok(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.check(capsys) == (
        0,
        {
            "driver": "ok driver: 580.95.05",
            "GPUs": "ok GPUs: 2 of 2",
            "disk": "ok disk: 100.0 GiB, of at least 30",
            "memory": "ok memory: 64.0 GiB, of at least 30",
            "/dev/shm": "ok /dev/shm: 16.0 GiB, of at least 8",
            "vm.overcommit_memory": "ok vm.overcommit_memory: 1",
        },
    )


@pytest.mark.parametrize(
    ("source", "name", "fact", "remedy"),
    [
        ("echo 575.57.08; echo 575.57.08", "driver", "575.57.08", "driver 580 or later"),
        (
            "echo 580.95.05",
            "GPUs",
            "1 of 2",
            "'weir compose 1'",
        ),
        (
            "echo No devices were found; exit 6",
            "GPUs",
            "none: No devices were found",
            "nvidia-smi must list them",
        ),
        (
            "echo Driver/library version mismatch >&2; exit 18",
            "GPUs",
            "none: Driver/library version mismatch",
            "nvidia-smi must list them",
        ),
    ],
)
def test_what_nvidia_smi_says_is_checked(
    machine: Machine,
    capsys: pytest.CaptureFixture[str],
    source: str,
    name: str,
    fact: str,
    remedy: str,
) -> None:
    machine.install("nvidia-smi", source)
    status, checks = machine.check(capsys)
    assert status == 1
    assert checks[name].startswith(f"MISSING {name}: {fact}; ")
    assert remedy in checks[name]
    assert [key for key in checks if not checks[key].startswith("ok")] == [name]


def test_a_container_without_the_toolkit_sees_the_driver_and_no_gpu(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine.programs / "nvidia-smi").unlink()
    status, checks = machine.check(capsys)
    assert status == 1
    assert checks["driver"] == "ok driver: 580.65.06"
    assert "none: [Errno 2] No such file" in checks["GPUs"]
    assert "install the NVIDIA Container Toolkit" in checks["GPUs"]


def test_a_machine_without_a_driver_is_told_to_install_one(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine.programs / "nvidia-smi").unlink()
    (machine.root / "proc/driver/nvidia/version").unlink()
    status, checks = machine.check(capsys, "driver")
    assert (status, checks.keys()) == (1, {"driver"})
    assert "MISSING driver: none" in checks["driver"]
    assert "install it" in checks["driver"]


def test_docker_without_the_toolkit_is_named(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.install("docker", "")
    status, checks = machine.check(capsys)
    assert status == 0, "processes need none"
    assert checks["toolkit"].startswith("advice toolkit: containers would see no GPU; install")
    machine.install("nvidia-ctk", "")
    assert "toolkit" not in machine.check(capsys)[1]


@table(
    """
    path     | name     | size | fact                   | remedy
    .        | disk     | 29   | 29.0 GiB, of at least 30 | docker system prune
    /dev/shm | /dev/shm | 7    | 7.0 GiB, of at least 8   | --shm-size=16g
"""
)
def test_a_folder_that_is_too_small_is_named(
    machine: Machine,
    capsys: pytest.CaptureFixture[str],
    path: str,
    name: str,
    size: int,
    fact: str,
    remedy: str,
) -> None:
    machine.sizes[path] = size
    status, checks = machine.check(capsys)
    assert status == 1
    assert checks[name].startswith("MISSING")
    assert fact in checks[name]
    assert remedy in checks[name]


@table(
    """
    file                     | text
    proc/meminfo             | MemTotal: 16777216 kB
    sys/fs/cgroup/memory.max | 17179869184
"""
)
def test_little_memory_of_a_machine_or_a_container_is_named(
    machine: Machine, capsys: pytest.CaptureFixture[str], file: str, text: str
) -> None:
    machine.write(file, text)
    status, checks = machine.check(capsys)
    assert status == 1
    assert "MISSING memory: 16.0 GiB, of at least 30; take a machine" in checks["memory"]


def test_overcommit_is_an_advice(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.write("proc/sys/vm/overcommit_memory", "0\n")
    status, checks = machine.check(capsys)
    assert status == 0
    assert checks["vm.overcommit_memory"].startswith("advice")
    assert "sudo sysctl vm.overcommit_memory=1" in checks["vm.overcommit_memory"]


def test_a_person_may_go_on_all_the_same(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.sizes["."] = 1
    assert machine.check(capsys)[0] == 1
    machine.environment["WEIR_PREFLIGHT"] = "warn"
    status, checks = machine.check(capsys)
    assert status == 0
    assert "MISSING" in checks["disk"]


def test_the_file_runs_alone_and_the_doctor_prints_the_same(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 575.57.08\n")
    smi.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    alone = [sys.executable, "-I", preflight.__file__]
    doctor = [sys.executable, "-m", "weir", "doctor", "--box"]
    outputs = [
        subprocess.run(command, env=environment, capture_output=True, text=True)
        for command in (alone, doctor)
    ]
    assert [done.returncode for done in outputs] == [1, 1], outputs
    names = [[line.split(":")[0] for line in done.stdout.splitlines()] for done in outputs]
    assert names[0] == names[1], "sizes may change meanwhile"
    assert "MISSING  driver: 575.57.08" in outputs[1].stdout
