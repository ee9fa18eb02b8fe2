"""A learner of two ranks, which share samples, train an adapter and stop together."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.stack.conftest import of_home, start

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_ranks_share_samples_and_a_stop_in_good_order_saves_a_checkpoint_of_all(
    tmp_path: Path,
) -> None:
    stack = start(tmp_path / "a home", WEIR_LEARNER_RANKS="2")
    try:
        stack.wait_until_up()
        adapter = {"lora": {"rank": 2}}
        shared = stack.submit(training={"steps": 2, "sequence_parallel": 2}, model=adapter)
        job = stack.wait_for_end(shared)
        assert job["status"] == "succeeded", job["error"]
        assert job["weir"]["step"] == 2
        assert job["weir"]["result"]["parity_tokens"] > 0
        assert job["weir"]["result"]["parity_max_abs"] <= 1e-3
        job_id = stack.submit(training={"steps": 5000, "checkpoint_every": 5000}, model=adapter)
        stack.wait_for_step(job_id, 2)
    finally:
        stack.supervisor.send_signal(signal.SIGTERM)
        assert stack.supervisor.wait(60) == 0
    (checkpoint,) = (stack.home / "data/jobs" / job_id / "checkpoints").glob("step-*")
    assert {"adapter_config.json", "adapter_model.safetensors"} == files_in(checkpoint / "model")
    assert not of_home(stack.home)
