"""The files of the project that the architecture tests read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT_FOLDERS = ("proto", "services", "deploy", "examples")
FOLDERS = (*PRODUCT_FOLDERS, "recipes", "tests")
MODULES = [path for folder in PRODUCT_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
DOCUMENTS = [*sorted(ROOT.glob("*.md"))] + [
    path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))
]
FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    """A path as a reader of the project writes it."""
    return str(path.relative_to(ROOT))


def code_in(text: str) -> Iterator[str]:
    """Every code block and every span in backticks of a Markdown text."""
    for block in FENCED.findall(text):
        yield from block.splitlines()
    prose = FENCED.sub("", text)
    yield from re.findall(r"`([^`]+)`", prose)


def rows_below(text: str, heading: str) -> list[list[str]]:
    """The cells of the first Markdown table below a heading, without its head."""
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
