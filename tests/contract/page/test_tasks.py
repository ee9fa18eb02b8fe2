"""What a stranger wants of the page, each in at most four clicks from the list of 2,000 jobs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from protocol import streams

from tests.architecture.project import ROOT
from tests.contract.gateway.stack import TASKS, Client, a_checkpoint, a_gateway, a_job, a_model
from tests.contract.page import story
from tests.contract.page.conftest import Site
from tests.contract.valkey_server import Server

pytestmark = pytest.mark.redis
JOBS = 2000
MAX_CLICKS = 4
ARITHMETIC = ROOT / "examples/arithmetic"
JOB_INDEX = f"{streams.PREFIX}job_index"


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
                # A newer file has the same name.
                for tasks in ((ARITHMETIC / name).read_bytes(), TASKS):
                    files = {"file": (name, tasks)}
                    http.post("/v1/files", files=files, data={"purpose": "fine-tune"})
        site.end(site.a_run("trained"))
        a_checkpoint(
            up,
            site.a_run("to-go-on", steps=220, done=210, state="failed"),
            200,
        )
        for name in ("sweep-1", "sweep-2", "first-curve", "second-curve", "a-failure"):
            site.a_run(name, done=5, state="succeeded")
        site.submit("a-mistake")
        yield site


def fill(http: Client, server: Server, count: int) -> None:
    """Copy one job; all copies are older, and cancelled."""
    source = a_job(http, metadata={"team": "maths"})["id"]
    with server.client() as client:
        record: Any = client.hgetall(streams.job_key(source))
        newest: Any = client.zscore(JOB_INDEX, source)
        pipe = client.pipeline(transaction=False)
        for number in range(1, count):
            job_id = f"ftjob-{number:024x}"
            fields = {b"id": json.dumps(job_id), b"state": json.dumps("cancelled")}
            pipe.hset(streams.job_key(job_id), mapping=record | fields)
            pipe.zadd(JOB_INDEX, {job_id: newest - number})
        pipe.execute()


def follow(page: Page, name: str, _: str) -> None:
    page.get_by_role("main").get_by_role("link", name=name, exact=True).click()


def press(page: Page, name: str, _: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def tick(page: Page, name: str, _: str) -> None:
    page.get_by_label(re.compile(f"Compare {name} ")).check()


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label).select_option(option)


def write(page: Page, label: str, text: str) -> None:
    page.get_by_label(label, exact=True).fill(text)


CLICKS = {
    "link": follow,
    "button": press,
    "tick": tick,
    "choose": choose,
    "write": write,
}
_, _, *LINES = Path(__file__).with_name("tasks.txt").read_text().splitlines()[1:]
WISHES = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]


@pytest.mark.parametrize(("wish", "clicks", "place", "answer"), WISHES)
def test_a_wish_takes_at_most_four_clicks(
    page: Page, site: Site, wish: str, clicks: str, place: str, answer: str
) -> None:
    names = set[str]()
    page.on("download", lambda download: names.add(download.suggested_filename))
    page.goto("/#/")
    steps = clicks.split("; ") if clicks else []
    assert len(steps) <= MAX_CLICKS
    for step in steps:
        verb, _, target = step.partition(" ")
        label, _, value = target.partition(" = ")
        CLICKS[verb](page, label, value)
    expect(page.locator(place).first).to_contain_text(answer)
    while "Download all" in clicks and not names >= {"config.json", "model.safetensors"}:
        page.wait_for_event("download")
