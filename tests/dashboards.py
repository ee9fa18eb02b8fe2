"""The dashboards as their JSON says, and a real Prometheus that answers their queries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from deploy.processes import free_ports

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "deploy/grafana/generated").glob("*.json"))
Json = dict[str, Any]
INTERVAL_S = 1  # between two scrapes


@dataclass(frozen=True)
class Query:
    """One expression of a panel or of an annotation."""

    expression: str
    is_instant: bool = False

    def filled(self, seconds: int) -> str:
        """The expression as Grafana would ask it: all jobs and services, over so many seconds."""
        step = max(INTERVAL_S, seconds // 300)
        values = {"__range": f"{seconds}s", "__rate_interval": f"{max(4, step + 1) * INTERVAL_S}s"}
        values |= {"job": ".*", "service": ".*"}
        return re.sub(r"\$(\w+)", lambda match: values[match[1]], self.expression)


def dashboard(file: Path) -> Json:
    return json.loads(file.read_text(encoding="utf-8"))


def panels(content: Json) -> list[Json]:
    """The panels that show data."""
    return [panel for panel in content["panels"] if panel["type"] not in {"row", "text"}]


def queries(panel: Json) -> list[Query]:
    return [Query(target["expr"], target.get("instant", False)) for target in panel["targets"]]


def marks(content: Json) -> list[tuple[str, Query]]:
    return [(each["name"], Query(each["expr"])) for each in content["annotations"]["list"]]


@dataclass
class Prometheus:
    """A process of Prometheus, with the deployment's configuration but other targets."""

    url: str
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, folder: Path, targets: Mapping[str, str]) -> Prometheus:
        """Begin to scrape.

        Args:
            targets: the service by the address of each of its processes, as HOST:PORT.
        """
        written = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        (of_weir,) = (each for each in written["scrape_configs"] if each["job_name"] == "weir")
        for key in ("dns_sd_configs", "relabel_configs"):
            del of_weir[key]
        of_weir["static_configs"] = [
            {"targets": [address], "labels": {"service": service}}
            for address, service in targets.items()
        ]
        written["scrape_configs"] = [of_weir]
        written["global"] |= {"scrape_interval": f"{INTERVAL_S}s", "scrape_timeout": "1s"}
        written["rule_files"] = [str(ROOT / "deploy/prometheus/rules.yml")]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(written))
        port = next(free_ports())
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        process = subprocess.Popen(command, stdout=sys.stderr)
        running = cls(f"http://127.0.0.1:{port}", process)
        deadline = time.monotonic() + 60
        while not running._is_ready():
            assert process.poll() is None, "prometheus has ended"
            assert time.monotonic() < deadline, "prometheus does not answer"
            time.sleep(0.1)
        return running

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(30)

    def now(self, expression: str, at: float) -> list[Json]:
        """The series that an expression has at a moment; each with its ``value``."""
        return self._get("query", query=expression, time=at)

    def answer(self, query: Query, since: float, until: float) -> list[Json]:
        """What Grafana would draw of a query; each series has its ``values``."""
        seconds = int(until - since)
        expression = query.filled(seconds)
        if query.is_instant:
            found = self.now(expression, until)
            return [{**series, "values": [series["value"]]} for series in found]
        times = {"start": since, "end": until, "step": max(1, seconds // 300)}
        return self._get("query_range", query=expression, **times)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=5).is_success
        except httpx.HTTPError:
            return False

    def _get(self, path: str, **parameters: str | float) -> list[Json]:
        response = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30)
        assert response.is_success, f"{parameters['query']}: {response.text}"
        return response.json()["data"]["result"]
