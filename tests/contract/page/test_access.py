"""The page for everyone: no serious fault in any view, light or dark, nor on a phone."""

from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, expect

from tests.contract.page import story
from tests.contract.page.conftest import Site

pytestmark = pytest.mark.redis

ONLY_FAULTS = {"resultTypes": ["violations"]}
RULES = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}  # nothing else differs
VIEWS = {
    "": "h1",
    "submit": "textarea",
    "chat?model={job}&with=tiny": ".tasks",
    "jobs/{job}": ".curve canvas",
    "jobs/{job}?with={other}": ".legend",
    "jobs/{job}/evaluations": ".heat",
    "jobs/{job}/samples": ".samples tbody tr",
    "jobs/{job}/samples?task=arithmetic-003": ".timeline a",
    "jobs/{job}/samples/train:3": ".card",
    "jobs/{job}/flow": ".ledger",
    "jobs/{job}/model": ".panel h2",
    "jobs/{job}/events": ".events li",
    "jobs/{job}/recipe": ".settings",
}


@pytest.fixture(scope="module")
def jobs(site: Site) -> dict[str, str]:
    job = site.a_run("seen-by-all", state="failed")
    site.tell(
        job,
        *(story.evaluation_event(job, step, 0.5) for step in range(1, 30)),
    )
    site.keep_samples(job, 8)
    return {"job": job, "other": site.a_run("beside-it", done=12, state="succeeded")}


def opened(page: Page, view: str, jobs: dict[str, str]) -> None:
    page.goto("/#/" + view.format(**jobs))
    expect(page.locator(VIEWS[view]).first).to_be_visible()


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_no_serious_fault(
    colours: Literal["light", "dark"], page: Page, jobs: dict[str, str]
) -> None:
    page.emulate_media(color_scheme=colours)
    serious = {}
    for view in VIEWS:
        opened(page, view, jobs)
        violations = Axe().run(page, options=ONLY_FAULTS | RULES[colours]).response["violations"]
        nodes = [
            f"{fault['id']}: {node['html']}"
            for fault in violations
            if fault["impact"] in {"serious", "critical"}
            for node in fault["nodes"]
        ]
        if nodes:
            serious[view] = nodes
    assert serious == {}


def test_a_phone_scrolls_no_view_sideways(
    context: BrowserContext, page: Page, jobs: dict[str, str]
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    widths = {}
    for view in VIEWS:
        opened(page, view, jobs)
        widths[view] = page.evaluate("document.documentElement.scrollWidth")
    assert {view: width for view, width in widths.items() if width > 390} == {}
