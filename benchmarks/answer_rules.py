"""What each rule of the comparer decides: ``python -m benchmarks.answer_rules``.

The table has, for each rule, the number of rows that it is the first to decide, and the number of
right verdicts that are lost without it. Rows are those of
``packages/answers/tests/golden/answers.jsonl``, and those of other people in
``../shared/data/answers_external.jsonl`` if it exists.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from answers import MAX_RULE_CHARS, Verdict, compare, last_boxed
from answers.comparison import Comparison, Rule
from answers.rules import RULES
from answers.values import Value

ROOT = Path(__file__).parents[1]
OWN = ROOT / "packages/answers/tests/golden/answers.jsonl"
OUTSIDE = ROOT.parent / "shared/data/answers_external.jsonl"


class Row(NamedTuple):
    """A gold answer, the content of a response's last box, and whether that is right."""

    source: str
    gold: str
    boxed: str
    problem: str
    is_right: bool


def _expand(text: str | list[Any]) -> str:
    """Return a text of which a piece ``["x", 100]`` is x a hundred times."""
    pieces = [text] if isinstance(text, str) else text
    return "".join(piece if isinstance(piece, str) else piece[0] * piece[1] for piece in pieces)


def own_rows() -> list[Row]:
    rows = list[Row]()
    for row in map(json.loads, OWN.read_text("utf-8").splitlines()):
        if row["kind"] in ("hostile responses", "hangs") or row["verdict"] is None:
            continue  # these are refused before a rule is asked
        boxed = _expand(row["boxed"]) if "boxed" in row else last_boxed(_expand(row["response"]))
        if boxed and len(boxed) <= MAX_RULE_CHARS:
            gold = _expand(row["answer"])
            rows.append(Row("own", gold, boxed, row.get("problem", ""), row["verdict"]))
    return rows


def outside_rows() -> list[Row]:
    """Return the rows of other people in which the expected verdict is no mere convention."""
    lines = OUTSIDE.read_text("utf-8").splitlines() if OUTSIDE.exists() else []
    rows = list[Row]()
    for row in map(json.loads, lines):
        boxed = last_boxed(row["response"])
        is_judged = row["expected"] is not None and row["answer"] is not None
        if is_judged and boxed and len(boxed) <= MAX_RULE_CHARS:
            problem = row.get("problem") or ""
            rows.append(Row(row["source"], row["answer"], boxed, problem, row["expected"]))
    return rows


def verdicts(rows: list[Row]) -> list[bool | None]:
    return [compare(row.gold, row.boxed, row.problem).equal for row in rows]


def count_decisions(rows: list[Row], index: int) -> Counter[str]:
    """Count the rows, by source, that the rule at an index of `RULES` is the first to decide."""
    rule: Rule = RULES[index]
    decisions = list[bool]()

    def record(gold: Value, answer: Value, comparison: Comparison) -> Verdict | None:
        verdict = rule(gold, answer, comparison)
        decisions.append(verdict is not None)
        return verdict

    counts = Counter[str]()
    RULES[index] = record
    for row in rows:
        decisions.clear()
        compare(row.gold, row.boxed, row.problem)
        counts[row.source] += any(decisions)
    RULES[index] = rule
    return +counts


def lost_rows(rows: list[Row], before: list[bool | None], index: int) -> Iterator[Row]:
    """Yield the rows whose verdicts are right with all rules, and not without one of them."""
    rule = RULES.pop(index)
    after = verdicts(rows)
    RULES.insert(index, rule)
    for row, old, new in zip(rows, before, after, strict=True):
        if old is row.is_right and new is not row.is_right:
            yield row


def main() -> None:
    """Print the table, and the rows that are wrong with all rules."""
    rows = [*own_rows(), *outside_rows()]
    before = verdicts(rows)
    print(f"{len(rows)} rows, {before.count(None)} of them left to algebra")
    print(f"{'rule':20}{'decides':>9}{'outside':>9}{'lost without':>15}{'outside':>9}  sources")
    for index, rule in enumerate(list(RULES)):
        counts = count_decisions(rows, index)
        lost = list(lost_rows(rows, before, index))
        num_outside_lost = sum(row.source != "own" for row in lost)
        sources = ", ".join(f"{name} {count}" for name, count in counts.most_common(6))
        print(
            f"{rule.__name__:20}{counts.total():9}{counts.total() - counts['own']:9}"
            f"{len(lost):15}{num_outside_lost:9}  {sources}"
        )
    for row, verdict in zip(rows, before, strict=True):
        if verdict is not None and verdict is not row.is_right:
            print(f"wrong: {row.source}: {row.gold!r} and {row.boxed!r}: {verdict}")


if __name__ == "__main__":
    main()
