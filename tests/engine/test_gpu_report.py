"""The page that one GPU fills in half an hour, rehearsed: rows of what was and was not measured."""

import math
from pathlib import Path

import pytest

from tests.gpu import report
from tests.gpu.report import Figure, Part, Result

pytestmark = pytest.mark.engine
FIGURES = [
    Figure("step", 1234.5, "s"),
    Figure("gap", 0.03, most=0.02, source="rounding"),
    Figure("peak", 66.0, "GiB", 60, 70, "the plan"),
    Figure("MFU", math.nan, least=0.14),
]


def rows(page: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_page_says_what_was_expected_and_which_part_failed() -> None:
    results = [Result("good", 3, FIGURES), Result("bad", 0, [], "OutOfMemoryError: a\n | b")]
    assert rows(report.page("# GPU", results)) == [
        ["good (3 s)", "step", "1,234 s", "", "", ""],
        ["", "gap", "0.03", "≤ 0.02", "**no**", "rounding"],
        ["", "peak", "66 GiB", "60 to 70", "yes", "the plan"],
        ["", "MFU", "unknown", "≥ 0.14", "", ""],
        ["bad (0 s)", "failed", "OutOfMemoryError: a ¦ b", "", "**no**", ""],
    ]


def test_parts_that_fail_are_rows_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = next(part for part in report.PARTS if part.name.startswith("attention"))
    parts = [Part("late", "memory", {}, limit_s=0.01), attention]
    monkeypatch.setattr(report, "REHEARSES", True)
    monkeypatch.setattr(report, "PARTS", parts)
    monkeypatch.setattr(report, "PAGE", tmp_path / "page.md")
    assert report.main([]) == 1
    failed, gap, *_ = rows((tmp_path / "page.md").read_text())
    assert failed[1:3] == ["failed", "no result within 0 s"]
    assert gap[3:5] == ["≤ 0.02", "yes"]
