"""What a reader holds in mind at once stays small."""

import ast

from tests.architecture.project import MODULES, ROOT, name_of

MAX_FUNCTION_LINES = 50
MAX_FILE_LINES = 400
PAGE_MODULES = sorted((ROOT / "services/gateway/page/static/js").rglob("*.js"))
MAX_PAGE_MODULE_LINES = 300


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_no_file_is_longer_than_a_sitting() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    long = {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}
    assert long == {}


def test_no_module_of_the_page_is_longer_or_wider_than_a_window() -> None:
    texts = {name_of(path): path.read_text().splitlines() for path in PAGE_MODULES}
    assert texts
    assert [name for name, lines in texts.items() if len(lines) > MAX_PAGE_MODULE_LINES] == []
    assert [name for name, lines in texts.items() if max(map(len, lines)) > 120] == []
