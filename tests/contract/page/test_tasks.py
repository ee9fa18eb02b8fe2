"""What a stranger wants of the page, each in at most four clicks from the list of 2,000 jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect
from protocol import streams

from tests.contract.gateway.stack import TASKS, a_checkpoint, a_gateway, a_job, a_model
from tests.contract.page import story
from tests.contract.page.conftest import Site
from tests.contract.valkey_server import Server

pytestmark = pytest.mark.redis
JOBS = 2000
MAX_CLICKS = 4
QUEUED = 100  # of the jobs
JOB_INDEX = f"{streams.PREFIX}job_index"
Click = Callable[[Page], object]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway with 2,000 jobs, the first of which runs."""
    folder = tmp_path_factory.mktemp("tasks")
    for name in ("tiny", "examples/arithmetic/base-model"):
        a_model(folder / "models" / name)
    with Server(tmp_path_factory.mktemp("tasks-valkey")) as server, a_gateway(server, folder) as up:
        site = Site(up)
        running = site.a_run("long-run", steps=400, done=210)
        site.tell(running, story.evaluation_event(running, 100, 0.9))
        site.keep_samples(running, 8, first=1600)  # of step 100
        site.keep_samples(running, 8, first=3200)
        site.keep_samples(running, 8, purpose="eval")
        with up.http() as http:
            fill(http, server, JOBS)
            for name in ("train.jsonl", "held_out.jsonl"):
                files = {"file": (name, TASKS)}
                http.post("/v1/files", files=files, data={"purpose": "fine-tune"})
        site.end(site.a_run("trained"))
        a_checkpoint(up, site.a_run("to-go-on", steps=220, done=210, state="failed"), 200)
        for name in ("sweep-1", "sweep-2", "first-curve", "second-curve"):
            site.a_run(name, done=5, state="succeeded")
        site.submit("a-mistake")
        yield site


def fill(http: httpx.Client, server: Server, count: int) -> None:
    """Copy one job; the newest copies are queued, the others cancelled."""
    source = a_job(http, metadata={"team": "maths"})["id"]
    with server.client() as client:
        record: Any = client.hgetall(streams.job_key(source))
        newest: Any = client.zscore(JOB_INDEX, source)
        *_, entry = cast(Any, client.xrange(streams.JOBS.key()))
        pipe = client.pipeline(transaction=False)
        for number in range(1, count):
            job_id = f"ftjob-{number:024x}"
            state = "queued" if number <= QUEUED else "cancelled"
            fields = {b"id": json.dumps(job_id), b"state": json.dumps(state)}
            pipe.hset(streams.job_key(job_id), mapping=record | fields)
            pipe.zadd(JOB_INDEX, {job_id: newest - number})
            if number <= QUEUED:
                header = entry[1][b"header"].decode().replace(source, job_id)
                pipe.xadd(streams.JOBS.key(), {"header": header})
        pipe.execute()


def link(name: str) -> Click:
    return lambda page: page.get_by_role("main").get_by_role("link", name=name, exact=True).click()


def button(name: str) -> Click:
    return lambda page: page.get_by_role("button", name=name, exact=True).click()


def tick(name: str) -> Click:
    return lambda page: page.get_by_label(re.compile(f"Compare {name} ")).check()


def choose(label: str, option: str) -> Click:
    return lambda page: page.get_by_label(label).select_option(option)


def write(label: str, text: str) -> Click:
    return lambda page: page.get_by_label(label, exact=True).fill(text)


def send(text: str) -> Click:
    def fill_and_enter(page: Page) -> None:
        page.get_by_label("Message").fill(text)
        page.keyboard.press("Enter")

    return fill_and_enter


@dataclass(frozen=True)
class Wish:
    """What is clicked, where its answer is then, and the files that arrive."""

    clicks: Sequence[Click]
    place: Callable[[Page], Locator]
    answer: str
    files: Sequence[str] = ()


def part(selector: str) -> Callable[[Page], Locator]:
    return lambda page: page.locator(selector).first


WISHES = {
    "the job that runs": Wish((), part(".jobs tbody tr"), "long-run"),
    "why it stands": Wish((link("long-run"),), part(".why"), "no learner is running"),
    "what it answered wrongly at step 100": Wish(
        (link("long-run"), link("Samples"), choose("Correct", "no"), write("Step", "100")),
        *(part(".samples tbody tr"), "100"),
    ),
    "its best evaluation": Wish(
        (link("long-run"), link("Evaluations")), part(".panel h2 .soft"), "at step 100"
    ),
    "how a task went, by its text": Wish(
        (link("long-run"), link("Evaluations"), write("Find", "33-6+6")),
        *(part(".heat tbody"), "33-6"),
    ),
    "the model": Wish(
        (link("trained"), link("Download or fork"), button("Download all")),
        *(part("h1"), "trained", ("config.json", "model.safetensors")),
    ),
    "another learning rate from step 200 on": Wish(
        (link("to-go-on"), link("Model"), write("Its learning rate", "0.00003"),
         button("Fork from step 200")),
        *(part(".head"), "at step 200"),
    ),
    "an end to a job": Wish(
        (link("a-mistake"), button("Cancel"), button("Cancel the job")), part(".head"), "cancelled"
    ),
    "two curves in one chart": Wish(
        (write("Find", "-curve"), tick("first-curve"), tick("second-curve"),
         link("Compare 2 jobs")),
        *(part(".legend"), "second-curve"),
    ),
    "no finished job of the sweep any more": Wish(
        (choose("State", "succeeded"), write("Find", "sweep"), button("Delete all found"),
         button("Delete all found jobs that have ended")),
        *(part(".empty"), "No job fits"),
    ),
    "a word with two models": Wish(
        (link("trained"), link("Chat"), choose("Next to it", "tiny"), send("Hello")),
        lambda page: page.get_by_role("article").nth(1),
        "tiny",
    ),
    "an example of a job": Wish(
        (link("Submit a job"), choose("begin with an example", "demo.toml"),
         button("Submit demo-papo")),
        *(part("h1"), "demo-papo"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WISHES)
def test_a_wish_takes_at_most_four_clicks(page: Page, site: Site, name: str) -> None:
    wish = WISHES[name]
    assert len(wish.clicks) <= MAX_CLICKS
    arrived = set[str]()
    page.on("download", lambda download: arrived.add(download.suggested_filename))
    page.goto("/#/")
    for click in wish.clicks:
        click(page)
    expect(wish.place(page)).to_contain_text(wish.answer)
    while not arrived >= {*wish.files}:
        page.wait_for_event("download")
