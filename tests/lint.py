"""``python -m tests.lint``: what documents, recipes, alerts and dashboards say is true.

Prints ``file:line: what is wrong`` of every fault, and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from protocol import streams
from protocol.recipe import load_recipe

from benchmarks import methods
from docs.reference import recipe as recipe_page
from docs.reference import security as security_page
from examples.claims import report as claims
from examples.claims.registered import FIRST_SEED
from tests.architecture.project import DOCUMENTS, FOLDERS, MODULES, ROOT, name_of
from weir.__main__ import main as weir

FILE = re.compile(r"(?!-)[\w./*-]+(?:\.(?:py|md|toml|lua|yml|png|jsonl)|/)")
PATH_FROM_ROOT = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./*-]*[\w/*]")
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?://|#)([^)\s#]+)")
REGISTRY = r"pypi\.|pythonhosted|pytorch\.org/whl|anaconda\.|--(?:extra-)?index-url"
ONE_PLACE = re.compile(rf"{REGISTRY}|(?<![\w.*])/(?:work|root|home|Users)/")
# Before Python 3.11.5 a possessive group could fail to match what it should; `[0-9]++` is sound.
POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+[^ =+]|\(\?>")
METRIC = re.compile(r"((?:rate|increase)\()?\b(weir_[a-z_]+)\b(?:\{([^}]*)\})?")
LABELS_OF_SCRAPES = {"service", "instance", "le"}
RISING_GAUGES = {"weir_backpressure_seconds", "weir_jobs"}
README, INDEX = ROOT / "README.md", ROOT / "recipes/README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
RULES, BOARDS = ROOT / "deploy/prometheus/rules.yml", ROOT / "deploy/grafana/dashboards"
METRICS = ROOT / "docs/reference/metrics.md"
RUNBOOKS, BOOKS = ROOT / "deploy/runbooks.md", BOARDS / "runbooks.json"
Fault = tuple[Path, int, str]


def lines(path: Path) -> Iterator[tuple[int, str]]:
    return enumerate(path.read_text(encoding="utf-8").splitlines(), 1)


def code_in(path: Path) -> Iterator[tuple[int, str]]:
    """Each line of a code block and each span in backticks of a document, with its line."""
    text = path.read_text()
    for block in FENCED.finditer(text):
        yield from enumerate(block[2].splitlines(), 1 + text.count("\n", 0, block.start(2)))
    prose = FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    for span in re.finditer(r"`([^`]+)`", prose):
        yield 1 + prose.count("\n", 0, span.start()), span[1]


def paths() -> Iterator[Fault]:
    """A path is seen from the root, from proto/ or from the document; a link from the document."""
    for document in DOCUMENTS:
        named = {(at, span) for at, span in code_in(document) if FILE.fullmatch(span)}
        for at, line in lines(document):
            named |= {(at, name) for name in PATH_FROM_ROOT.findall(line)}
            for link in LINK.findall(line):
                if not (document.parent / link).exists():
                    yield document, at, f"the link to {link} leads nowhere"
        for at, name in named:
            bases = (ROOT, ROOT / "proto", document.parent)
            if not any(any(base.glob(name.rstrip("/"))) for base in bases):
                yield document, at, f"{name} is not there"


def commands() -> Iterator[Fault]:
    """What documents have a person type: targets of make, modules, verbs of weir."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        weir(["--help"])
    verbs = re.findall(r"^  (\w+) ", output.getvalue(), re.M)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    patterns = ((r"\bmake ([a-z-]+)", targets), (r"(?<![\w.])weir ([a-z]+)", verbs))
    for document in DOCUMENTS:
        for at, code in code_in(document):
            for pattern, names in patterns:
                for match in re.finditer(pattern, code):
                    if match[1] not in names:
                        yield document, at, f"there is no {match[0]}"
            for module in re.findall(r"python -m ([\w.]+)", code):
                try:
                    assert importlib.util.find_spec(module)
                except (AssertionError, ModuleNotFoundError):
                    yield document, at, f"there is no module {module}"


