"""The grader and `weir data` run where no model ever does, and load no more than they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import importlib, pkgutil, sys
sys.path[:0] = ["proto", "."]
package, others, unwanted = sys.argv[1], set(sys.argv[2].split()), set(sys.argv[3].split())
path = importlib.import_module(package).__path__
names = [module.name for module in pkgutil.walk_packages(path, f"{package}.")]
assert f"{package}.__main__" in names, names
for name in names:
    if ".algebra." not in name:
        importlib.import_module(name)
loaded = unwanted & set(sys.modules)
siblings = {name.split(".")[1] for name in sys.modules if name.startswith("services.")}
strange = siblings - others
sys.exit(f"loaded: {loaded} {strange}" if loaded or strange else 0)
"""
HEAVY = "torch vllm deepspeed ray transformers"
OF_WORKERS = "sympy math_verify"  # computer algebra


@pytest.mark.parametrize(
    ("package", "services", "unwanted"),
    [
        ("services.grader", "grader chassis", f"{HEAVY} {OF_WORKERS}"),
        ("services.data", "data grader chassis", f"{HEAVY} {OF_WORKERS} datasets pyarrow pandas"),
    ],
)
def test_importing_every_part_loads_no_engine_no_algebra_and_no_other_service(
    package: str, services: str, unwanted: str
) -> None:
    command = [sys.executable, "-c", SCRIPT, package, services, unwanted]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
