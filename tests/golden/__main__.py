"""Check files of expected numbers: ``python -m tests.golden FILE...``, from the project's root."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.golden.run import CasesError, failures

SHOWN = 3  # differences of one case
USAGE = "usage: python -m tests.golden FILE..."


def main(paths: list[str]) -> int:
    """Print a line for each failed case, then how many passed; 1 if any failed, 2 if none ran."""
    if not paths or {"-h", "--help"} & set(paths):
        print(USAGE, file=sys.stdout if paths else sys.stderr)
        return 0 if paths else 2
    passed = failed = 0
    try:
        for path in paths:
            for name, wrong in failures(Path(path)):
                passed += not wrong
                failed += bool(wrong)
                _show(path, name, wrong)
    except CasesError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


def _show(path: str, name: str, wrong: list[str]) -> None:
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        print(f"{path}: {name}: {'; '.join(wrong[:SHOWN])}{more}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
