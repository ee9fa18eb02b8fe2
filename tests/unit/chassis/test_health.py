"""The health check of the images."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from services.chassis import health


@pytest.fixture
def port() -> Iterator[str]:
    """A server that is well at /healthz, and nowhere else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 404)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield str(server.server_port)
    server.shutdown()
    server.server_close()


def test_a_service_that_answers_is_told_from_one_that_does_not(
    port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for value, status, response in (
        (port, 0, f"127.0.0.1:{port}/healthz answers"),
        ("1", 1, "127.0.0.1:1/healthz: "),
        ("", 1, "WEIR_PORT"),
    ):
        monkeypatch.setenv("WEIR_PORT", value)
        assert health.main() == status
        assert response in capsys.readouterr().out
