"""Relations as they are written in solutions, with the verdict by hand."""

from __future__ import annotations

import json

import pytest

from tests.architecture.project import ROOT
from tests.unit.grader.steps.found import judge


def verdicts(text: str) -> list[str]:
    return [each.verdict for each in judge(text, 1_000)]


ROWS = [
    (row["text"], row["verdicts"])
    for row in map(json.loads, (ROOT / "tests/golden/steps.jsonl").read_text("utf-8").splitlines())
]


@pytest.mark.parametrize(("text", "expected"), ROWS)
def test_every_relation_that_is_not_in_doubt_has_its_own_verdict(
    text: str, expected: list[str] | None
) -> None:
    """None: it says nothing or cannot be told, so that nothing in it is right or wrong."""
    found = verdicts(text)
    if expected is None:
        assert not {"right", "wrong"} & set(found)
    else:
        assert found == expected


@pytest.mark.parametrize(
    "again", ["2 + 2 = 4", "2+2=4.0", "4=2+2", "$(2)+2=4$", "02+2=4", "- 2+2=4", r"$2+2=\boxed{4}$"]
)
def test_one_step_has_one_identity_however_it_is_written(again: str) -> None:
    assert judge("2+2=4", 9)[0].identity == judge(again, 9)[0].identity


def test_different_steps_have_different_identities() -> None:
    steps = ["2+2=4", "2*2=4", "2+2<5", "2+2≠5", "17 ≡ 2 (mod 5)", "17 ≡ 2 (mod 3)", "3-1=2"]
    assert len({judge(step, 9)[0].identity for step in steps}) == len(steps)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("47 + 8 = 56", "left 55, right 56"),
        (r"$\frac{1}{3} + 1 < 1.25$", "left 1.333333333, right 1.25"),
        (r"$10^{180} + 1 = 10^{180} + 2$", ""),
        (r"$17 \equiv 3 \pmod{5}$", ""),
        ("47 + 8 = 55", ""),
    ],
)
def test_a_wrong_step_is_noted_with_its_values(text: str, note: str) -> None:
    assert [each.note for each in judge(text, 9)] == [note]


def test_no_more_relations_are_judged_than_asked_for() -> None:
    assert len(judge("1+1=2; " * 50, 20)) == 20
