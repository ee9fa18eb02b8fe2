"""Request ids, the log, headers, metrics and file modes of a gateway."""

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.processes import free_ports
from tests.contract.gateway.stack import JOBS, KEY, Stack, a_gateway, upload, wait_until
from tests.contract.valkey_server import Server

pytestmark = pytest.mark.redis


@dataclass
class Traced:
    """A gateway whose log is read, and whose metrics have a port of their own."""

    stack: Stack
    log: Path
    metrics_url: str

    def lines(self, request_id: str) -> list[dict[str, Any]]:
        """Of a request, the last of which is written when the answer is out."""

        def read() -> list[dict[str, Any]]:
            whole = self.log.read_text().rpartition("\n")[0].splitlines()
            return [line for line in map(json.loads, whole) if line.get("request_id") == request_id]

        wait_until(lambda: any(line["message"] == "request" for line in read()))
        return read()


@pytest.fixture(scope="module")
def traced(gateway_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    port = next(free_ports())
    variables = {"WEIR_METRICS_PORT": str(port), "WEIR_TRUSTED_PROXIES": "192.0.2.9"}
    with (
        (folder / "log").open("wb") as stderr,
        a_gateway(gateway_server, folder, stderr=stderr, **variables) as stack,
    ):
        yield Traced(stack, folder / "log", f"http://127.0.0.1:{port}")


def test_an_answer_bears_the_id_of_its_lines_in_the_log(traced: Traced) -> None:
    with traced.stack.http() as http:
        reply = http.get(f"{JOBS}/ftjob-none", headers={"X-Request-Id": "mine-1"})
        body = upload(http)
    assert reply.headers["X-Request-Id"] == "mine-1"
    (line,) = traced.lines("mine-1")
    assert line["seconds"] >= 0
    assert line == line | {
        "message": "request",
        "level": "info",
        "method": "GET",
        "path": f"{JOBS}/ftjob-none",
        "route": f"{JOBS}/{{job_id}}",
        "status": 404,
        "key": "key-2",
        "address": "127.0.0.1",
        "bytes": len(reply.content),
    }
    (line,) = traced.lines(body.headers["X-Request-Id"])
    assert line["status"] == 200


@pytest.mark.parametrize("request_id", ["a b", "x" * 129, "é".encode()])
def test_an_id_that_a_log_cannot_hold_is_replaced(traced: Traced, request_id: str | bytes) -> None:
    headers: Any = {"X-Request-Id": request_id}
    with traced.stack.http() as http:
        new_id = http.get("/v1/files", headers=headers).headers["X-Request-Id"]
    assert new_id.startswith("req_")
    assert len(traced.lines(new_id)) == 1


def test_a_wrong_key_is_logged_with_its_request_and_never_itself(traced: Traced) -> None:
    with traced.stack.http("a-guessed-key") as stranger:
        reply = stranger.get("/v1/files", headers={"X-Forwarded-For": "198.51.100.7"})
    warning, request = traced.lines(reply.headers["X-Request-Id"])
    # The client is no proxy that is trusted.
    address = {"address": "127.0.0.1"}
    assert warning == warning | {
        "level": "warning",
        "message": "a wrong API key",
        **address,
    }
    assert request == request | {
        "status": 401,
        "key": None,
        **address,
    }
    assert "a-guessed-key" not in traced.log.read_text()
    assert KEY not in traced.log.read_text()


def test_every_answer_forbids_to_guess_its_type_and_the_page_lets_nothing_foreign_in(
    traced: Traced,
) -> None:
    page = ("/", "/static/js/main.js", "/static/css/base.css", "/static/icon.svg")
    with traced.stack.http() as http:
        for path in (*page, "/v1/files", f"{JOBS}/none", "/none", "/healthz"):
            reply = http.get(path)
            assert reply.headers.get_list("X-Content-Type-Options") == ["nosniff"], path
            policy = reply.headers.get("Content-Security-Policy", "")
            assert policy.startswith("default-src 'self';") or path not in page
        assert http.get("/static/../routes.py").status_code == 404


def test_metrics_on_a_port_of_their_own_are_nowhere_else(traced: Traced) -> None:
    with traced.stack.http() as http:
        assert http.get("/metrics").status_code == 404
    metrics = httpx.get(f"{traced.metrics_url}/metrics")
    assert metrics.headers["X-Content-Type-Options"] == "nosniff"
    assert "weir_requests_total" in metrics.text
    assert httpx.get(f"{traced.metrics_url}/v1/files").status_code == 404


def test_what_is_stored_is_for_its_owner_alone(traced: Traced) -> None:
    with traced.stack.http() as http:
        upload(http)
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode))
        for path in (traced.stack.data_dir, *traced.stack.data_dir.rglob("*"))
    }
    assert modes == {(True, 0o700), (False, 0o600)}


def test_health_and_metrics_are_open_and_count_the_requests(stack: Stack) -> None:
    with stack.http() as http:
        upload(http)  # makes the folder whose disk is measured
    with stack.http(None) as anyone:
        for method in ("GET", "MADEUP"):
            assert anyone.request(method, "/v1/files").status_code == 401
        disk = re.compile(r"^weir_data_(free|size)_bytes ([^0]\S*)$", re.MULTILINE)
        wait_until(lambda: len(disk.findall(anyone.get("/metrics").text)) == 2)
        metrics = anyone.get("/metrics").text
    for series in (
        'weir_requests_total{method="GET",route="none",status="401"}',
        'weir_requests_total{method="other",route="none",status="401"}',
        'weir_jobs{state="queued"}',
        'weir_backlog_entries{part="waiting",stream="graded"}',
    ):
        assert series in metrics
    assert "MADEUP" not in metrics
    assert re.search(r'^weir_service_starts_total{service="gateway"} [1-9]', metrics, re.MULTILINE)
    sizes = dict(disk.findall(metrics))
    assert 0 < float(sizes["free"]) < float(sizes["size"])


def test_the_page_and_the_probes_answer_a_head_and_no_tunnel(stack: Stack) -> None:
    with stack.http(None) as anyone:
        for path in ("/", "/healthz", "/readyz"):
            assert anyone.head(path).is_success
        assert anyone.request("CONNECT", "/healthz").status_code == 404
