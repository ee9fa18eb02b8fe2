"""Measure process scores against labels: ``python -m benchmarks.process_labels FILE...``.

A line of a file is ``{"problem", "solution", "answer", "response", "good"}``, and ``good`` says
whether the response's steps hold. A line of JSON for each file compares `equation_steps` with the
baseline "the shorter of two responses is better". An ungradable response counts as 0.5 in an AUC.
"""

from __future__ import annotations

import asyncio
import json
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol.rewards import Check

from services.grader.offline.calibration import Labelled, agreement, score_cases
from services.grader.tools import Settings, Tools
from services.grader.worker import open_tools

_CHECK = Check(verifier="equation_steps")


def main() -> None:
    for line in asyncio.run(measure(sys.argv[1:])):
        print(json.dumps(line))


async def measure(files: Sequence[str]) -> list[dict[str, Any]]:
    async with open_tools(Settings.from_environment({}), {}) as tools:
        return [{"file": file, **await agreement_with_labels(Path(file), tools)} for file in files]


async def agreement_with_labels(file: Path, tools: Tools) -> dict[str, Any]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    labelled = [
        Labelled(
            id=str(number),
            kind="response",
            outcome=True,
            process=float(row["good"]),
            **{name: row[name] for name in ("problem", "solution", "answer", "response")},
        )
        for number, row in enumerate(rows)
    ]
    cases = await score_cases(_CHECK, "process", labelled, tools)
    labels = [bool(row["good"]) for row in rows]
    scores = [0.5 if case.score is None else case.score for case in cases]
    return {
        **agreement(cases),
        "good": sum(labels),
        "auc": auc(labels, scores),
        "auc_shorter": auc(labels, [-len(row["response"]) for row in rows]),
        "good_worth_1": sum(
            is_good and score == 1 for is_good, score in zip(labels, scores, strict=True)
        ),
    }


def auc(labels: Sequence[bool], scores: Sequence[float]) -> float | None:
    """The chance that a good response scores above a bad one; ties count half."""
    bad = sorted(score for label, score in zip(labels, scores, strict=True) if not label)
    good = [score for label, score in zip(labels, scores, strict=True) if label]
    if not good or not bad:
        return None
    wins = sum(bisect_left(bad, score) + bisect_right(bad, score) for score in good)
    return round(wins / (2 * len(good) * len(bad)), 3)


if __name__ == "__main__":
    main()
