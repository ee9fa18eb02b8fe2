"""What measures the engine on a GPU, rehearsed on a CPU; it is killed before it ends."""

import json
from pathlib import Path

import pytest

from tests.engine.test_gpu_driver import start_driver, wait_for_programs
from tests.gpu import driver

pytestmark = pytest.mark.engine


def test_the_parts_of_the_rollout_give_figures_and_leave_no_engine(tmp_path: Path) -> None:
    names = [part["name"] for part in driver.read_table("rollout")["part"]]
    with start_driver("rollout", tmp_path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in names]
        process.kill()
    results = json.loads((tmp_path / "gpu-rollout.json").read_text())
    assert list(results) == names
    assert not any(result["faults"] for result in results.values()), lines
    wait_for_programs(tmp_path, "", present=False)
