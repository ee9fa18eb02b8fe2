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
Check with Vieta's formulas: $5^3 - 3 \cdot 6 \cdot 5 = 125 - 90 = 35$. The answer is $\boxed{35}$.
"""
QUADRATIC_WRONG = QUADRATIC.replace("125 - 90 = 35", "125 - 80 = 35")

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

TRIGONOMETRY = r"""
Using $\sin 75^\circ = \sin(45^\circ + 30^\circ)$, we get
\begin{align*}
\sin 75^\circ &= \sin 45^\circ \cos 30^\circ + \cos 45^\circ \sin 30^\circ \\
&= \frac{\sqrt{2}}{2} \cdot \frac{\sqrt{3}}{2} + \frac{\sqrt{2}}{2} \cdot \frac{1}{2} \\
&= \frac{\sqrt{6} + \sqrt{2}}{4}.
\end{align*}
Hence $\cos 15^\circ = \frac{\sqrt{6} + \sqrt{2}}{4}$, while $\tan 15^\circ = 2 + \sqrt{3}$.
In general $\cos 2x = 1 - 2\sin^2 x$.
"""

SEQUENCE = r"""
The sum of the series is
$$1 + 2 + 3 + \cdots + 100 = \frac{100 \cdot 101}{2} = 5050.$$
For the geometric one: $a = 3$, $r = \frac{1}{2}$, so $S = \frac{3}{1 - \frac{1}{2}} = 6$ and
$\frac{3(1 - (1/2)^4)}{1 - 1/2} = \frac{45}{8} = 5.625$, 
and $6 - 5.625 = 0.475$ is missing.
Finally $n^2 - (n-1)^2 = 2n - 1$ for all $n$.
"""

PLAIN = """
Step 1: The first train covers 60 * 2.5 = 150 miles.
Step 2: The other covers 45 * (2.5 + 0.5) = 135 miles.
Step 3: Together they cover 150 + 135 = 285 miles, which is 285/3 = 95 per hour.
Step 4: As a share, 150/285 ≈ 0.526 and 135/285 ≈ 0.374.
"""


def of(text: str, verdict: str) -> list[str]:
    return [text[each.start : each.end] for each in judge(text, 1_000) if each.verdict == verdict]


@pytest.mark.parametrize(
    ("solution", "num_right", "wrong"),
    [
        (QUADRATIC_WRONG, 3, [r"5^3 - 3 \cdot 6 \cdot 5 = 125 - 80", "= 35"]),
        (CIRCLE, 5, [r"\frac{1}{3} \cdot 2\pi \cdot 6 + 6\sqrt{3} = 4\pi + 6\sqrt{2}"]),
        (MODULAR, 7, [r"3^4 \equiv 5"]),
        (TRIGONOMETRY, 6, [r"\tan 15^\circ = 2 + \sqrt{3}"]),
        (SEQUENCE, 5, ["6 - 5.625 = 0.475"]),
        (PLAIN, 5, ["135/285 ≈ 0.374"]),
    ],
)
def test_the_wrong_steps_of_a_solution_are_found_and_no_others(
    solution: str, num_right: int, wrong: list[str]
) -> None:
    assert of(solution, "wrong") == wrong
    assert len(of(solution, "right")) == num_right


def test_definitions_and_conditions_are_open() -> None:
    assert of(SEQUENCE, "open") == ["a = 3", r"r = \frac{1}{2}", r"S = \frac{3}{1 - \frac{1}{2}}"]
