r"""Relations as they are written in solutions, a line each, with the verdict by hand."""

from __future__ import annotations

import pytest

from services.grader.steps.judging import judge


def verdicts(text: str) -> list[str]:
    return [each.verdict for each in judge(text, 1_000)]


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


RIGHT = lines(r"""
2^2+3=7
(2+3)*4-1=19
2(3+4) = 14
3 x 4 = 12
5*-3=-15
$5!=120$
-3^2 = -9
1½ + 1 = 2½
1,000 + (1) = 1,001
√(16) + 1 = 5
|-3| + 5 = 8
17 ≡ 2 (mod 5)
2(3) != 7
pi ≈ 3.14
- 3 + 4 = 7
- 5 + 3 = -2
$\frac12 = 0.5 + 0$
$\frac{91}{26} = \boxed{\frac{7}{2}}$
$\sqrt{50} = 5\sqrt{2}$
$\sqrt[3]{-8} + 0 = -2$
$\binom{5}{2} = 10$
$\log_2 8 = 3$
$\sin 30 = 0.5$
$\arcsin \frac{1}{2} = 30^\circ$
$\sqrt{2} \ne \frac{3}{2}$
$2\frac{1}{2} = \frac{5}{2}$
$0.1\overline{6} = \frac{1}{6}$
$1{,}000 \cdot 2 = 2{,}000$
$1011_2 = 11$
$\lceil \frac{7}{2} \rceil = 4$
$2^{100} \equiv 2 \pmod 7$
$1/2\pi = \frac{1}{2\pi}$
$\frac{1}{2} \cdot 6 \cdot 5 = 15 \text{ cm}^2$
$e^{\ln 2} = 2$
$2^{300} - 1 = (2^{150} - 1)(2^{150} + 1)$
(a+b)^2 = a^2 + 2ab + b^2
$\frac{x^2-1}{x-1} = x+1$
$\sqrt{x^2} = |x|$
$\frac{n!}{(n-2)!} = n(n-1)$
""")
WRONG = lines(r"""
2^2+3=8
-3^2 = 9
47+48=100
10/3 = 3
- 3 + 10 = 8
５+10＝20
$\sqrt{9+16} = 3+4$
$\sin 60 = 0.5$
$\pi \approx 3.5$
$2^{100} \equiv 3 \pmod 7$
$2 + 2 = \boxed{5}$
$1/2\pi = 2\pi$
$2^{300} - 1 = (2^{150} - 1)(2^{150} + 1) + 1$
So 2+2=5.
2+2=5 cm
95+8=100 in all
""")
OPEN = lines(r"""
x = 5
3+4=7+x
$x^2 \ge 0$
$\sqrt{x^2} = x$
$(a+b)^2 = a^2 + b^2$
$i^2 = -1$
$n^2 \equiv 1 \pmod 8$
""")
NO_VERDICT = lines(r"""
5 = 5
$x + 1 = 1 + x$
2+2=5 (mod 1)
3 apples + 4 apples = 7 apples
2,5 * 2 = 6
12 000 * 3 = 36 001
3/2 = 1 1/2
gcd(12, 18) = 6
10/3=3.33
2/3=67%
80 - 20% = 64
100000 / 1.06^5 = 74726
17/5 = 3, remainder 2
Week 2 = 35 + 35
$\frac{1}{0} = 2+1$
$\sqrt{-4} = 2 \cdot 1$
$\tan 90^\circ = 1 + 1$
$\sum_{i=1}^{10} i = 55$
$f(2) = 2 \cdot 4$
$(1, 2) = (1, 2)$
$x = \begin{cases} 1+1 = 3 & 2+2 = 5 \end{cases}$
$9^{9^{9^{9}}} > 1$
$110_2=7_{10} \mid 2$
""")
DOUBTFUL = lines("""
Is 91 = 7 * 12? No.
2+3 = 6 is not true
5 + 10 = 20 ✗
Working modulo 7: $3 \\cdot 5 = 1$
5 + 5 = 12 base 8
""")
SEVERAL = [
    ("2x = 3 + 4 = 7", ["open", "right"]),
    ("47+8=55-6=49", ["wrong", "right"]),
    ("**2(3) = 6** and **2(4) = 9**", ["right", "wrong"]),
    ("<<16-3-4=9>>9 and 2(9)=18", ["right", "right"]),
    ("It costs $5 and 3*($5) = $15. So $5+$3=$8", ["right", "right"]),
    ("1. 3(1)+4=7\n2) 5-(1)=4", ["right", "right"]),
    ("(2+3)*4\n= 5*4\n= 21", ["right", "wrong"]),
    ("5+3 = 8 (since 5 = 3 + 2)", ["right", "right"]),
    (r"$1 < \sqrt{2} < 1.4$", ["right", "wrong"]),
    (r"$2+2=4$ and $2+3=6$, so $x = 1$.", ["right", "wrong", "open"]),
    (r"\begin{align*} x &= 3+4 \\ &= 7 \\ &= 2 \cdot 4 \end{align*}", ["open", "right", "wrong"]),
    (r"\begin{align*} x &= 1+2 \\ &\quad + 3 \\ &= 6 \end{align*}", ["open", "right"]),
    (r"P(X=2) = 1/2 and (1+1=3)", ["open", "wrong"]),
    (r"$3 \cdot 5 = 15 \equiv 1 \pmod 7$", ["right", "right"]),
    (r"1+1=2 \boxed{7}", ["right"]),
    ("Not so. 2+2=5\n\nNo", ["wrong"]),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    SEVERAL
    + [(text, ["right"]) for text in RIGHT]
    + [(text, ["wrong"]) for text in WRONG]
    + [(text, ["open"]) for text in OPEN]
    + [(text, []) for text in DOUBTFUL],
)
def test_every_relation_that_is_not_in_doubt_has_its_own_verdict(
    text: str, expected: list[str]
) -> None:
    assert verdicts(text) == expected


@pytest.mark.parametrize("text", NO_VERDICT)
def test_what_says_nothing_or_cannot_be_told_has_no_verdict(text: str) -> None:
    assert not {"right", "wrong"} & set(verdicts(text))


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
