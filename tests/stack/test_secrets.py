"""A running stack shows no secret: not in /proc, not in its logs, metrics, events or its page."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.stack.conftest import Stack, a_stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
ENDLESS = {"steps": 100_000, "groups_per_step": 2}  # a learner ends with its job


@pytest.fixture
def operator() -> dict[str, str]:
    """Secrets in the variables of the person who starts the stack."""
    names = ("WEIR_API_KEYS", "WEIR_JUDGE_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")
    return {name: secrets.token_hex(16) for name in names}


@pytest.fixture
def stack(tmp_path: Path, operator: dict[str, str]) -> Iterator[Stack]:
    with a_stack(tmp_path, **operator) as stack:
        yield stack


def secrets_in_files(process: psutil.Process) -> set[str]:
    """What the files hold that the variables of a process name as those of its secrets."""
    files = [text for text in process.environ().values() if text.startswith("/proc/")]
    return {Path(file).read_text() for file in files}


def appearances(process: psutil.Process, known: set[str]) -> Iterator[str]:
    """Where a process shows one of the secrets to others of its user."""
    for name in ("environ", "cmdline"):
        with suppress(OSError):  # it has just ended
            shown = Path(f"/proc/{process.pid}/{name}").read_bytes()
            if any(secret.encode() in shown for secret in known):
                yield f"{name} of {process.pid}: {process.name()}"


def test_no_process_and_no_answer_of_a_stack_shows_a_secret(
    stack: Stack, operator: dict[str, str]
) -> None:
    job = stack.submit(training=ENDLESS)
    stack.wait_for_step(job, 1)
    supervisor = psutil.Process(stack.supervisor.pid)
    leaders = {name: psutil.Process(pid) for name, pid in stack.leaders().items()}
    by_service = {name: secrets_in_files(process) for name, process in leaders.items()}
    default = urlsplit(stack.facts["redis_url"]).password
    assert default
    urls = {text for texts in by_service.values() for text in texts if text.startswith("redis:")}
    passwords = {password for url in urls if (password := urlsplit(url).password)}
    known = {*operator.values(), default, *passwords}.union(*by_service.values())
    assert len(passwords) == len(leaders) - 1, "Valkey gets its configuration on standard input"

    holders = {name for name, texts in by_service.items() if operator["WEIR_API_KEYS"] in texts}
    assert holders == {"gateway"}
    assert operator["WEIR_JUDGE_API_KEY"] in by_service["grader"]
    assert all(operator["AWS_SECRET_ACCESS_KEY"] not in texts for texts in by_service.values())

    processes = [supervisor, *supervisor.children(recursive=True)]
    assert len(processes) > len(leaders) + 1, "engines and pool workers, too"
    shown = [place for process in processes for place in appearances(process, known)]
    for path in ("/", "/metrics", "/openapi.json", "/healthz", "/readyz"):
        text = httpx.get(stack.facts["url"] + path).text
        shown += [path for secret in known if secret in text]
    for name, url in stack.facts["metrics"].items():
        text = httpx.get(url).text
        shown += [f"metrics of {name}" for secret in known if secret in text]
    told = f"{stack.cancel(job)} {stack.events(job)}"  # they are told until the job ends
    shown += ["events" for secret in known if secret in told]
    for log in (stack.home / "logs").iterdir():
        text = log.read_text(errors="replace")
        shown += [log.name for secret in known if secret in text]
    assert not shown
