"""What the command writes. Text of others is shown as it is, but for what a terminal would obey."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_WHOLE = 10_000  # columns: a narrow terminal wraps lines, and nothing is cut
# What moves the cursor, turns the line around or starts an escape sequence; one character for one,
# so that marks stay in their places.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_VISIBLE |= {127: 0x2421} | {code: 0xFFFD for code in range(128, 160)}
_VISIBLE |= {
    code: 0xFFFD for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
_IN_A_LINE = {ord("\n"): 0x240A, ord("\t"): 0x2409}


def visible(raw: object) -> str:
    """Text in which nothing is obeyed; lines and tabs stay."""
    return str(raw).translate(_VISIBLE)


def cell(raw: object, style: str = "") -> Text:
    """One line of such text, in which rich finds no markup, either."""
    return Text(visible(raw).translate(_IN_A_LINE), style)


def table(*heads: str) -> Table:
    return Table(*heads, box=None, pad_edge=False)


def say(text: object) -> None:
    print(visible(text), flush=True)


def complain(text: object) -> None:
    print(f"weir: {visible(text)}", file=sys.stderr)


def show(what: RenderableType) -> None:
    Console(width=_WHOLE).print(what)


def tell(objects: Iterable[Any]) -> None:
    """Write one JSON object a line; JSON escapes what a terminal would obey."""
    for each in objects:
        print(json.dumps(each), flush=True)


def number(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)


def duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
