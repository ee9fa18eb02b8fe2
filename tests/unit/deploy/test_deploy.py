"""The deployment files speak of services, variables and metrics that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SERVICES = {"gateway", "grader", "rollout", "learner"}
SOURCE = "\n".join(
    path.read_text() for folder in ("services", "proto") for path in (ROOT / folder).rglob("*.py")
)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_runs_every_service_from_one_dockerfile(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == SERVICES | {"redis", "prometheus", "judge"}
    for name in SERVICES:
        build = compose["services"][name]["build"]
        assert build["args"]["SERVICE"] == name
        assert (ROOT / build["dockerfile"]).is_file()


def test_only_the_front_doors_publish_ports(compose: dict[str, Any]) -> None:
    publishing = {name for name, service in compose["services"].items() if "ports" in service}
    assert publishing == {"gateway", "prometheus"}
    assert compose["networks"]["inside"]["internal"] is True


def test_the_containers_environment_is_one_that_the_services_read(compose: dict[str, Any]) -> None:
    for name in SERVICES:
        for variable in compose["services"][name]["environment"]:
            assert not variable.startswith("WEIR_") or f'"{variable}"' in SOURCE, variable


def test_rules_name_metrics_that_exist() -> None:
    rules = (ROOT / "deploy/prometheus/rules.yml").read_text()
    named = set(re.findall(r"\bweir_[a-z_]+", rules))
    assert len(named) >= 4
    defined = {name.removesuffix("_total") for name in re.findall(r'"(weir_[a-z_]+)"', SOURCE)}
    assert {name.removesuffix("_total") for name in named} <= defined
