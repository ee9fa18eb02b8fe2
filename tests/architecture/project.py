"""The files of the project."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT_FOLDERS = ("packages", "proto", "services", "weir", "deploy", "examples")
FOLDERS = (*PRODUCT_FOLDERS, "benchmarks", "docs", "recipes", "skills", "tests")
MODULES = [path for folder in PRODUCT_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
DOCUMENTS = [*sorted(ROOT.glob("*.md"))] + [
    path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))
]


def name_of(path: Path) -> str:
    """A path as a reader of the project writes it."""
    return str(path.relative_to(ROOT))
