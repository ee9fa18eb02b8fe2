"""Which formulas of ``calculate_output`` are weighted means, and what is said of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.openai.weighted_mean import NoWeightedMean, weights_of


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
    assert weights_of(formula, ["a", "b"]) == pytest.approx(dict(zip("ab", weights, strict=True)))


@pytest.mark.parametrize(
    ("formula", "problem"),
    [
        ("a + b", "add up to 2, not to 1"),
        ("0.6 * a + 0.3 * b", "add up to 0.9, not to 1"),
        ("2 * a - b", "weight of 'b' is -1"),
        ("a + 0 * b", "weight of 'b' is 0"),
        ("a", "'b' is not used"),
        ("(a + b + c) / 3", "'c' is none of the graders: a, b"),
        ("(a + b) / 2 + 0.1", "adds the number 0.1"),
        ("a * b", "multiplied or divided by a number"),
        ("1 / a", "multiplied or divided by a number"),
        ("(a + b) / 0", "multiplied or divided by a number"),
        ("(a + b) ** 1", "multiplied or divided by a number"),
        ("max(a, b)", "may hold names of graders"),
        ("a if b else b", "may hold names of graders"),
        ("a.real", "may hold names of graders"),
        ("True * a", "may hold names of graders"),
        ("'a'", "may hold names of graders"),
        ("not " * 400 + "a", "may hold names of graders"),
        ("__import__('os').system('true')", "may hold names of graders"),
        ("1e999 * a", "a number beyond 1e+09"),
        ("9" * 400 + " * a", "a number beyond 1e+09"),
        ("-" * 900 + "a", "nested too deeply"),
        ("a + " * 300 + "b", "nested too deeply"),
        ("a" * 3000, "longer than 2000 characters"),
        ("(a + b", "is no formula"),
        ("a\0", "is no formula"),
        ("\ud800", "is no formula"),
        ("", "is no formula"),
        ("a; b", "is no formula"),
    ],
)
def test_what_is_no_weighted_mean_is_refused(formula: str, problem: str) -> None:
    with pytest.raises(NoWeightedMean) as caught:
        weights_of(formula, ["a", "b"])
    assert problem in str(caught.value)


@given(st.text(alphabet="ab01.+-*/() ,=[]:_\n", max_size=60))
def test_no_text_does_more_than_be_refused(formula: str) -> None:
    try:
        weights = weights_of(formula, ["a", "b"])
    except NoWeightedMean:
        return
    assert sum(weights.values()) == pytest.approx(1)