def blocks() -> Iterator[Fault]:
    """Blocks of Python compile, and those of TOML are such."""
    read = {"python": ast.parse, "toml": tomllib.loads}
    for document in DOCUMENTS:
        text = document.read_text()
        for block in FENCED.finditer(text):
            try:
                read.get(block[1], str)(textwrap.dedent(block[2]))
            except (SyntaxError, ValueError) as error:
                yield document, 1 + text.count("\n", 0, block.start()), f"{block[1]}: {error}"


def architecture() -> Iterator[Fault]:
    """The walks name functions that there are, and the streams are among those of the code."""
    for at, line in lines(ARCHITECTURE):
        row = re.match(r"\| `((?:services|packages)/[\w/.]+)` \| (`.+?`) \|", line)
        if row and (path := ROOT / row[1]).exists():
            modules = [
                each.read_text() for each in ([path] if path.is_file() else path.rglob("*.py"))
            ]
            for name in re.findall(r"`([^`]+)`", row[2]):
                words = [rf"^ *(?:async )?(?:def|class) {word}\b" for word in name.split(".")]
                if not any(all(re.search(word, code, re.M) for word in words) for code in modules):
                    yield ARCHITECTURE, at, f"there is no {name}"
    in_code = (streams.__doc__ or "").split("\n====", 3)[2].splitlines()[1:]
    section = ARCHITECTURE.read_text().split("## The streams\n")[1].split("\n## ")[0]
    _, *rows = re.findall(r"^\| (.+) \|$", section.replace("`", ""), re.M)
    for row in set(rows) - {re.sub(r" {2,}", " | ", line.strip()) for line in in_code}:
        yield ARCHITECTURE, 1, f"the code has no stream {row}"


def written_files() -> Iterator[Fault]:
    """What a command writes is what it would write now."""
    pages = {
        recipe_page.PAGE: recipe_page.page,
        recipe_page.SETTINGS: recipe_page.settings,
        security_page.PAGE: security_page.page,
    }
    for path, write in pages.items():
        if path.read_text() != write():
            yield path, 1, f"not what python -m {write.__module__} writes"
    load_recipe(recipe_page.SETTINGS)
    runs, index = json.loads((ROOT / methods.RESULTS).read_text()), INDEX.read_text()
    if not (demo := methods.demo_table(runs)) or demo not in README.read_text():
        yield README, 1, "not the demo's table as python -m benchmarks.methods prints it"
    for twin, accuracy in methods.intervals(runs, "accuracy", "{:.3f}").items():
        if not re.search(rf"^\| `{twin}` \| .* \| {accuracy} \|$", index, re.M):
            yield INDEX, 1, f"{twin} has another accuracy than python -m benchmarks.methods prints"

    *_, last = [r for r in claims.results() if r["first_seed"] == FIRST_SEED]
    if claims.table(last) not in claims.PAGE.read_text():
        yield claims.PAGE, 1, "not the table of the last run with the registered seeds"


def places() -> Iterator[Fault]:
    """No file knows one machine or one registry of packages."""
    deployed = [path for path in (ROOT / "deploy").rglob("*") if path.suffix != ".pyc"]
    settings = [ROOT / name for name in ("Makefile", "pyproject.toml", "docker-compose.yml")]
    for path in filter(Path.is_file, {*DOCUMENTS, *MODULES, *deployed, *settings}):
        for at, line in lines(path):
            if match := ONE_PLACE.search(line):
                yield path, at, f"{match[0]} is of one machine or one registry"


def shapes() -> Iterator[Fault]:
    """A function fits on a screen, and a pattern means the same on every Python."""
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 50:
                    yield module, node.lineno, f"{node.name} has {length} lines"
        for at, line in lines(module):
            if POSSESSIVE_GROUP.search(line):
                yield module, at, "a possessive group"


def texts(node: ast.expr | None, constants: Mapping[str, ast.expr]) -> tuple[str, ...]:
    """The texts in a display of them, in which module-level constants may stand for others."""
    match node:
        case ast.Constant(value=str(text)):
            return (text,)
        case ast.Name(id=name):
            return texts(constants.get(name), constants)
        case ast.Starred(value=value):
            return texts(value, constants)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return tuple(text for part in parts for text in texts(part, constants))
    return ()


class Metric(NamedTuple):
    kind: str
    labels: tuple[str, ...]


