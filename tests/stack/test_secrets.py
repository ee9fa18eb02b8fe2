"""A running stack shows no secret: not in /proc, not in its logs, metrics, events or its page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.stack.conftest import Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
PAGES = ("/", "/metrics", "/openapi.json", "/healthz", "/readyz")


def secrets_in_files(process: psutil.Process) -> set[str]:
    """The texts of the files that the variables of a process name as those of its secrets."""
    files = [text for text in process.environ().values() if text.startswith("/proc/")]
    return {Path(file).read_text() for file in files}


def texts_of_process(process: psutil.Process) -> Iterator[tuple[str, str]]:
    """What others of its user see of a process."""
    for name in ("environ", "cmdline"):
        with suppress(OSError):  # it has just ended
            text = Path(f"/proc/{process.pid}/{name}").read_text(errors="replace")
            yield f"{name} of {process.pid}: {process.name()}", text


def test_no_process_and_no_answer_of_a_stack_shows_a_secret(
    stack: Stack, operator: dict[str, str]
) -> None:
    job = stack.submit(training={"steps": 100_000})  # a learner ends with its job
    stack.wait_for_step(job, 1)
    supervisor = psutil.Process(stack.supervisor.pid)
    leaders = {name: psutil.Process(pid) for name, pid in stack.leaders().items()}
    by_service = {name: secrets_in_files(process) for name, process in leaders.items()}
    urls = [text for texts in by_service.values() for text in texts if text.startswith("redis:")]
    passwords = {urlsplit(url).password or "" for url in urls} - {""}
    default = urlsplit(stack.facts["redis_url"]).password
    assert default
    secrets = {*operator.values(), default, *passwords}.union(*by_service.values())
    assert len(passwords) == len(leaders) - 1, "Valkey gets its configuration on standard input"

    holders = {name for name, texts in by_service.items() if operator["WEIR_API_KEYS"] in texts}
    assert holders == {"gateway"}
    assert operator["WEIR_JUDGE_API_KEY"] in by_service["grader"]
    assert all(operator["AWS_SECRET_ACCESS_KEY"] not in texts for texts in by_service.values())

    processes = [supervisor, *supervisor.children(recursive=True)]
    assert len(processes) > len(leaders) + 1, "engines and pool workers, too"
    places = dict(item for process in processes for item in texts_of_process(process))
    places |= {path: httpx.get(stack.facts["url"] + path).text for path in PAGES}
    places |= {url: httpx.get(url).text for url in stack.facts["metrics"].values()}
    places["job"] = str(stack.cancel(job))
    places["events"] = str(list(stack.weir.events(job)))
    for log in (stack.home / "logs").iterdir():
        places[log.name] = log.read_text(errors="replace")
    assert not [place for place, text in places.items() if any(map(text.__contains__, secrets))]
