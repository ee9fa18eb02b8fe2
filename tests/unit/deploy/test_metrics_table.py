"""The table of metrics is read from the code as it stands."""

from pathlib import Path

from deploy.metrics_table import Metric, metrics_of, table

CODE = """
from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
_JOB = ("job", "recipe")
A = Counter("weir_a_total", "Counts | this", ["why"])
B = [GaugeMetricFamily("weir_b", "Shows " "that", labels=[*_JOB, "name"])]
C = Counter(x for x in ())
"""


def test_metrics_are_found_with_their_labels_and_constants_in_them(tmp_path: Path) -> None:
    for part in ("chassis", "grader"):
        (tmp_path / "services" / part).mkdir(parents=True)
    (tmp_path / "services/grader/x.py").write_text(CODE)
    (tmp_path / "services/chassis/y.py").write_text(
        'from prometheus_client import Gauge\nG = Gauge("weir_c", "All have it")\n'
    )
    assert metrics_of(tmp_path) == [
        Metric("weir_a_total", "counter", ("why",), "grader", "Counts | this"),
        Metric("weir_b", "gauge", ("job", "recipe", "name"), "grader", "Shows that"),
        Metric("weir_c", "gauge", (), "every", "All have it"),
    ]
    assert "| `weir_a_total` | counter | `why` | grader | Counts \\| this |\n" in table(tmp_path)
