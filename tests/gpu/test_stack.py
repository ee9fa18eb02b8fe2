"""The whole stack on one GPU, whose learner and engine take turns."""

import os
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.driver import REHEARSES
from tests.stack.conftest import a_stack

_RUNS = torch.cuda.is_available() or REHEARSES


@pytest.mark.gpu
@pytest.mark.timeout(1200 if REHEARSES else 240)
@pytest.mark.skipif(not _RUNS, reason="needs a GPU; WEIR_REHEARSE=1 tries it small on the CPU")
def test_two_steps_of_papo_in_turns(tmp_path: Path) -> None:
    with a_stack(tmp_path / "home", PYTHONPATH=os.pathsep.join(sys.path)) as stack:
        job = stack.submit(training={"steps": 2}, model={"dtype": "bfloat16"})
        assert stack.wait_for_end(job)["status"] == "succeeded"
        assert len(stack.metrics(job)) == 2
