"""A real Chromium that looks at a real gateway on a real Valkey."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from protocol import streams
from protocol.messages import JobEvent

from tests.contract.gateway.stack import (
    KEY,
    RECIPE,
    Client,
    Stack,
    a_gateway,
    a_model,
    submit_job,
    take_up,
    tell,
)
from tests.contract.page import story
from tests.contract.valkey_server import Server

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ("--no-sandbox", "--disable-background-networking")
_PATIENCE_MS = 60_000
expect.set_options(timeout=_PATIENCE_MS)


@dataclass(frozen=True)
class Site:
    """A gateway with its page, and what a learner does behind it."""

    stack: Stack

    def submit(self, name: str, *, steps: int = 40, **training: float) -> str:
        """Queue a job, as a client does."""
        with self.stack.http() as http:
            return submit_job(
                http, recipe=RECIPE | {"name": name, "training": {"steps": steps, **training}}
            )

    def take_up(self, job_id: str, **values: Any) -> None:
        """Be the learner: begin an attempt, and write the job's state."""
        _aside(take_up, self.stack, job_id, **values)

    def tell(self, job_id: str, *events: JobEvent) -> None:
        """Record events of the job."""
        _aside(tell, self.stack, *events)

    def end(self, job_id: str) -> None:
        """Be the learner that has trained a model."""
        model = a_model(self.stack.job_folder(job_id) / "model")
        self.take_up(job_id, state="succeeded", result={"model": str(model)})

    def a_run(
        self,
        name: str,
        *,
        steps: int = 40,
        done: int = 30,
        state: str = "running",
        seed: int = 1,
        **training: float,
    ) -> str:
        """A job that has made some steps, and two evaluations."""
        job_id = self.submit(name, steps=steps, **training)
        self.take_up(job_id, state=state, step=done)
        with self.stack.server.client() as client:
            cost: dict[Any, str] = {
                "core_seconds:learner": "300",
                "core_seconds:rollout": "100",
                "active_seconds:job": "7200",
                "phase_seconds:learner/train": "200",
                "tokens:train/sampled": "5000",
                "tokens:train/dropped/no_signal": "1000",
            }
            client.hset(streams.cost_key(job_id), mapping=cost)
        self.tell(job_id, story.evaluation_event(job_id, 0, 0.3))
        self.tell(
            job_id,
            *story.step_events(job_id, range(1, done + 1), seed=seed),
        )
        self.tell(job_id, story.evaluation_event(job_id, done, 0.7))
        return job_id

    def keep_samples(
        self, job_id: str, groups: int, *, first: int = 0, purpose: str = "train"
    ) -> None:
        """Fill the job's sample store."""
        folder = self.stack.job_folder(job_id) / "samples"
        story.write_samples(folder, job_id, range(first, first + groups), purpose=purpose)


def _aside(work: Callable[..., Any], *args: Any, **values: Any) -> Any:
    """Run what has an event loop of its own: Playwright's runs in the test's thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work, *args, **values).result()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("page")
    a_model(folder / "models/tiny")
    with Server(tmp_path_factory.mktemp("page-valkey")) as server, a_gateway(server, folder) as up:
        yield Site(up)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a file: Playwright's event loop must not outlive it."""
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"{CHROMIUM} is missing")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def faults() -> list[str]:
    """What the browser complains of; empty at the end of each test."""
    return []


@pytest.fixture
def context(browser: Browser, site: Site) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=site.stack.url)
    context.set_default_timeout(_PATIENCE_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, faults: list[str]) -> Iterator[Page]:
    """A tab that knows the key. An error on its console, or against its policy, is a fault."""
    context.add_init_script(f"sessionStorage.setItem('weir.key', '{KEY}')")
    page = watched(context.new_page(), faults)
    yield page
    assert faults == []


def watched(page: Page, faults: list[str]) -> Page:
    """The page, whose faults are noted: a violation of its security policy is an error, too."""
    page.on(
        "console",
        lambda line: faults.append(line.text) if line.type == "error" else None,
    )
    page.on("pageerror", lambda error: faults.append(str(error)))
    return page


@pytest.fixture
def http(site: Site) -> Iterator[Client]:
    with site.stack.http() as client:
        yield client
