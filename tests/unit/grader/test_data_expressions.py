"""Forms that a model might propose, examined where they are examined: in the pool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.grader.data import expressions
from services.grader.data.expressions import NotAllowed
from services.grader.pool import Value
from services.grader.tools import Tools

EXAMINE = "services.grader.data.algebra:examine"


async def examine(tools: Tools, form: str, ask: str, values: dict[str, int], gold: str) -> Any:
    outcome = await tools.pool.run(EXAMINE, form, ask, dict(values), gold, deadline_s=20)
    assert isinstance(outcome, Value)
    return outcome.value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "k.real",
        "k[0]",
        "lambda: k",
        "(k := 3)",
        "k if k else m",
        "k**m",
        "k//m",
        "sin(k)",
        "sqrt",
        "pi(k)",
        "k(m)",
        "2k",
        "K",
        "kk",
        "1.5*k",
        "1e9",
        "0x1f",
        "k2",
        "1_0",
        "9999999999999",
        "k^m",
        "k^99",
        "k^(1/0)",
        "k^0",
        "k,m",
        "",
        "(" * 150 + "k" + ")" * 150,
        "k" + "+k" * 150,
        "k\n+m",
        "sqrt(k, m)",
        "𝐤",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_plain_expression_is_refused(text: str) -> None:
    with pytest.raises(NotAllowed):
        expressions.read(text)


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("(k*sqrt(m))/n", r"\frac{<k> \cdot \sqrt{<m>}}{<n>}"),
        ("k*m^(1/3)", r"<k> \cdot <m>^{\frac{1}{3}}"),
        ("k-(m+n)", r"<k>-\left(<m>+<n>\right)"),
        ("-k*pi^2", r"\left(-<k>\right) \cdot \pi^{2}"),
        ("sqrt(a)+sqrt(b)", r"\sqrt{<a>}+\sqrt{<b>}"),
        ("(k*m)^2", r"\left(<k> \cdot <m>\right)^{2}"),
        ("k+-m", r"<k>+\left(-<m>\right)"),
        ("(a+b)*(c-d)", r"\left(<a>+<b>\right) \cdot \left(<c>-<d>\right)"),
    ],
)
def test_an_expression_is_printed_as_latex(text: str, latex: str) -> None:
    assert expressions.latex(expressions.read(text)) == latex


def test_a_letter_below_two_bars_is_one_denominator() -> None:
    assert expressions.denominators(expressions.read("a/n+b*sqrt(c)/n")) == ["n"]


RIGHT = [
    ("(k*sqrt(m))/n", "k+m+n", {"k": 3, "m": 2, "n": 4}, r"\frac{3\sqrt{2}}{4}", 9),
    ("k*m^(1/3)", "k+m", {"k": 3, "m": 4}, r"3\sqrt[3]{4}", 7),
    ("sqrt(a)+sqrt(b)", "a+b", {"a": 2, "b": 3}, r"\sqrt{2}+\sqrt{3}", 5),
    ("k", "k", {"k": 120}, "5!", 120),
    ("(sqrt(a)-sqrt(b))/c", "a+b+c", {"a": 6, "b": 2, "c": 4}, r"\frac{\sqrt6-\sqrt2}{4}", 12),
    ("(a*m^(1/3))/2", "a+m", {"a": 123, "m": 2}, r"\frac{123\sqrt[3]{2}}{2}", 125),
    ("a+b*sqrt(c)", "a*b*c", {"a": 1, "b": 1, "c": 2}, r"\sqrt{3+2\sqrt{2}}", 2),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("form", "ask", "values", "gold", "integer"), RIGHT)
async def test_a_right_and_unique_form_is_accepted(
    form: str, ask: str, values: dict[str, int], gold: str, integer: int, tools: Tools
) -> None:
    examined = await examine(tools, form, ask, values, gold)
    assert examined.get("integer") == integer, examined


REFUSED = [
    (
        "(k*sqrt(m))/n",
        "k+m+n",
        {"k": 3, "m": 3, "n": 4},
        r"\frac{3\sqrt{2}}{4}",
        "is not the answer",
    ),
    ("(k*sqrt(m))/n", "k+m+n", {"k": 6, "m": 2, "n": 8}, r"\frac{3\sqrt{2}}{4}", "lowest terms"),
    ("(k*sqrt(m))/n", "k+m+n", {"k": 1, "m": 18, "n": 4}, r"\frac{3\sqrt{2}}{4}", "reduced roots"),
    ("m/n", "m+n", {"m": -1, "n": -2}, r"\frac{1}{2}", "lowest terms"),
    ("a*b", "a+b", {"a": 2, "b": 3}, "6", "not unique"),
    ("a+b", "a", {"a": 2, "b": 3}, "5", "not unique"),
    ("a*sqrt(b)*sqrt(c)", "a+b+c", {"a": 1, "b": 2, "c": 3}, r"\sqrt{6}", "not unique"),
    ("a/b+c*sqrt(d)", "a+b+c+d", {"a": 1, "b": 2, "c": 1, "d": 3}, r"\frac12+\sqrt3", "not unique"),
    ("m/n", "m/n", {"m": 1, "n": 2}, r"\frac{1}{2}", "no integer"),
    ("m/n", "m+k", {"m": 1, "n": 2}, r"\frac{1}{2}", "same letters"),
    ("m/n", "7", {"m": 1, "n": 2}, r"\frac{1}{2}", "names no letter"),
    ("m/n", "m+n", {"m": 665857, "n": 470832}, r"\sqrt{2}", "is not the answer"),
    ("m/n", "m+n", {"m": 1, "n": 2}, "x", "no number"),
    ("m/(m-m)", "m", {"m": 1}, "1", "division by 0"),
    (
        "(a+100*b)*m^(1/3)",
        "a+b+m",
        {"a": 23, "b": 1, "m": 2},
        r"123\sqrt[3]{2}",
        "100 in the form",
    ),
    ("(a+b/13)*m^(1/3)", "a+b+m", {"a": 1, "b": 13, "m": 2}, r"2\sqrt[3]{2}", "13 in the form"),
    ("1/n", "n", {"n": 2}, r"\frac{1}{2}", "1 in the form"),
    ("a*m^(1/3)+(b-b)", "a+m", {"a": 3, "m": 4, "b": 7}, r"3\sqrt[3]{4}", "not depend on b"),
    ("a*m^(1/3)*b/b", "a+m", {"a": 3, "m": 4, "b": 7}, r"3\sqrt[3]{4}", "not depend on b"),
    ("a+b*b+m^(1/3)", "a", {"a": 90, "b": 97, "m": 2}, r"9499+\sqrt[3]{2}", "not unique"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("form", "ask", "values", "gold", "why"), REFUSED)
async def test_a_wrong_or_ambiguous_form_is_refused(
    form: str, ask: str, values: dict[str, int], gold: str, why: str, tools: Tools
) -> None:
    examined = await examine(tools, form, ask, values, gold)
    assert why in examined.get("refused", ""), examined


@pytest.mark.anyio
async def test_another_way_is_found_far_from_zero(tools: Tools) -> None:
    """``m^5`` makes large steps: 3^5 + 1441 is 5^5 - 1441, but no small integers collide."""
    examined = await examine(tools, "sqrt(m)^10+a", "m+a", {"m": 3, "a": 1441}, "1684")
    assert "not unique" in examined.get("refused", ""), examined
    examined = await examine(tools, "sqrt(m)^10+a", "m+a", {"m": 3, "a": 4}, "247")
    assert examined.get("integer") == 7


@pytest.mark.anyio
async def test_no_form_takes_longer_to_examine_than_its_deadline(tools: Tools) -> None:
    six = "+".join(f"{letter}*sqrt({root})" for letter, root in zip("abc", "xyz", strict=True))
    values = {"a": 1, "b": 1, "c": 1, "x": 2, "y": 3, "z": 5}
    gold = r"\sqrt{2}+\sqrt{3}+\sqrt{5}"
    call = tools.pool.run(EXAMINE, six, "a+x+b+y+c+z", dict(values), gold, deadline_s=5)
    async with asyncio.timeout(60):
        await call
