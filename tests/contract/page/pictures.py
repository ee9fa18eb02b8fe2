"""Takes the pictures of the page that the README shows: ``python -m tests.contract.page.pictures``.

They show jobs that the tests make up, or with ``--url``, ``--key`` and ``--jobs`` those of a stack.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.contract.gateway.stack import KEY, a_gateway
from tests.contract.page.conftest import CHROMIUM, FLAGS, Site, a_models_root
from tests.contract.valkey_server import Server

FOLDER = Path(__file__).parents[3] / "services/gateway/page/screenshots"
SIZE = {"width": 1200, "height": 760}


def main() -> None:
    """Take both pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url")
    parser.add_argument("--key", default=KEY)
    parser.add_argument("--jobs", nargs="+", help="the first is shown, the others beside it")
    parser.add_argument("--group", default="train:263")
    options = parser.parse_args()
    if options.url:
        return take(options.url, options.key, options.jobs, options.group)
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        a_models_root(Path(folder))
        with a_gateway(server, Path(folder)) as stack:
            site = Site(stack)
            jobs = [
                site.a_run(name, steps=220, done=220, state="succeeded", seed=seed)
                for seed, name in enumerate(("demo-papo", "demo-grpo"), start=1)
            ]
            site.keep_samples(jobs[0], 600)
            take(stack.url, KEY, jobs, options.group)


def take(url: str, key: str, jobs: Sequence[str], group: str) -> None:
    """The curves of jobs in light colours, a group of the first one's samples in dark ones."""
    FOLDER.mkdir(exist_ok=True)
    first, *others = jobs
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        page = opened(browser, f"{url}/#/jobs/{first}?with={','.join(others)}", key, "light")
        page.locator(".curve").first.locator(".value").nth(len(others)).wait_for()
        page.locator(".u-over").first.hover(position={"x": 200, "y": 60})
        page.screenshot(path=FOLDER / "curves.png")
        link = f"{url}/#/jobs/{first}/samples/{group}?colour=surprise"
        page = opened(browser, link, key, "dark")
        page.locator(".tokens .mark.wrong [data-token]").first.hover()
        page.locator(".reading:not(:empty)").wait_for()
        page.screenshot(path=FOLDER / "samples.png")
        browser.close()


def opened(browser: Browser, link: str, key: str, colours: str) -> Page:
    """A tab of its own, in these colours."""
    is_dark = colours == "dark"
    context = browser.new_context(viewport=SIZE, color_scheme="dark" if is_dark else "light")  # type: ignore[arg-type]
    context.add_init_script(f"sessionStorage.setItem('weir.key', '{key}')")
    page = context.new_page()
    page.goto(link)
    return page


if __name__ == "__main__":
    main()
