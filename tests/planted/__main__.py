"""Plant faults in the product, one at a time, and see whether the tests notice.

    python -m tests.planted                   all faults
    python -m tests.planted gateway sign      the faults of gateway.toml, and of "sign"

A fault is a row of a TOML file of this folder: ``name``, the ``file`` it is in, the text ``old``
that becomes ``new``, and the ``tests`` (arguments of pytest) that have to fail. ``old`` must stand
in the file exactly once. The faults are planted in a copy of the tree.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.processes import MARK, kill_marked

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
_LIMIT_S = 900.0  # a suite that takes longer hangs, which is noticed too


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    old: str
    new: str
    tests: str

    def plant(self, tree: Path) -> None:
        path = tree / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.name!r}: `old` is {text.count(self.old)} times in {self.file}")
        path.write_text(text.replace(self.old, self.new))


def read_faults(wanted: list[str]) -> list[Fault]:
    """Those of the wanted files, or with one of the wanted words in their names; else all."""
    return [
        fault
        for path in sorted(HERE.glob("*.toml"))
        for row in tomllib.loads(path.read_text())["fault"]
        if (fault := Fault(**row))
        and (not wanted or path.stem in wanted or any(word in fault.name for word in wanted))
    ]


def copy_tree(tree: Path) -> None:
    files = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    listed = subprocess.check_output(files, cwd=ROOT, text=True).splitlines()
    there = [name for name in listed if (ROOT / name).is_file()]
    packed = subprocess.check_output(["tar", "c", *there], cwd=ROOT)
    subprocess.run(["tar", "x"], cwd=tree, input=packed, check=True)


def run_tests(tree: Path, tests: str) -> str:
    """What noticed: the first test that failed, or "" if none did."""
    path = os.pathsep.join(str(tree / folder) for folder in ("proto", ".", "packages/answers/src"))
    mark = f"{os.environ.get(MARK, '')}/planted-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()],
        cwd=tree,
        # Bytecode of a fault must not outlive it.
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return "it hangs"
    finally:
        kill_marked(mark)
    if process.returncode > 2:
        raise SystemExit(f"pytest {tests}: exit {process.returncode}\n{output[-2000:]}")
    noticed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return "".join(noticed[:1])[:160] or "it does not start" * bool(process.returncode)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("wanted", nargs="*")
    options = parser.parse_args()
    missed = 0
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        for fault in read_faults(options.wanted):
            original = (tree / fault.file).read_bytes()
            fault.plant(tree)
            began = time.monotonic()
            noticed = run_tests(tree, fault.tests)
            (tree / fault.file).write_bytes(original)
            missed += not noticed
            took = f"{time.monotonic() - began:4.0f} s"
            print(f"{fault.name:60} {took}  {noticed or 'MISSED'}", flush=True)
    print(f"{missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
