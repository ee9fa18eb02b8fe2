"""The whole stack on one GPU: it learns in bfloat16, and a rollout that dies costs it nothing."""

from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.gpu.report import REHEARSES
from tests.stack.conftest import start

_BUILDS = packages_distributions().get("vllm", [])
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "vllm" not in _BUILDS and not (REHEARSES and _BUILDS),
        reason="needs vLLM's CUDA build, which `make install` takes",
    ),
]


def test_twenty_steps_on_one_gpu_through_the_death_of_a_rollout(tmp_path: Path) -> None:
    stack = start(tmp_path / "home")
    try:
        stack.wait_until_up(600)
        job = stack.submit(
            training={"steps": 20},
            model={"dtype": "bfloat16"},
        )
        stack.wait_for_step(job, 5, timeout_s=600)
        stack.kill("rollout")
        assert stack.wait_for_end(job, timeout_s=600)["status"] == "succeeded"
        steps = stack.metrics(job)
        parity = [step["parity_mean"] for step in steps if step.get("parity_tokens")]
        print("parity", parity)
        assert len(steps) == 20
        assert max(parity) <= 0.01
    finally:
        stack.supervisor.terminate()
        stack.supervisor.wait(60)
