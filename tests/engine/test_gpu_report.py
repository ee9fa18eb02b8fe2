"""The page that one GPU fills in half an hour has rows of measurements and of failures."""

import math

import pytest

from tests.gpu import report
from tests.gpu.report import Figure, Result

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
