"""How ``weir`` behaves when something is odd: its environment, its reader, the server, a name."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.contract.gateway.stack import know, start_weir
from weir.__main__ import main


@contextmanager
def answering(answer: Any) -> Iterator[str]:
    """Where a server listens that answers as a gateway of another make would."""
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where nothing is known."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.parametrize("end", ["", "/v1/"])
def test_an_address_may_end_as_openais_does(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    with answering(a_page()) as url:
        monkeypatch.setenv("WEIR_URL", url + end)
        monkeypatch.setenv("WEIR_API_KEYS", "one,\ntwo")
        assert main(["jobs"]) == 0, capsys.readouterr().err


def test_ctrl_c_while_it_starts_leaves_no_traceback(here: Path) -> None:
    process = start_weir(here, "jobs", PYTHONVERBOSE="1")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("import 'protocol.recipe'"):
            break
    process.send_signal(signal.SIGINT)  # it still starts: nobody reads what it says meanwhile
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in rest


def test_it_ends_quietly_when_nobody_reads_its_output(here: Path) -> None:
    with answering(a_page(*[A_JOB] * 100)) as url:
        know(here, url)
        process = start_weir(here, "jobs")
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(timeout=60)) == ("", 141)


ODD = [
    b"<h1>It works!</h1>",
    b"[" * 100_000,
    {},
    {"data": [3], "has_more": False, "last_id": None},
    {"id": "j", "weir": {"step": 0, "steps": 10**400}},
]


@pytest.mark.parametrize("answer", ODD, ids=[str(answer)[:40] for answer in ODD])
def test_what_is_no_gateway_gets_a_message(
    here: Path, capsys: pytest.CaptureFixture[str], answer: Any
) -> None:
    with answering(answer) as url:
        know(here, url)
        for verb in ("jobs", "watch j", "why j", "evaluations j", "samples j k"):
            assert main(verb.split()) == 2, verb
            _, err = capsys.readouterr()
            assert err.startswith("weir: "), (verb, err)
            assert "is it a Weir gateway" in err, (verb, err)


A_JOB = {
    "id": "j",
    "status": "running",
    "model": "m",
    "weir": {"step": 1, "steps": 3, "recipe": {"name": "r"}},
    "estimated_finish": None,
}


def a_page(*objects: dict[str, Any]) -> dict[str, Any]:
    return {"data": objects, "has_more": False, "last_id": "1"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("jobs --limit 0", "--limit"),
        ("track --to tensorboard:runs", "--all"),
        ("track j --all --to tensorboard:runs", "--all"),
    ],
)
def test_words_that_make_no_command_are_named(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("job_id", ["../../files", "..", ""])
def test_what_is_no_id_of_a_job_asks_nothing_of_a_server(
    here: Path, job_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering({}) as url:
        know(here, url)
        assert main(["cancel", job_id]) == 2
    assert f"{job_id!r} is no id" in capsys.readouterr().err
