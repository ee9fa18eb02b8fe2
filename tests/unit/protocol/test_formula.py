"""Formulas: their syntax, their values, and the error where one has no value."""

import pytest
from protocol.formula import FormulaError, read_formula

from tests.tables import table

NUMBERS = {"a": 0.25, "b": 1.0, "é_1": 1.0}


@table(
    """
    formula                   | value
    0.7 * a + 0.3 * b         | 0.475
    max(a, 0.5 * b)           | 0.5
    (a + b) / 2 - -1          | 1.625
    a ^ 2                     | 0.0625
    2 * a ^ 2 + b             | 1.125
    +abs(a - b)               | 0.75
    floor(a) + ceil(a)        | 1.0
    sqrt(a) * exp(0) + log(b) | 0.5
""",
    ("max(\n  2.5e-1 * é_1,\n  .5 + 0. * 1E+2\n)", 0.5),
)
def test_a_formula_has_a_value(formula: str, value: float) -> None:
    assert read_formula(formula).value(NUMBERS) == pytest.approx(value)


@table("""
    formula
    a / 0
    log(0 * a)
    sqrt(-a)
    exp(1000 * b)
    0 ^ -b
    1e9 ^ 30 * 1e9 ^ 30 + a
""")
def test_where_it_has_none_that_is_said(formula: str) -> None:
    with pytest.raises(FormulaError, match="value"):
        read_formula(formula).value(NUMBERS)


@table(
    """
    formula                         | problem
    a if b else b                   | something else
    a.real                          | something else
    True * a                        | something else
    'a'                             | something else
    a % b                           | something else
    a[0]                            | something else
    lambda: a                       | something else
    eval(a)                         | something else
    max(*a)                         | something else
    max(a, key=b)                   | something else
    (max)(a)(b)                     | something else
    __import__('os').system('true') | something else
    max(é1_0, 0x10) * a             | 0x10',
    max(é1_0, 0b1) * a              | 0b1',
    max(é1_0, 0o7) * a              | 0o7',
    max(é1_0, 1_0) * a              | 1_0',
    max(é1_0, 1_0.5) * a            | 1_0.5',
    max(é1_0, 1e0_1) * a            | 1e0_1',
    sqrt(a, b)                      | 2 arguments
    max()                           | 0 arguments
    1e999 * a                       | beyond 1e
    (a + b                          | no formula
                                    | no formula
    """,
    ("-" * 900 + "a", "too deeply"),
    ("a" * 3000, "longer than"),
    ("a\0", "no formula"),
    ("\ud800", "no formula"),
    ("(" * 1000, "no formula"),
)
def test_what_is_no_formula_is_refused(formula: str, problem: str) -> None:
    with pytest.raises(FormulaError, match=problem):
        read_formula(formula)
