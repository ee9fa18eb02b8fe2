"""The documents name what exists: files, links, commands, functions, streams."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from protocol import streams

from deploy import metrics_table
from services.gateway.cli.main import main
from tests.architecture.project import (
    DOCUMENTS,
    FOLDERS,
    MODULES,
    ROOT,
    code_in,
    name_of,
    rows_below,
)

FILE_SUFFIXES = r"py|md|toml|lua|yml|png|jsonl"
FILE = re.compile(rf"(?!-)[\w./*-]+(?:\.(?:{FILE_SUFFIXES})|/)")
PATH_FROM_ROOT = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./*-]*[\w/*]")
LINK = re.compile(r"\]\((?!https?://|#)([^)\s#]+)")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
WALK = rows_below(ARCHITECTURE, "One datum, function by function")

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)


def exists(name: str, *bases: Path) -> bool:
    return any(any(base.glob(name.rstrip("/"))) for base in bases)


@every_document
def test_every_path_in_a_document_exists(document: Path) -> None:
    text = document.read_text()
    named = {span for span in code_in(text) if FILE.fullmatch(span)}
    named |= set(PATH_FROM_ROOT.findall(text))
    bases = (ROOT, ROOT / "proto", document.parent)
    assert sorted(name for name in named if not exists(name, *bases)) == []


@every_document
def test_every_relative_link_in_a_document_leads_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@every_document
def test_every_make_target_in_a_document_is_in_the_makefile(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert commands(document, r"\bmake ([a-z]+)") <= targets


@every_document
def test_every_module_that_a_document_runs_exists(document: Path) -> None:
    modules = commands(document, r"python -m ([\w.]+)")
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


@every_document
def test_every_verb_of_weir_in_a_document_is_one(
    document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0
    verbs = set(re.findall(r"^  (\w+) ", capsys.readouterr().out, re.MULTILINE))
    assert commands(document, r"(?<![\w.])weir ([a-z]+)") <= verbs


def commands(document: Path, pattern: str) -> set[str]:
    return {name for code in code_in(document.read_text()) for name in re.findall(pattern, code)}


@pytest.mark.parametrize(("place", "functions", "_"), WALK, ids=lambda cell: str(cell)[:60])
def test_every_function_of_the_walk_exists(place: str, functions: str, _: str) -> None:
    defined = definitions(ROOT / place.strip("`"))
    assert [name for name in re.findall(r"`([^`]+)`", functions) if name not in defined] == []


def definitions(path: Path) -> set[str]:
    """The names of functions and classes, methods as ``Class.method``, and of tables."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if not isinstance(inner, ast.Expr))
            names |= {f"{node.name}.{getattr(method, 'name', '')}" for method in methods}
    return names


def test_the_table_of_streams_is_the_one_in_the_code() -> None:
    in_code = [
        re.split(r"\s{2,}", line.strip())
        for line in (streams.__doc__ or "").split("\n====", 3)[2].splitlines()[1:]
    ]
    in_document = [
        [cell.strip("`") for cell in row] for row in rows_below(ARCHITECTURE, "The streams")
    ]
    assert in_document == in_code


@pytest.mark.parametrize(
    "path",
    [
        *DOCUMENTS,
        *MODULES,
        *(ROOT / name for name in ("Makefile", "pyproject.toml", "docker-compose.yml")),
        *(
            path
            for path in (ROOT / "deploy").rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        ),
    ],
    ids=name_of,
)
def test_no_file_knows_one_machine_or_one_package_registry(path: Path) -> None:
    registry = r"pypi\.|pythonhosted|pytorch\.org/whl|anaconda\.|--(?:extra-)?index-url"
    machine = r"(?<![\w.*])/(?:work|root|home|Users)/"
    assert re.findall(rf"{registry}|{machine}", path.read_text()) == []


def test_the_table_of_metrics_is_the_one_in_the_code() -> None:
    assert metrics_table.main(["--check"]) is None
