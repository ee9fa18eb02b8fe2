"""How fast the page opens a large job: ``python -m tests.benchmarks.page``.

A real Chromium looks at a job of 2,000 steps and 100,000 samples. A table tells the seconds from
the click until each view stands, the first time and again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.contract.gateway.stack import KEY, a_gateway
from tests.contract.page.conftest import CHROMIUM, FLAGS, Site, a_models_root
from tests.contract.valkey_server import Server

GROUP_SIZE = 8
VIEWS = (
    ("curves", "", ".curve canvas"),
    ("evaluations", "/evaluations", ".heat td"),
    ("samples", "/samples", ".samples tbody tr"),
    ("samples, most wrong", "/samples?order=wrong", ".samples tbody tr"),
    ("samples with a text", "/samples?text=boxed%7B48", ".samples tbody tr"),
    ("one group", "/samples/train:100", ".tokens span"),
    ("jobs", None, ".jobs .spark"),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        a_models_root(Path(folder))
        with a_gateway(server, Path(folder)) as stack:
            site = Site(stack)
            job_id = site.a_run("large", steps=options.steps, done=options.steps, state="succeeded")
            site.keep_samples(job_id, options.samples // GROUP_SIZE)
            measure(stack.url, job_id)


def measure(url: str, job_id: str) -> None:
    """Open every view twice, in a browser that has seen none."""
    print(f"{'view':24} {'first':>7} {'again':>7}  seconds")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        context = browser.new_context(base_url=url)
        context.add_init_script(f"sessionStorage.setItem('weir.key', '{KEY}')")
        for name, path, wanted in VIEWS:
            link = "/#/" if path is None else f"/#/jobs/{job_id}{path}"
            first, again = (seconds(context.new_page(), link, wanted) for _ in range(2))
            print(f"{name:24} {first:7.2f} {again:7.2f}")
        browser.close()


def seconds(page: Page, link: str, wanted: str) -> float:
    """From a new tab's address until what is wanted stands in it."""
    began = time.monotonic()
    page.goto(link)
    page.locator(wanted).first.wait_for()
    took = time.monotonic() - began
    page.close()
    return took


if __name__ == "__main__":
    main()
