"""Check files of expected numbers: ``python -m tests.golden FILE...``, from the project's root."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.golden.run import failures

SHOWN = 3  # differences of one case


def main(paths: list[str]) -> int:
    """Print a line for each failed case, then how many passed; 1 if any failed."""
    if not paths:
        print("usage: python -m tests.golden FILE...", file=sys.stderr)
        return 2
    passed = failed = 0
    for path in paths:
        for name, wrong in failures(Path(path)):
            passed += not wrong
            failed += bool(wrong)
            if wrong:
                more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
                print(f"{path}: {name}: {'; '.join(wrong[:SHOWN])}{more}")
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
