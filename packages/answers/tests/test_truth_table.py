"""The truth table: every answer is judged as a careful examiner would judge it.

A row of ``golden/answers.jsonl`` has a gold ``answer``, a ``response`` or its ``boxed`` answer,
perhaps the ``problem``, and the ``verdict``: true, false, or null if the gold answer cannot be
read. A text may be a list of pieces, in which ``["x", 100]`` is x a hundred times. Rows of the kind
"hangs" would not end here.
"""

import json
from pathlib import Path
from typing import Any

from answers import decide, last_boxed

Row = dict[str, Any]
TABLE = Path(__file__).with_name("golden") / "answers.jsonl"
ROWS: list[Row] = list(map(json.loads, TABLE.read_text("utf-8").splitlines()))


def expand(text: str | list[Any]) -> str:
    if isinstance(text, str):
        return text
    pieces = [[piece, 1] if isinstance(piece, str) else piece for piece in text]
    return "".join(piece * times for piece, times in pieces)


def response_text(row: Row) -> str:
    if "response" in row:
        return expand(row["response"])
    return rf"We find $x$. First \boxed{{41}}, no: \boxed{{{expand(row['boxed'])}}}."


def judge(row: Row) -> bool | None:
    answer = last_boxed(response_text(row))
    if answer is None:
        return False
    gold = expand(row["answer"])
    reason = decide(gold, answer, row.get("problem", ""))
    if reason == "gold_not_parsable":
        return None
    return reason == "right"


def test_every_row_of_the_truth_table_is_judged_as_it_says() -> None:
    rows = [row for row in ROWS if row["kind"] != "hangs"]
    wrong = [row for row in rows if judge(row) is not row["verdict"]]
    assert len(rows) > 2_000
    assert wrong == []
