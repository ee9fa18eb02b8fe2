"""What only a GPU shows: skipped without one; WEIR_REHEARSE=1 rehearses it small on a CPU."""

import pytest
import torch

from tests.gpu.report import REHEARSES


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if not torch.cuda.is_available() and not REHEARSES:
        pytest.skip("needs a GPU; WEIR_REHEARSE=1 tries it small on the CPU, and measures nothing")