def exported() -> Iterator[tuple[str, Metric]]:
    """Each metric that the code of a service defines, by its name."""
    for module in MODULES:
        code = ast.parse(module.read_text())
        constants = {
            target.id: node.value
            for node in code.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(code):
            match node:
                case ast.Call(
                    ast.Name(kind), [ast.Constant(str(name)), ast.Constant(str()), *more]
                ) if name.startswith("weir_"):
                    named = [k.value for k in node.keywords if k.arg in {"labelnames", "labels"}]
                    labels = texts(next(iter([*more, *named]), None), constants)
                    kind = kind.removesuffix("MetricFamily").lower()
                    yield name, Metric(kind, labels)


def metrics() -> Iterator[Fault]:
    """Alerts, dashboards and the reference name what services export, with labels of these."""
    exports = dict(exported())
    for path in (RULES, METRICS, *BOARDS.glob("*.json")):
        for at, line in lines(path):
            for rate, name, selector in METRIC.findall(line):
                series = name if name in exports else re.sub(r"_(bucket|sum|count)$", "", name)
                metric = exports.get(series)
                if metric is None or (metric.kind == "histogram") == (name == series):
                    yield path, at, f"no service exports {name}"
                    continue
                for label in re.findall(r"(\w+)[=!]", selector):
                    if label not in {*metric.labels, *LABELS_OF_SCRAPES}:
                        yield path, at, f"{name} has no label {label}"
                if rate and metric.kind == "gauge" and name not in RISING_GAUGES:
                    yield path, at, f"{name} is a gauge and has no rate"


def panels() -> Iterator[Fault]:
    """Panels say what they show, and ask the data source that a person has chosen."""
    for path in BOARDS.glob("*.json"):
        every = json.loads(path.read_text())["panels"]
        if len({panel["id"] for panel in every}) < len(every):
            yield path, 1, "two panels have one id"
        for panel in (panel for panel in every if panel["type"] not in {"row", "text"}):
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            if not panel.get("description"):
                yield path, 1, f"{panel['title']} has no description"
            if any(source["uid"] != "${datasource}" for source in sources):
                yield path, 1, f"{panel['title']} has a data source of its own"


def runbooks() -> Iterator[Fault]:
    """The dashboard of runbooks says what the document does, and panels link to its panels."""
    sections = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOKS.read_text(), re.M | re.S)
    books = {book["title"]: book for book in json.loads(BOOKS.read_text())["panels"]}
    for name, text in sections:
        if name not in books or books[name]["options"]["content"] != text.strip():
            yield RUNBOOKS, 1, f"{name} is not what {BOOKS.name} says"
    links = {f"Runbook: {name}": f"viewPanel={book['id']}" for name, book in books.items()}
    for path in BOARDS.glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for link in panel.get("links", ()):
                if link["url"] != f"/d/weir-runbooks?{links.get(link['title'])}":
                    yield path, 1, f"{panel['title']} links to another runbook: {link['title']}"


def recipes() -> Iterator[Fault]:
    """Each loads and is in the index, a twin by its parent; what a small one needs is there."""
    for path in {*INDEX.parent.rglob("*.toml")} - {*INDEX.parent.glob("tiny/*.toml")}:
        name = str(path.relative_to(INDEX.parent))
        if f"`{name.removeprefix('tiny/')}`" not in INDEX.read_text():
            yield INDEX, 1, f"{name} is not in the index"
        try:
            recipe = load_recipe(path)
        except ValueError as error:
            yield path, 1, " ".join(str(error).split())
            continue
        needed = [f"{recipe.model.path}/config.json", recipe.tasks.train, recipe.tasks.held_out]
        for file in filter(None, needed if name.startswith("tiny/") or "/" not in name else ()):
            if not (ROOT / file).is_file():
                yield path, 1, f"{file} is not there"


CHECKS = (
    paths,
    commands,
    blocks,
    architecture,
    written_files,
    places,
    shapes,
    metrics,
    panels,
    runbooks,
    recipes,
)

if __name__ == "__main__":
    faults = sorted(fault for check in CHECKS for fault in check())
    for path, number, text in faults:
        print(f"{name_of(path)}:{number}: {text}")
    sys.exit(bool(faults))
