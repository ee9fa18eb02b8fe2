"""What is graded in the benchmark: groups of eight responses to answers of several kinds."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

GROUP_SIZE = 8
RIGHT_SHARE = 0.6  # of the responses; half of them in other words than the gold answer
MATH500 = Path(__file__).parents[2].parent / "shared" / "data" / "math500.jsonl"

# Of the same kinds, and about as many of each, as the answers of MATH-500.
_WRITTEN = (
    *("7", "12", "-5", "0", "96", "1", "243", "18", "30", "4", "65", "1024", "2", "57", "-128"),
    *("3", "8", "505", "16", "9", "11", "150", "27", "6", "-1", "74", "2025", "13", "48", "5"),
    *("360", "21", "10,\\!400", "58,900", "1.75", ".0042", "0.35", "315_8", "\\$24.50"),
    *(r"\frac{7}{3}", r"\frac{5}{56}", r"\frac 29", r"-\frac{17}{9}", r"\dfrac{21}{50}"),
    *(r"2\sqrt{17}", r"\frac{\sqrt{5}}{3}", r"6\pi", r"120^\circ", r"1 \pm \sqrt{13}", "4 - 7i"),
    *(r"\left( 5, \frac{\pi}{3} \right)", "(4,17,-3)", "(1,6]", r"(-\infty, 1) \cup (5, \infty)"),
    *("1,-4", "2x^2 - 5x + 3", "y = 3x - 2", r"\text{Friday}", r"\text{(D)}"),
    *(r"\begin{pmatrix} -3 \\ 8 \\ 5 \end{pmatrix}", r"12\text{ cm}^2", r"3\frac{2}{5}"),
)
_THOUGHT = (
    "We look at the given conditions first. Let $n$ be the number that is asked for, so that "
    "$n = 3 + {0}$ in the simplest case, where \\frac{{{0}}}{{7}} is less than 1. "
)
_PARAGRAPHS = 8


@dataclass(frozen=True)
class Response:
    """One response of a group, and whether it is right by the way in which it was made."""

    gold: str
    answer: str
    right: bool
    text: str


def mixes(seed: int = 0) -> dict[str, list[Response]]:
    """A batch of whole groups for each mix."""
    chance = random.Random(seed)
    integers = [str(chance.randint(-99, 9999)) for _ in range(250)]
    latex = chance.sample(latex_golds(), len(latex_golds()))
    return {"integers": batch_of(integers, chance), source(): batch_of(latex, chance)}


def source() -> str:
    """Where the golds of the LaTeX mix come from."""
    return "MATH-500" if MATH500.exists() else "like MATH-500"


def latex_golds() -> Sequence[str]:
    """The answers of MATH-500 if they are at hand, else some of the same kinds."""
    if not MATH500.exists():
        return _WRITTEN
    return [json.loads(line)["answer"] for line in MATH500.read_text().splitlines()]


def batch_of(golds: Sequence[str], chance: random.Random) -> list[Response]:
    """Groups of responses, one group after the other."""
    return [_response(gold, chance) for gold in golds for _ in range(GROUP_SIZE)]


def hanging(like: Response, chance: random.Random) -> Response:
    """A response whose answer no computer algebra can work out in time; some are far too large."""
    base, digits = chance.randint(5, 9), chance.randint(5, 999_999)
    answer = chance.choice(
        (
            f"{base}^{{{digits}^{{9^9}}}}",
            f"({digits}^{{{base}^{{8}}}})!",
            f"\\sum_{{k=1}}^{{10^{{12}}}} \\sin(k^2 + {digits})",
            f"\\gcd({base}^{{5^{{9}}}}, {digits})",
        )
    )
    return Response(like.gold, answer, right=False, text=_text(answer, chance))


def _response(gold: str, chance: random.Random) -> Response:
    right = chance.random() < RIGHT_SHARE
    if not right:
        answer = _perturbed(gold, chance)
    else:
        answer = gold if chance.random() < 0.5 else _rewritten(gold, chance)
    return Response(gold, answer, right, _text(answer, chance))


def _text(answer: str, chance: random.Random) -> str:
    thoughts = "".join(_THOUGHT.format(chance.randint(1, 9999)) for _ in range(_PARAGRAPHS))
    return f"{thoughts}\n\nThe final answer is $\\boxed{{{answer}}}$."


def _perturbed(gold: str, chance: random.Random) -> str:
    """The answer with one of its numbers changed; words become other words."""
    numbers = list(re.finditer(r"\d+", gold))
    if not numbers:
        return r"\text{neither}" if r"\text" in gold else f"{gold} + 1"
    number = chance.choice(numbers)
    other = int(number.group()) + chance.randint(1, 9)
    return f"{gold[: number.start()]}{other}{gold[number.end() :]}"


def _rewritten(gold: str, chance: random.Random) -> str:
    """The same answer as another model might have written it."""
    ways = [
        gold.replace(r"\frac{", r"\dfrac{"),
        gold.replace(r"\left", "").replace(r"\right", ""),
        re.sub(r"([,+=])", r" \1 ", gold),
        re.sub(r"\s*([,+=-])\s*", r"\1", gold),
    ]
    if re.fullmatch(r"-?\d+", gold):
        ways += [f"{gold}.0", f"{int(gold):,}"]
    if fraction := re.fullmatch(r"\\d?frac\{(\d+)\}\{(2|4|5|8|10|16|20|25|50|100)\}", gold):
        ways.append(str(int(fraction[1]) / int(fraction[2])))
    others = [way for way in dict.fromkeys(ways) if way != gold]
    return chance.choice(others) if others else f"{{{gold}}}"
