"""Alerts speak of metrics that exist, and `weir up` starts what the environment says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = "\n".join(
    path.read_text() for folder in ("services", "proto") for path in (ROOT / folder).rglob("*.py")
)


def test_rules_name_metrics_that_exist() -> None:
    rules = (ROOT / "deploy/prometheus/rules.yml").read_text()
    named = set(re.findall(r"\bweir_[a-z_]+", rules))
    assert len(named) >= 4
    defined = {name.removesuffix("_total") for name in re.findall(r'"(weir_[a-z_]+)"', SOURCE)}
    assert {name.removesuffix("_total") for name in named} <= defined
