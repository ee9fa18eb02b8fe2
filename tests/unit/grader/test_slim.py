"""The grader and `weir data` start without computer algebra, and without a library of datasets."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
sys.path[:0] = ["proto", "."]
import services.data.__main__, services.grader.offline.__main__, services.grader.worker
loaded = {"sympy", "math_verify", "datasets", "pyarrow", "pandas"} & set(sys.modules)
sys.exit(f"loaded: {loaded}" if loaded else 0)
"""


def test_what_only_workers_and_imports_need_is_not_loaded() -> None:
    finished = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
