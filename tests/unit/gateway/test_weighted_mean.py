"""Which formulas of ``calculate_output`` are weighted means."""

from __future__ import annotations

import pytest
from protocol.formula import read_formula

from services.gateway.openai.weighted_mean import weights_of


@pytest.mark.parametrize(
    ("formula", "weights"),
    [
        ("0.7 * a + 0.3 * b", (0.7, 0.3)),
        ("a * 0.7 + b * 0.3", (0.7, 0.3)),
        ("(a + b) / 2", (0.5, 0.5)),
        ("a / 4 + 3 * b / 4", (0.25, 0.75)),
        ("0.5 * (a + b)", (0.5, 0.5)),
        (" -(-a - b) * 0.5 ", (0.5, 0.5)),
        ("(a + 2 * b + a) / 4", (0.5, 0.5)),
        ("a + 0.5 * (b - a)", (0.5, 0.5)),
        ("1 - 1 + (a + b) * (1 / 2)", (0.5, 0.5)),
    ],
)
def test_a_weighted_mean_is_read_however_it_is_written(
    formula: str, weights: tuple[float, float]
) -> None:
    assert weights_of(read_formula(formula), ["a", "b"]) == pytest.approx(
        dict(zip("ab", weights, strict=True))
    )


@pytest.mark.parametrize(
    "formula",
    [
        "a + b",
        "0.6 * a + 0.3 * b",
        "2 * a - b",
        "a + 0 * b",
        "a",
        "(a + b + c) / 3",
        "(a + b) / 2 + 0.1",
        "a * b",
        "1 / a",
        "(a + b) / 0",
        "(a + b) ^ 1",
        "max(a, b)",
        f"{34 * '1e9 * '}100 * a + {34 * '1e9 * '}100 * b",  # each finite, and not their sum
    ],
)
def test_no_other_formula_is_taken_for_one(formula: str) -> None:
    assert weights_of(read_formula(formula), ["a", "b"]) is None
