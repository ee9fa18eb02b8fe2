"""Takes the pictures of the page that the README shows."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.contract.gateway.stack import KEY
from tests.contract.page.conftest import Site

pytestmark = [pytest.mark.redis, pytest.mark.long]
FOLDER = Path(__file__).parents[3] / "services/gateway/api/page/screenshots"


def test_curves_in_light_colours_and_a_group_of_samples_in_dark_ones(
    site: Site, browser: Browser
) -> None:
    first, other = (
        site.a_run(
            name,
            steps=220,
            done=220,
            state="succeeded",
            seed=seed,
        )
        for seed, name in enumerate(("demo-papo", "demo-grpo"), start=1)
    )
    site.keep_samples(first, 600)

    def opened(view: str, colours: str) -> Page:
        size = {"width": 1200, "height": 760}
        context = browser.new_context(viewport=size, color_scheme=colours)  # type: ignore[arg-type]
        context.add_init_script(f"sessionStorage.setItem('weir.key', '{KEY}')")
        page = context.new_page()
        page.goto(f"{site.stack.url}/#/jobs/{first}{view}")
        return page

    page = opened(f"?with={other}", "light")
    page.locator(".curve").first.locator(".value").nth(1).wait_for()
    page.locator(".u-over").first.hover(position={"x": 200, "y": 60})
    page.screenshot(path=FOLDER / "curves.png")
    page = opened("/samples/train:263?colour=surprise", "dark")
    page.locator(".tokens .mark.wrong [data-token]").first.hover()
    page.locator(".reading:not(:empty)").wait_for()
    page.screenshot(path=FOLDER / "samples.png")
