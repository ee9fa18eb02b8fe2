"""What measures a GPU, rehearsed on a CPU: the learner's parts, faults, and an early end."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.architecture.project import ROOT
from tests.gpu import driver, learner

EXPECTED = {
    "MFU": {"least": 0.25, "reason": "others reach it"},
    "gap": {"most": 0.02, "reason": ""},
}


def start_driver(table: str, out: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    settings = {"WEIR_REHEARSE": "1", "OUT": str(out), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.driver", table, *words],
        cwd=ROOT,
        env=os.environ | settings | environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def find_programs(out: Path) -> list[str]:
    """Return the command lines of the processes that a driver with this $OUT has started."""
    programs = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended
            if process.environ().get("OUT") == str(out) and process.status() != "zombie":
                programs.append(" ".join(process.cmdline()))
    return programs


def wait_for_programs(out: Path, word: str, *, present: bool) -> None:
    deadline = time.monotonic() + 60
    while present != any(word in program for program in find_programs(out)):
        assert time.monotonic() < deadline, find_programs(out)
        time.sleep(0.1)


def test_parts_give_figures_as_expected_and_one_that_fails_is_a_fault(tmp_path: Path) -> None:
    names = [
        "machine",
        "updates, bfloat16",
        "1.5B, profiled",
        "publish 3B, pageable",
        "head, chunks of 4,096",
        "1.5B, FlashAttention 3",
    ]
    with start_driver("learner", tmp_path, *names) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    results = json.loads((tmp_path / "gpu-learner.json").read_text())
    assert list(results) == names
    assert len(lines) == len(names)
    assert process.returncode == 1
    assert "needs a Hopper GPU" in results.pop(names[-1])["faults"][0]
    assert not any(result["faults"] for result in results.values()), lines


def test_a_part_that_is_late_is_a_fault(tmp_path: Path) -> None:
    with start_driver("learner", tmp_path, "machine", LIMIT_S="0.1", START="spawn") as process:
        pass
    results = json.loads((tmp_path / "gpu-learner.json").read_text())
    assert process.returncode == 1
    assert results["machine"]["faults"] == ["no result within 0 s, or its process has died"]


@pytest.mark.parametrize(
    ("figures", "faults"),
    [
        ({"MFU": 0.3, "gap": 0.01}, []),
        ({"MFU": 0.2, "gap": 0.01}, ["MFU is 0.2, not 0.25 to inf: others reach it"]),
        ({"MFU": float("nan"), "gap": 0.01}, ["MFU is nan, not 0.25 to inf: others reach it"]),
        ({"MFU": 0.3}, ["gap is nan, not -inf to 0.02: "]),
        ({"error": "OutOfMemoryError"}, ["OutOfMemoryError"]),
    ],
)
def test_a_bound_that_does_not_hold_gives_its_reason(
    figures: dict[str, Any], faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "REHEARSES", False)
    assert driver._find_faults(EXPECTED, figures) == faults


def test_parts_call_functions_that_exist_and_bounds_have_reasons() -> None:
    for part in driver.read_table("learner")["part"]:
        function = getattr(learner, part["measure"])
        inspect.signature(function).bind(**part.get("options", {}))
        assert all(bound["reason"] for bound in part.get("expected", {}).values())


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("tests.gpu.driver", signal.SIGKILL),
        ("train_some_steps", signal.SIGKILL),
        ("train_some_steps", signal.SIGTERM),
    ],
)
def test_nothing_is_left_of_a_driver_that_ends_early(
    word: str, number: signal.Signals, tmp_path: Path
) -> None:
    with start_driver("learner", tmp_path, "updates") as process:
        wait_for_programs(tmp_path, word, present=True)
        process.send_signal(number)
        process.wait(60)
        wait_for_programs(tmp_path, "", present=False)
