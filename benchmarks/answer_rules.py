"""What each rule of the comparer is there for: ``python -m benchmarks.answer_rules``.

Of each rule: how many rows of which source it decides first, and how many that are right with it
turn wrong, or are left to algebra, without it. Rows are the own ones in
``tests/golden/answers.jsonl``, and those of other people in
``../shared/data/answers_external.jsonl`` where it is there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from services.grader.answers import compare
from services.grader.answers.boxes import last_boxed
from services.grader.answers.compare import Comparison, Rule, Verdict
from services.grader.answers.values import Value

ROOT = Path(__file__).parents[1]
OWN = ROOT / "tests/golden/answers.jsonl"
OUTSIDE = ROOT.parent / "shared/data/answers_external.jsonl"
_MAX_CHARS = 500  # of an answer that is settled without algebra


class Row(NamedTuple):
    """A gold answer, what is in the last box of a response, and whether that is right."""

    source: str
    gold: str
    boxed: str
    problem: str
    is_right: bool


def text_of(pieces: str | list[Any]) -> str:
    """A text, or pieces of which ``["x", 100]`` is x a hundred times."""
    if isinstance(pieces, str):
        return pieces
    return "".join(piece if isinstance(piece, str) else piece[0] * piece[1] for piece in pieces)


def outside_rows() -> list[dict[str, Any]]:
    """The rows of other people whose expectation is no convention; none where the file is not."""
    lines = OUTSIDE.read_text().splitlines() if OUTSIDE.exists() else []
    rows = map(json.loads, lines)
    return [row for row in rows if row["expected"] is not None and row["answer"] is not None]


def rows() -> Iterator[Row]:
    """All rows that rules can be asked about."""
    for line in OWN.read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "hostile responses":
            continue  # which `math_answer` refuses before anything is compared
        boxed = text_of(row["boxed"]) if "boxed" in row else last_boxed(text_of(row["response"]))
        if boxed and len(boxed) <= _MAX_CHARS and row["verdict"] is not None:
            gold, problem = text_of(row["answer"]), row.get("problem", "")
            yield Row("own", gold, boxed, problem, row["verdict"])
    for row in outside_rows():
        if (boxed := last_boxed(row["response"])) and len(boxed) <= _MAX_CHARS:
            yield Row(
                row["source"], row["answer"], boxed, row.get("problem") or "", row["expected"]
            )


def verdicts(asked: list[Row]) -> list[bool | None]:
    """What the comparer says without algebra."""
    return [compare.compare(row.gold, row.boxed, row.problem).equal for row in asked]


def deciding(asked: list[Row], rule: Rule) -> Counter[str]:
    """The rows that a rule is the first to decide, by their sources."""
    told = list[bool]()

    def telling(gold: Value, answer: Value, by: Comparison) -> Verdict | None:
        verdict = rule(gold, answer, by)
        told.append(verdict is not None)
        return verdict

    found = Counter[str]()
    at = compare.RULES.index(rule)
    compare.RULES[at] = telling
    for row in asked:
        told.clear()
        compare.compare(row.gold, row.boxed, row.problem)
        found[row.source] += any(told)
    compare.RULES[at] = rule
    return +found


def without(asked: list[Row], rule: Rule) -> list[bool | None]:
    """The verdicts without a rule."""
    at = compare.RULES.index(rule)
    del compare.RULES[at]
    found = verdicts(asked)
    compare.RULES.insert(at, rule)
    return found


def main() -> None:
    """Print the table, and the rows that are wrong with all rules."""
    asked = list(rows())
    before = verdicts(asked)
    print(f"{len(asked)} rows, {before.count(None)} of them left to algebra")
    print(f"{'rule':16}{'decides':>9}{'outside':>9}{'wrong without':>15}{'outside':>9}  sources")
    for rule in list(compare.RULES):
        decides, after = deciding(asked, rule), without(asked, rule)
        pairs = zip(asked, before, after, strict=True)
        lost = [row for row, old, new in pairs if old is row.is_right and new is not row.is_right]
        outside = Counter(row.source for row in lost if row.source != "own")
        others = decides.total() - decides["own"]
        sources = ", ".join(f"{name} {count}" for name, count in decides.most_common(6))
        print(
            f"{rule.__name__:16}{decides.total():9}{others:9}{len(lost):15}{outside.total():9}"
            f"  {sources}"
        )
    for row, verdict in zip(asked, before, strict=True):
        if verdict is not None and verdict is not row.is_right:
            print(f"wrong: {row.source}: {row.gold!r} and {row.boxed!r}: {verdict}")


if __name__ == "__main__":
    main()
