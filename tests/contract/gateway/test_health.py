"""What the gateway says to probes and to Prometheus, without a key."""

from __future__ import annotations

import re

import pytest

from tests.contract.gateway.stack import Stack

pytestmark = pytest.mark.redis


def test_health_and_metrics_are_open_and_count_the_requests(stack: Stack) -> None:
    with stack.http(None) as anyone:
        assert anyone.get("/healthz").status_code == 200
        assert anyone.get("/readyz").status_code == 200
        anyone.get("/v1/files")
        metrics = anyone.get("/metrics").text
    assert 'weir_requests_total{method="GET",route="none",status="401"}' in metrics
    assert 'weir_jobs{state="queued"}' in metrics
    assert 'weir_backlog_entries{part="waiting",stream="graded"}' in metrics
    assert re.search(r'^weir_service_starts_total{service="gateway"} [1-9]', metrics, re.MULTILINE)
    assert "weir_phase_seconds_total{" not in metrics  # a gateway has no phases
    sizes = dict(re.findall(r"^weir_data_(free|size)_bytes (\S+)$", metrics, re.MULTILINE))
    assert 0 < float(sizes["free"]) < float(sizes["size"])


def test_methods_that_a_stranger_makes_up_are_no_series_of_their_own(stack: Stack) -> None:
    with stack.http(None) as anyone:
        for number in range(3):
            assert anyone.request(f"MADEUP{number}", "/v1/files").status_code == 401
        metrics = anyone.get("/metrics").text
    assert "MADEUP" not in metrics
    assert 'weir_requests_total{method="other",route="none",status="401"}' in metrics


def test_the_page_and_the_probes_answer_a_head_and_no_tunnel(stack: Stack) -> None:
    with stack.http(None) as anyone:
        assert anyone.head("/").status_code == 200
        assert anyone.head("/healthz").status_code == 200
        assert anyone.request("CONNECT", "/healthz").status_code == 404
