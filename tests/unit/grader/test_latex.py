"""Reading answers as text."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.grader.latex import (
    Number,
    last_boxed,
    parse_number,
    squeezed,
    tidy,
    trailing_unit,
    unwrapped,
    words,
)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{41} no, \boxed{42}", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{1} \fbox{2}", "2"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{\text{a } b}", r"\text{a } b"),
        ("\\boxed{\n5\n}", "\n5\n"),
        (r"\boxed{}", ""),
        (r"\boxed{5} and \boxed{6", "5"),
        (r"{ \boxed{5}", "5"),
        (r"} \boxed{5}", "5"),
        (r"\boxed{5", None),
        (r"\boxed 5", None),
        ("5", None),
        ("", None),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"<think>\boxed{1}</think> two", None),
        (r"\boxed{1} and more thought", "1"),
        (r"a \\ boxed{5}", None),
        (r"\boxed{5\\}", r"5\\"),
    ],
)
def test_the_last_complete_box_counts(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("content", "inner"),
    [
        ("5", "5"),
        (r"\boxed{5}", "5"),
        (r"\boxed{\fbox{\boxed{x}}}", "x"),
        (r"\boxed{5} + \boxed{6}", r"\boxed{5} + \boxed{6}"),
        (r"\frac{\boxed{5}}{2}", r"\frac{\boxed{5}}{2}"),
    ],
)
def test_a_box_around_everything_is_taken_off(content: str, inner: str) -> None:
    assert unwrapped(content) == inner


balanced = st.recursive(
    st.text(st.characters(exclude_characters="\\{}"), max_size=8),
    lambda inner: st.one_of(
        inner.map(lambda content: "{" + content + "}"),
        inner.map(lambda content: r"\{" + content),
        inner.map(lambda content: content + r"\}"),
        st.lists(inner, max_size=3).map("".join),
    ),
    max_leaves=12,
).filter(lambda content: "</think>" not in content)


@given(balanced, st.text(st.characters(exclude_characters="\\{}<"), max_size=30))
def test_any_balanced_content_is_found_whole(content: str, after: str) -> None:
    assert last_boxed(rf"So \boxed{{{content}}}{after}") == content


@given(st.text(r"\boxed{} fx", max_size=200))
def test_a_found_box_stands_in_the_text(text: str) -> None:
    content = last_boxed(text)
    assert content is None or "{" + content + "}" in text


@given(st.text(r"\boxed{}(),.$%~−^", max_size=60))
def test_tidying_twice_changes_no_more_than_the_spelling(text: str) -> None:
    assert isinstance(squeezed(tidy(text)), str)


@pytest.mark.parametrize(
    "hostile", [r"\boxed{", "{", "}", r"\boxed{}", "\\", r"\boxed ", "</think>"]
)
def test_long_texts_of_anything_take_a_moment(hostile: str) -> None:
    started = time.monotonic()
    last_boxed((hostile * 300_000)[:300_000])
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("latex", "tidied"),
    [
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"( 3, \frac{\pi}{2} )"),
        (r"\leftarrow", r"\leftarrow"),
        (r"\mathrm{e}", "e"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        (r"10{,}000", "10,000"),
        (r"10,\!000", "10,000"),
        (r"1\,000", "1000"),
        (r"\$5", "5"),
        (r"$x$", "x"),
        (r"\(x\)", "x"),
        ("−3", "-3"),
        ("  5 . ", "5"),
        (r"42\%", "42%"),
    ],
)
def test_tidying_leaves_the_mathematics(latex: str, tidied: str) -> None:
    assert tidy(latex) == tidied


@pytest.mark.parametrize(
    ("latex", "number"),
    [
        ("42", Number(Fraction(42))),
        ("-42", Number(Fraction(-42))),
        ("+42", Number(Fraction(42))),
        ("007", Number(Fraction(7))),
        ("1,234,567", Number(Fraction(1234567))),
        ("3.50", Number(Fraction(7, 2), places=2)),
        (".5", Number(Fraction(1, 2), places=1)),
        ("5.", Number(Fraction(5), places=0)),
        ("3/4", Number(Fraction(3, 4))),
        (r"\frac{3}{4}", Number(Fraction(3, 4))),
        (r"-\frac{3}{4}", Number(Fraction(-3, 4))),
        (r"\frac{-3}{4}", Number(Fraction(-3, 4))),
        (r"\frac34", Number(Fraction(3, 4))),
        ("42%", Number(Fraction(42, 100), is_percentage=True)),
        ("4.5%", Number(Fraction(45, 1000), places=3, is_percentage=True)),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        ("1,23", None),
        ("1 2", None),
        ("1e5", None),
        ("x", None),
        ("", None),
        (".", None),
        ("-", None),
        ("%", None),
        ("1.2.3", None),
        ("٣", None),
    ],
)
def test_a_plain_number_is_read_exactly(latex: str, number: Number | None) -> None:
    assert parse_number(latex) == number


@given(st.integers(), st.integers(min_value=1))
def test_every_fraction_is_read_back(top: int, bottom: int) -> None:
    for latex in (f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}"):
        number = parse_number(latex)
        assert number is not None
        assert number.value == Fraction(top, bottom)


@pytest.mark.parametrize(
    ("latex", "plain"),
    [
        (r"\text{East}", "east"),
        (r"\text{(C)}", "c"),
        ("(C)", "c"),
        ("C", "c"),
        ("yes", "yes"),
        ("No", "no"),
        ("even", "even"),
        (r"\text{June 20}", "june 20"),
        ("x", None),
        ("ab", None),
        ("p - q", None),
        (r"\text{2}", None),
        (r"\sqrt{2}", None),
        (r"5 \text{ cm}", None),
        ("sinx", "sinx"),
        ("42", None),
    ],
)
def test_words_are_told_from_mathematics(latex: str, plain: str | None) -> None:
    assert words(latex) == plain


@pytest.mark.parametrize(
    ("latex", "unit"),
    [
        (r"5\text{ cm}", "cm"),
        (r"5 \text{ cm}^2", "cm2"),
        (r"5.4 \text{ cents}", "cent"),
        (r"\text{cm}", None),
        ("5", None),
        (r"5\text{ or }6", None),
    ],
)
def test_a_unit_stands_behind_its_quantity(latex: str, unit: str | None) -> None:
    assert trailing_unit(latex) == unit
