"""Worked solutions as models write them, with steps that are known to be right or wrong."""

from __future__ import annotations

import pytest

from services.grader.steps.judging import judge

QUADRATIC = r"""
We factor the quadratic $x^2 - 5x + 6 = (x-2)(x-3)$, so the roots are $x = 2$ and $x = 3$.
The sum of their cubes is
\begin{align*}
2^3 + 3^3 &= 8 + 27 \\
&= 35.
\end{align*}
Check with Vieta's formulas: $5^3 - 3 \cdot 6 \cdot 5 = 125 - 80 = 35$. The answer is $\boxed{35}$.
"""

CIRCLE = r"""
The area of the sector is
$\frac{120^\circ}{360^\circ} \cdot \pi \cdot 6^2 = \frac{1}{3} \cdot 36\pi = 12\pi$.
The triangle has area $\frac{1}{2} \cdot 6 \cdot 6 \cdot \sin 120^\circ
= 18 \cdot \frac{\sqrt{3}}{2} = 9\sqrt{3}$.
So the segment has area $12\pi - 9\sqrt{3} \approx 22.1$, and not $12\pi - 9\sqrt{3} < 20$.
Its perimeter is $\frac{1}{3} \cdot 2\pi \cdot 6 + 6\sqrt{3} = 4\pi + 6\sqrt{2}$.
"""

MODULAR = r"""
We work modulo $7$. Since $3^6 \equiv 1 \pmod{7}$ and $100 = 6 \cdot 16 + 4$,
\[3^{100} = (3^6)^{16} \cdot 3^4 \equiv 3^4 \equiv 81 \equiv 4 \pmod{7}.\]
So the remainder is $4$, because $81 = 7 \cdot 11 + 4$; it is not $5$:
the equation $81 = 7 \cdot 11 + 5$ fails. A careless student writes $3^4 \equiv 5 \pmod 7$.
"""

SEQUENCE = r"""
The sum of the series is
$$1 + 2 + 3 + \cdots + 100 = \frac{100 \cdot 101}{2} = 5050.$$
For the geometric one: $a = 3$, $r = \frac{1}{2}$, so $S = \frac{3}{1 - \frac{1}{2}} = 6$ and
$\frac{3(1 - (1/2)^4)}{1 - 1/2} = \frac{45}{8} = 5.625$, 
and $6 - 5.625 = 0.475$ is missing.
Finally $n^2 - (n-1)^2 = 2n - 1$ for all $n$.
"""


def of(text: str, verdict: str) -> list[str]:
    return [text[each.start : each.end] for each in judge(text, 1_000) if each.verdict == verdict]


@pytest.mark.parametrize(
    ("solution", "num_right", "wrong"),
    [
        (QUADRATIC, 3, [r"5^3 - 3 \cdot 6 \cdot 5 = 125 - 80", "= 35"]),
        (CIRCLE, 5, [r"\frac{1}{3} \cdot 2\pi \cdot 6 + 6\sqrt{3} = 4\pi + 6\sqrt{2}"]),
        (MODULAR, 7, [r"3^4 \equiv 5"]),
        (SEQUENCE, 5, ["6 - 5.625 = 0.475"]),
    ],
)
def test_the_wrong_steps_of_a_solution_are_found_and_no_others(
    solution: str, num_right: int, wrong: list[str]
) -> None:
    assert of(solution, "wrong") == wrong
    assert len(of(solution, "right")) == num_right


def test_definitions_and_conditions_are_open() -> None:
    assert of(SEQUENCE, "open") == ["a = 3", r"r = \frac{1}{2}", r"S = \frac{3}{1 - \frac{1}{2}}"]
