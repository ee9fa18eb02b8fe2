from __future__ import annotations
import signal
from pathlib import Path
import pytest
from tests.stack.conftest import of_home, start
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

def test_elastic(tmp_path: Path) -> None:
    stack = start(tmp_path / "a home", WEIR_LEARNER_RANKS="2")
    try:
        stack.wait_until_up()
        job_id = stack.submit(training={"steps": 12, "checkpoint_every": 5000})
        stack.wait_for_step(job_id, 2, 300)
    finally:
        stack.supervisor.send_signal(signal.SIGTERM)
        assert stack.supervisor.wait(120) == 0
    again = start(tmp_path / "a home", WEIR_LEARNER_RANKS="1")
    try:
        again.wait_until_up()
        print(again.wait_for_end(job_id, 500)["status"])
        for e in again.events(job_id): print(e.get("message"), e.get("data", {}) if "step" not in str(e.get("message")) else "")
    finally:
        again.supervisor.send_signal(signal.SIGTERM)
        again.supervisor.wait(120)
