"""``make benchmarks``: runs the benchmarks of speed, and writes `docs/performance.md`.

``python -m benchmarks exchange overlap`` runs only these, and keeps the other tables of the
document. Each benchmark is a command of its own, too.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/performance.md"
NAMES = ("exchange", "publish", "beside", "overlap", "pipeline", "end_to_end")
_HEAD = """# Performance

Measurements of `make benchmarks`, each section with its machine and date, with the packages of
`deploy/constraints.txt`. Whole stacks need an idle machine.
"""


def main(names: list[str]) -> int:
    """Run benchmarks, write their tables, and return the number of failures."""
    if unknown := set(names) - set(NAMES):
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
        return 2
    sections = _sections()
    failed = 0
    for name in names or NAMES:
        print(f"{name} ...", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print(ended.stdout, flush=True)
        if ended.returncode:
            failed += 1
        else:
            sections[name] = _section(name, ended.stdout)
            _write(sections)
    return failed


def _sections() -> dict[str, str]:
    """Return the document's present section of each benchmark."""
    text = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    parts = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _section(name: str, tables: str) -> str:
    about = (import_module(f"benchmarks.{name}").__doc__ or "").strip().replace("``", "`")
    return f"\n{about}\n\n{tables.strip()}\n\n{_machine()}\n\n"


def _machine() -> str:
    cpus = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", cpus)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[2]
    return (
        f"{datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores of "
        f"{model.group(1) if model else platform.processor()}, {memory:.0f} GiB, load {load:.1f}"
    )


def _write(sections: dict[str, str]) -> None:
    DOCUMENT.parent.mkdir(exist_ok=True)
    names = [name for name in NAMES if name in sections]
    names += [name for name in sections if name not in names]  # written by hand
    parts = [f"## {name}\n{sections[name]}" for name in names]
    DOCUMENT.write_text("\n".join([_HEAD, *(part.rstrip() + "\n" for part in parts)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
