"""``python -m docs.reference.security``: write the tables of ``docs/reference/security.md``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from services.chassis.deployment import Reader
from services.chassis.security import access_rows, allowance_rows

PAGE = Path(__file__).with_suffix(".md")
_TABLE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def page() -> str:
    """Return the page with the tables as the code has them."""
    tables = {
        "access": _markdown(access_rows()),
        "allowances": _markdown(allowance_rows(Reader({}))),
    }
    return _TABLE.sub(lambda match: match[1] + tables[match[2]] + match[3], PAGE.read_text())


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
