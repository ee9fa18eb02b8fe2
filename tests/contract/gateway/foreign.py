"""A server that answers whatever a test wants, as a gateway of another make would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Answers = Mapping[str, Any]  # by how a path ends; bytes are sent as they are, a list as events


@contextmanager
def answering(answers: Answers, status: int = 200) -> Iterator[str]:
    """Where it listens."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            answer = next(value for end, value in answers.items() if path.endswith(end))
            kind, body = _encoded(answer)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _encoded(answer: Any) -> tuple[str, bytes]:
    if isinstance(answer, bytes):
        return "text/html", answer
    if isinstance(answer, list):
        events = "".join(f"data: {json.dumps(event)}\n\n" for event in answer)
        return "text/event-stream", f"{events}data: [DONE]\n\n".encode()
    return "application/json", json.dumps(answer).encode()
