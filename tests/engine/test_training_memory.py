"""The memory that a plan computes is the memory that training takes."""

import json

import pytest

from tests.engine.test_training_engine import run

pytestmark = pytest.mark.engine
OF_GLOO = 4  # bytes per parameter that a thread of gloo frees late, or in time


def test_training_takes_the_memory_that_is_planned() -> None:
    """Three of the rows of the benchmark: ZeRO-1, ZeRO-2, and ZeRO-3 with an offload."""
    ended = run(["-m", "benchmarks.training_memory", "--json", "--only", "2", "4", "10"])
    assert ended.returncode == 0, ended.stderr[-3000:]
    one, two, offloaded = json.loads(ended.stdout.splitlines()[-1])
    assert (offloaded["stage"], offloaded["offload"]) == (3, "optimizer")
    for row in (one, two, offloaded):
        assert -1.3 < row["measured"] - row["planned"] < OF_GLOO + 2
