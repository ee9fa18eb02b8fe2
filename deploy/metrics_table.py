"""``python -m deploy.metrics_table``: write the table of all metrics, docs/reference/metrics.md.

With ``--check`` it writes nothing and fails where the table is not what the code exports. It reads
the code without importing it, so it needs no service's packages.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs/reference/metrics.md"
_KINDS = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Histogram": "histogram",
}
_HEAD = """\
# Metrics

What the services export at `/metrics`, written from the code by `python -m deploy.metrics_table`.
The gateway exports `weir_job_*` for the newest 20 jobs and all unfinished ones. A histogram has the
series `_bucket`, `_sum` and `_count`.

| metric | type | labels | service | meaning |
|---|---|---|---|---|
"""


@dataclass(frozen=True, order=True)
class Metric:
    """One row of the table; ``service`` is "every" for what all of them export."""

    name: str
    kind: str
    labels: tuple[str, ...]
    service: str
    meaning: str

    @property
    def row(self) -> str:
        """The metric in Markdown."""
        labels = ", ".join(f"`{label}`" for label in self.labels)
        meaning = self.meaning.replace("|", "\\|")
        return f"| `{self.name}` | {self.kind} | {labels} | {self.service} | {meaning} |"


def metrics_of(root: Path = ROOT) -> list[Metric]:
    """Every metric that the code below ``services`` defines, by name."""
    found: set[Metric] = set()
    for path in sorted((root / "services").rglob("*.py")):
        text, part = path.read_text(), path.relative_to(root / "services").parts[0]
        if "prometheus_client" in text:
            service = "every" if part == "chassis" else part
            found |= set(_metrics_in(ast.parse(text), service))
    return sorted(found)


def table(root: Path = ROOT) -> str:
    """The text of the document."""
    return _HEAD + "".join(f"{metric.row}\n" for metric in metrics_of(root))


def _metrics_in(module: ast.Module, service: str) -> Iterator[Metric]:
    constants = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        texts = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
        if node.func.id in _KINDS and len(texts) == 2 and str(texts[0]).startswith("weir_"):
            name, meaning = map(str, texts)
            labels = _texts(_labels_of(node), constants)
            yield Metric(name, _KINDS[node.func.id], labels, service, meaning)


def _labels_of(call: ast.Call) -> ast.expr | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg in {"labelnames", "labels"}]
    return next(iter([*call.args[2:3], *named]), None)


def _texts(node: ast.expr | None, constants: Mapping[str, ast.expr]) -> tuple[str, ...]:
    """The texts in a display of them, in which module-level constants may stand for others."""
    match node:
        case ast.Constant(value=str(text)):
            return (text,)
        case ast.Name(id=name):
            return _texts(constants.get(name), constants)
        case ast.Starred(value=value):
            return _texts(value, constants)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return tuple(text for part in parts for text in _texts(part, constants))
    return ()


def main(arguments: list[str]) -> str | None:
    """Write or check the table; what is wrong, if anything is."""
    if "--check" not in arguments:
        TABLE.write_text(table())
    elif not TABLE.is_file() or TABLE.read_text() != table():
        return f"{TABLE.relative_to(ROOT)} is not up to date: run python -m deploy.metrics_table"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
