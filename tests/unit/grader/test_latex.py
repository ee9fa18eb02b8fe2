"""Reading answers as text."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.grader.answers.numerals import Number, Numeral, parse_number, parse_numeral
from services.grader.answers.quantities import split_quantity
from services.grader.answers.units import ANY, measure_of
from services.grader.answers.wording import Choice, parse_choice, parse_choices, words
from services.grader.latex import last_boxed, squeezed, tidy, unwrapped


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
        (r"\boxed 5", "5"),
        (r"\boxed5", "5"),
        (r"\boxed x$", "x"),
        (r"\boxed 42", None),
        (r"\boxed 5x", None),
        (r"\boxedx", None),
        (r"\boxed{1} then \boxed 2.", "2"),
        ("5", None),
        ("", None),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"<think>\boxed{1}</think> two", None),
        (r"opened by the prompt: \boxed{1}</think> \boxed{2}", "2"),
        (r"opened by the prompt: \boxed{1}</think> two", None),
        (r"<think>\boxed{1} and more thought", None),
        (r"<think>a</think> So <think>\boxed{1}", None),
        (r"\boxed{1} <think>or not", None),
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
).filter(lambda content: "think>" not in content)


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
        (r"\mathrm{cm}", r"\text{cm}"),
        (r"\sin 15^{\circ}", r"\sin 15^\circ"),
        ("90°", r"90^\circ"),
        (r"10{,}000", "10000"),
        (r"10,\!000", "10000"),
        (r"11,\! 111,\! 100", "11111100"),
        (r"1\,000", "1000"),
        (r"3{,}14", "3{,}14"),
        (r"\$5", r"\$5"),
        (r"\tfrac12", r"\frac{1}{2}"),
        (r"\frac9{19}", r"\frac{9}{19}"),
        (r"\frac{\pi}2", r"\frac{\pi}{2}"),
        ("2√3", r"2\sqrt{3}"),
        ("sqrt(2)/2", r"\sqrt{2}/2"),
        (r"x\leqslant\dfrac 1 2", r"x\le\frac{1}{2}"),
        ("½", r"\frac{1}{2}"),
        ("5\u200b", "5"),
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
        ("1 4/5", Number(Fraction(9, 5))),
        (r"1\frac{4}{5}", Number(Fraction(9, 5))),
        (r"-1 \frac{4}{5}", Number(Fraction(-9, 5))),
        (r"0.\overline{3}", Number(Fraction(1, 3))),
        (r"0.1\bar{6}", Number(Fraction(1, 6))),
        ("10 000", Number(Fraction(10000))),
        ("42%", Number(Fraction(42, 100), is_percentage=True)),
        ("4.5%", Number(Fraction(45, 1000), places=3, is_percentage=True)),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        ("1,23", None),
        ("1 2", None),
        ("1 5/4", None),
        (r"2\frac{3}{2}", None),
        ("1.234,5", None),
        ("9" * 5000, None),
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
    ("latex", "numeral"),
    [
        ("204_5", Numeral("204", 5)),
        ("4210_{5}", Numeral("4210", 5)),
        (r"1011_{\text{two}}", Numeral("1011", 2)),
        ("2A_{16}", Numeral("2A", 16)),
        ("007_8", Numeral("7", 8)),
        ("204", None),
        ("x_5", None),
        ("204_b", None),
    ],
)
def test_a_numeral_names_its_base(latex: str, numeral: Numeral | None) -> None:
    assert parse_numeral(latex) == numeral


@pytest.mark.parametrize(
    ("latex", "plain"),
    [
        (r"\text{East}", "east"),
        ("yes", "yes"),
        ("No", "no"),
        ("even", "even"),
        ("an ellipse", "ellipse"),
        (r"\text{June 20}", "june 20"),
        (r"\text{June }20", "june 20"),
        ("Évelyne", "évelyne"),
        ("x", None),
        ("ab", None),
        ("C", None),
        ("p - q", None),
        (r"\text{2}", None),
        (r"\sqrt{2}", None),
        (r"1 \text{ or } 2", None),
        ("sinx", "sinx"),
        ("42", None),
    ],
)
def test_words_are_told_from_mathematics(latex: str, plain: str | None) -> None:
    assert words(latex) == plain


@pytest.mark.parametrize(
    ("latex", "choice"),
    [
        ("B", Choice("B")),
        ("(B)", Choice("B")),
        (r"\text{(B)}", Choice("B")),
        (r"\text{Option B}", Choice("B")),
        (r"\text{B) } 12", Choice("B", "12")),
        ("B. 12", Choice("B", "12")),
        ("b", None),
        ("BC", None),
        ("(B)+1", None),
        ("A(x+1)", None),
        ("A) 1 B) 2", None),
        ("12", None),
        (r"\text{The answer is B.}", Choice("B")),
        (r"\text{(B) Vitamin C}", Choice("B", "Vitamin C")),
        ("(B) or 12", None),
        ("(B), C", None),
        ("(B) 12 or C", None),
        ("B. 12 C. 13", None),
    ],
)
def test_a_choice_is_a_letter_that_stands_apart(latex: str, choice: Choice | None) -> None:
    assert parse_choice(latex) == choice


@pytest.mark.parametrize(
    ("latex", "letters"),
    [
        ("ABD", "ABD"),
        ("A, B, D", "ABD"),
        ("(A), (B) & (D)", "ABD"),
        (r"\text{A, B, and D}", "ABD"),
        ("A", None),
        ("BA", None),
        ("AAB", None),
        ("(A,B)", None),
        ("A or B", None),
        ("ABX", None),
    ],
)
def test_several_choices_are_letters_in_order(latex: str, letters: str | None) -> None:
    assert parse_choices(latex) == letters


@pytest.mark.parametrize(
    ("latex", "head", "unit"),
    [
        (r"5\text{ cm}", "5", "cm"),
        (r"5\text{ cm}", "5", "centimeters"),
        (r"5 \text{ cm}^2", "5", "square cm"),
        ("5 inches", "5", "in"),
        (r"5.4 \text{ cents}", "5.4", "cents"),
        (r"\$5.40", "5.40", "dollars"),
        (r"90^\circ", "90", "degrees"),
        (r"\frac{1}{2}\text{ mph}", r"\frac{1}{2}", "miles per hour"),
        (r"5\text{ cm^2}", "5", "square cm"),
        ("5 cm^2", "5", "square cm"),
        (r"9.8\text{ m/s}^2", "9.8", "meters per s²"),
        (r"5\text{ N}", "5", "newtons"),
        (r"5\text{ people}", "5", "ways"),
    ],
)
def test_a_unit_is_what_it_measures(latex: str, head: str, unit: str) -> None:
    quantity = split_quantity(latex)
    assert (quantity.head, quantity.measure) == (head, measure_of(unit))


@pytest.mark.parametrize(
    "latex",
    [
        r"\text{cm}",
        "5",
        r"7\text{ squared}",
        r"12\text{ factorial}",
        r"5\text{ million}",
        r"1011\text{ base two}",
        r"5\text{ or }6",
        r"\sin 15^\circ",
        "2ab",
        "5N",
        "5 m^2",
        "9^2",
        r"5\text{ K}",
        r"5\text{ cm}^4",
        r"5\text{ widgetoids}",
    ],
)
def test_what_is_not_surely_a_unit_stays(latex: str) -> None:
    assert split_quantity(latex).head == latex


def test_the_author_of_a_gold_answer_may_count_anything_but_in_millions() -> None:
    assert split_quantity(r"5\text{ widgetoids}", trusted=True).measure == ANY
    for words_of_value in ("million", "factorial", "squared", "base two", "tenths"):
        assert split_quantity(rf"5\text{{ {words_of_value}}}", trusted=True).measure is None
