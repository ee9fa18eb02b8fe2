"""Relations as they are written in solutions: the verdict by hand, and no text holds up the judge.

Whatever is true is right however it is printed.
"""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from answers.steps import UNREAD, Step
from answers.steps.derivation import derive
from answers.steps.relations import find_relations
from hypothesis import given, settings
from hypothesis import strategies as st

CountCalls = Callable[[Callable[[], object]], int]
TABLE = Path(__file__).with_name("golden") / "steps.jsonl"


def judge(text: str, max_steps: int = 1_000) -> list[Step]:
    """The steps of a text that have a verdict."""
    return [step for step in derive(text, "", "", "", max_steps).steps if step.verdict != UNREAD]


def verdicts(text: str) -> list[str]:
    return [step.verdict for step in judge(text)]


ROWS = [
    (row["text"], row["verdicts"]) for row in map(json.loads, TABLE.read_text("utf-8").splitlines())
]


@pytest.mark.parametrize(("text", "expected"), ROWS)
def test_every_relation_that_is_not_in_doubt_has_its_own_verdict(
    text: str, expected: list[str] | None
) -> None:
    """None: it says nothing or cannot be told, so that nothing in it is right or wrong."""
    if expected is None:
        assert set(verdicts(text)) <= {"open"}
    else:
        assert verdicts(text) == expected


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
    assert [step.note for step in judge(text, 9)] == [note]


def test_the_number_of_judged_relations_is_limited() -> None:
    assert len(judge("1+1=2; " * 50, 20)) == 20


@st.composite
def expressions(draw: st.DrawFn, is_plain: bool, depth: int = 3) -> tuple[str, Fraction]:
    """An expression in plain text or LaTeX, in brackets if it is a sum, and its value."""
    kind = draw(st.sampled_from(["number", "+", "-", "*", "/", "^"])) if depth else "number"
    if kind == "number":
        number = draw(st.integers(1, 99))
        return str(number), Fraction(number)
    first, value = draw(expressions(is_plain, depth - 1))
    if kind == "^":
        power = f"({first})^2" if is_plain else rf"\left({first}\right)^{{2}}"
        return power, value**2
    if kind == "/":
        bottom = draw(st.integers(2, 30))
        quotient = f"({first})/{bottom}" if is_plain else rf"\frac{{{first}}}{{{bottom}}}"
        return quotient, value / bottom
    second, other = draw(expressions(is_plain, depth - 1))
    if kind == "*":
        sign = "*" if is_plain else r" \cdot "
        return f"(({first}){sign}({second}))", value * other
    sign = 1 if kind == "+" else -1
    return f"(({first}){kind}({second}))", value + sign * other


@settings(max_examples=60)
@given(st.data(), st.booleans())
def test_true_arithmetic_is_right_and_perturbed_it_is_wrong(
    data: st.DataObject, is_plain: bool
) -> None:
    side, value = data.draw(expressions(is_plain))
    error = data.draw(st.integers(1, 9))
    right = f"0 + {value}"
    wrong = f"0 + {value + error}"
    sentence = "So: {} {} {}." if is_plain else "Thus, ${} {} {}$ holds."
    assert verdicts(sentence.format(side, "=", right)) == ["right"]
    assert verdicts(sentence.format(side, "=", wrong)) == ["wrong"]
    assert verdicts(sentence.format(side, "<", wrong)) == ["right"]
    assert verdicts(sentence.format(side, ">", wrong)) == ["wrong"]


PIECES = r"""
1 2 x = < > + - * / ^ ( ) { } [ ] | ! , . : $ $$ \( \) \[ \] \\ & % ° _ ' π √ ≤ ≈ ≡ \frac \sqrt \sin
\log \binom \boxed \left \right \text{a} \begin{align} \end{align} \begin{cases} \end{cases} \{ \}
\lfloor \rfloor \pmod \overline{3} 0. word is so == != := ... \pi \cdot ½ ² １ ∗ - 1,5 (mod \boxed{
"""
PIECES_AND_GAPS = [*PIECES.split(), " ", "\n", "\n\n", "\u200b"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PIECES_AND_GAPS), max_size=40))
def test_steps_lie_in_the_text_one_behind_the_other(pieces: list[str]) -> None:
    text = "".join(pieces)
    end = 0
    for step in judge(text, 100):
        assert step.verdict in {"right", "wrong", "open"}
        assert end <= step.start < step.end <= len(text)
        assert not text[step.start].isspace()
        assert not text[step.end - 1].isspace()
        end = step.end
    derivation = derive(text, text, text, text, 100)
    assert 0 <= derivation.low <= derivation.high <= 1


@pytest.mark.parametrize(
    "step",
    [
        "(" * 5_000 + "1" + ")" * 5_000 + "=1",
        r"\sqrt{" * 2_000 + "2" + "}" * 2_000 + "=1",
        "-" * 5_000 + "1=1",
        "2^" * 5_000 + "1=1",
        "9" * 100_000 + "+1=1",
        "+".join("9" * 300 for _ in range(1_000)) + "=1",
        r"\cdot".join("9" * 399 for _ in range(149)) + "=1",
        r"\frac{50\%}{1/2\pi}\log 3 \sin 3 ^\circ 2\frac12 = 1/2\pi\%",
    ],
)
def test_hostile_steps_are_refused_or_decided_with_little_work(
    step: str, count_calls: CountCalls
) -> None:
    outcomes: list[str] = []
    num_calls = count_calls(lambda: outcomes.extend(verdicts(f"${step}$")))
    assert num_calls < 400_000  # some 50 ms
    assert "wrong" not in outcomes or "frac{50" in step or "cdot" in step


@pytest.mark.parametrize(
    "text",
    [
        *(piece * 20_000 for piece in ("=", "1+1=2;", "-", "|1=", "x^", "$", "\n(", "1 aaa ")),
        *(piece * 20_000 for piece in ("1=2 (a ", "1=$5 ")),
        "(" * 20_000 + "1=1)" * 20_000,
    ],
    ids=lambda text: text[:8],
)
def test_finding_relations_takes_work_in_proportion_to_the_text(
    text: str, count_calls: CountCalls
) -> None:
    once, twice = (count_calls(lambda n=n: find_relations(text[:n])) for n in (5_000, 10_000))
    assert twice < 2.1 * once
    find_relations(text)  # for patterns, whose steps are no calls: quadratic ones would not end
