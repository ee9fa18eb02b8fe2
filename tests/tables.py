"""Test cases as a table in text: the first line names the columns, and ` | ` is between cells."""

import ast
import re
from collections.abc import Callable
from typing import Any

import pytest


def read_rows(text: str) -> list[list[str]]:
    lines = filter(str.strip, text.splitlines())
    return [[cell.strip() for cell in re.split(r"\s\|(?=\s|$)", line)] for line in lines]


def table(text: str, *more: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Run a test with each row, and with rows more that a line cannot hold.

    A cell is a text where the test takes a ``str``, and otherwise a literal of Python.
    """
    names, *rows = read_rows(text)

    def parametrize(test: Any) -> Any:
        kinds = [test.__annotations__[name] for name in names]
        values = [tuple(map(_read_cell, row, kinds)) for row in rows]
        return pytest.mark.parametrize(names, [*values, *more])(test)

    return parametrize


def _read_cell(cell: str, kind: object) -> Any:
    return cell if kind in (str, "str") else ast.literal_eval(cell)
