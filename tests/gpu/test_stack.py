"""The whole stack on one GPU, whose learner and engine take turns."""

import os
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch

from tests.gpu.driver import REHEARSES
from tests.stack.conftest import start

_HAS_GPU = torch.cuda.is_available() and "vllm" in packages_distributions().get("vllm", [])


@pytest.mark.gpu
@pytest.mark.timeout(1200 if REHEARSES else 240)
@pytest.mark.skipif(
    not (_HAS_GPU or REHEARSES),
    reason="needs a GPU and vLLM's CUDA build; WEIR_REHEARSE=1 does not",
)
def test_two_steps_of_papo_in_turns(tmp_path: Path) -> None:
    stack = start(tmp_path / "home", PYTHONPATH=os.pathsep.join(sys.path))
    try:
        stack.wait_until_up()
        job = stack.submit(training={"steps": 2}, model={"dtype": "bfloat16"})
        assert stack.wait_for_end(job)["status"] == "succeeded"
        parity = [step["parity_mean"] for step in stack.metrics(job) if step.get("parity_tokens")]
        print("parity", parity)
        assert max(parity) <= 0.03  # no rollout of a bfloat16 model is refused below it
    finally:
        stack.supervisor.terminate()
        stack.supervisor.wait(60)
