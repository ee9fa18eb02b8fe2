"""Commas of thousands and commas of lists."""

from __future__ import annotations

import pytest

from services.grader.answers.thousands import joined


@pytest.mark.parametrize(
    ("latex", "without_commas"),
    [
        (r"1,234\pi", r"1234\pi"),
        ("x=12,345,678", "x=12345678"),
        ("1,250, 2,500", "1250, 2500"),
        ("(1,250, 2,500)", "(1250, 2500)"),
        ("(1,000)", "(1000)"),
        (r"\frac{1,250}{3}", r"\frac{1250}{3}"),
        ("(100,200)", "(100,200)"),
        (r"\{100,200\}", r"\{100,200\}"),
        ("5,100,20", "5,100,20"),
        ("0,100", "0,100"),
        ("0.5,100", "0.5,100"),
        ("x^2,100", "x^2,100"),
        ("1,5, 100,200", "1,5, 100,200"),
        ("1,0000", "1,0000"),
    ],
)
def test_commas_of_thousands_are_left_out(latex: str, without_commas: str) -> None:
    assert joined(latex) == without_commas
