"""``python -m deploy.grafana`` writes the dashboards; with ``--check`` it says what differs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.dashboards import flow, grading, hardware, jobs, learning, rollout

FOLDER = Path(__file__).parent / "generated"
_MODULES = (jobs, learning, flow, rollout, grading, hardware)


def generated() -> dict[Path, str]:
    """The text of every file."""
    return {
        FOLDER / f"{module.__name__.rpartition('.')[2]}.json": _text(module.BOARD)
        for module in _MODULES
    }


def main(arguments: Sequence[str]) -> int:
    """Write the files, or compare them; returns the exit status."""
    wanted = generated()
    there = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    if list(arguments) == ["--check"]:
        differ = sorted(p.name for p in {*wanted, *there} if wanted.get(p) != there.get(p))
        if differ:
            print(f"{', '.join(differ)}: not what the code says; run python -m deploy.grafana")
        return bool(differ)
    FOLDER.mkdir(exist_ok=True)
    for path in there.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


def _text(board: object) -> str:
    return json.dumps(board, cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
