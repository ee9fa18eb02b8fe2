"""The gateway runs where no model ever does."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import importlib, pkgutil, sys
sys.path[:0] = ["proto", "."]
import services.gateway
here = "services.gateway."
names = [module.name for module in pkgutil.walk_packages(services.gateway.__path__, here)]
expected = {"app", "cli", "jobs", "__main__", "samples.index"}
assert {here + name for name in expected} <= set(names), names
for name in names:
    importlib.import_module(name)
heavy = {"torch", "vllm", "deepspeed", "ray", "transformers", "math_verify"} & set(sys.modules)
siblings = [name for name in sys.modules if name.startswith("services.")]
strange = [name for name in siblings if name.split(".")[1] not in {"gateway", "chassis"}]
sys.exit(f"loaded: {sorted(heavy)} {strange}" if heavy or strange else 0)
"""


def test_importing_every_part_of_the_gateway_loads_no_engine_and_no_other_service() -> None:
    finished = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
