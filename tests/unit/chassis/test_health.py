"""The health check of the images."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest


@pytest.fixture
def port() -> Iterator[int]:
    """A server that is well at /healthz, and nowhere else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def ask(port: str) -> tuple[int, str]:
    # A proxy is not asked for what is on this machine.
    settings = {"WEIR_PORT": port, "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "services.chassis.health"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout.strip()


def test_a_service_that_answers_is_told_from_one_that_does_not(port: int) -> None:
    assert ask(str(port)) == (0, f"http://127.0.0.1:{port}/healthz answers")
    status, said = ask("1")
    assert (status, "http://127.0.0.1:1/healthz" in said) == (1, True)
    status, said = ask("")
    assert (status, "WEIR_PORT" in said) == (1, True)
