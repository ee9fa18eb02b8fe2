"""What a person does on the page, in a real browser."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import BrowserContext, Dialog, Page, Route, expect

from tests.builders import as_dict
from tests.contract.gateway.stack import KEY, TASKS, a_checkpoint, a_model
from tests.contract.page import story
from tests.contract.page.conftest import Site

pytestmark = pytest.mark.redis

RECIPE = """
name = "pasted"
[model]
path = "tiny"
dtype = "float32"
max_context = 64
[tasks]
train = "train.jsonl"
[rollout]
group_size = 4
sampling = { max_tokens = 16 }
[reward]
process = "equation_steps"
[training]
steps = 30
groups_per_step = 4
"""


@pytest.fixture(scope="module")
def run(site: Site) -> str:
    """A job with curves and samples, for who only looks."""
    job_id = site.a_run("looked-at", state="succeeded")
    site.keep_samples(job_id, 60)
    return job_id


def test_a_wrong_key_is_refused_and_the_right_one_opens(
    context: BrowserContext, site: Site
) -> None:
    page = context.new_page()
    page.goto("/#/submit")
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_contain_text("does not know this key")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name="Submit a job")).to_be_visible()
    assert page.evaluate("localStorage.length") == 0
    page.evaluate("sessionStorage.setItem('weir.key', 'revoked')")
    page.get_by_role("link", name="Jobs").click()
    expect(page.get_by_label("API key")).to_be_visible()


def test_a_pasted_recipe_shows_its_plan_and_becomes_a_job(
    page: Page, tmp_path: Path, faults: list[str], http: httpx.Client
) -> None:
    tasks = tmp_path / "train.jsonl"
    tasks.write_text(TASKS)
    page.goto("/#/submit")
    page.get_by_label("or paste it").fill(RECIPE.replace("group_size", "groupsize"))
    page.get_by_role("button", name="Check and plan").click()
    expect(page.get_by_role("alert")).to_contain_text("rollout.groupsize: unknown key")
    assert all("400" in fault for fault in faults), faults
    faults.clear()
    page.get_by_label("or paste it").fill(RECIPE)
    page.get_by_role("button", name="Check and plan").click()
    expect(page.get_by_text("30 steps × 16 = 480")).to_be_visible()
    page.get_by_label("Tasks to train on: new file").set_input_files(tasks)
    page.get_by_role("button", name="Submit pasted").click()
    expect(page.get_by_role("heading", name="pasted")).to_be_visible()
    job = http.get(f"/v1/fine_tuning/jobs/{page.url.rsplit('/', 1)[1]}").json()
    assert job["weir"]["recipe"]["training"]["steps"] == 30
    assert job["weir"]["recipe"]["rollout"]["group_size"] == 4


def test_a_recipe_is_copied_as_toml_and_changed_for_a_job_on_files_that_are_there(
    page: Page, site: Site, http: httpx.Client
) -> None:
    first = http.get(f"/v1/fine_tuning/jobs/{site.submit('to-copy')}").json()
    page.goto(f"/#/jobs/{first['id']}/recipe")
    shown = page.get_by_role("region", name="Recipe as TOML")
    expect(shown.get_by_text("lambda_process = ")).to_have_class("soft")
    expect(shown.get_by_text("group_size = 4")).not_to_have_class("soft")
    page.get_by_role("link", name="Submit a changed copy").click()
    text = page.get_by_label("or paste it")
    expect(text).to_have_value(re.compile("to-copy"))
    recipe = text.input_value()
    text.fill(recipe.replace("learning_rate = 0.000001", "learning_rate = 0.00001"))
    page.get_by_role("button", name="Check and plan").click()
    expect(page.get_by_label("Tasks to train on")).to_have_value(first["training_file"])
    page.get_by_role("button", name="Submit to-copy").click()
    expect(page.get_by_role("heading", name="to-copy", level=1)).to_be_visible()
    second = http.get(f"/v1/fine_tuning/jobs/{page.url.rsplit('/', 1)[1]}").json()
    assert (second["model"], second["training_file"]) == (first["model"], first["training_file"])
    was, own = (job["weir"]["recipe"] for job in (first, second))
    rate = own["optimizer"]["learning_rate"]
    assert rate == pytest.approx(10 * was["optimizer"]["learning_rate"])
    assert own == was | {"optimizer": was["optimizer"] | {"learning_rate": rate}}


def test_an_example_recipe_can_be_submitted_as_it_is(page: Page) -> None:
    page.goto("/#/submit")
    page.get_by_label("begin with an example").select_option("my first")
    expect(page.get_by_role("button", name="Submit my-first")).to_be_visible()


def test_a_curve_moves_while_the_job_runs_and_after_its_line_broke(
    page: Page, context: BrowserContext, site: Site, faults: list[str]
) -> None:
    job_id = site.a_run("running", done=5)
    resumed = []
    page.on("request", lambda request: resumed.append(request.headers.get("last-event-id")))
    page.goto(f"/#/jobs/{job_id}?smooth=0&curves=reward")
    value = page.locator(".curve .value")
    *_, last = story.step_events(job_id, range(1, 6))
    expect(value).to_have_text(f"{as_dict(last)['reward']:.3f}")
    context.set_offline(True)
    for step in range(6, 9):
        (event,) = story.step_events(job_id, range(step, step + 1), seed=step)
        site.tell(job_id, event)
        context.set_offline(False)
        expect(value).to_have_text(f"{as_dict(event)['reward']:.3f}")
    assert any(resumed)
    faults[:] = [fault for fault in faults if "ERR_INTERNET_DISCONNECTED" not in fault]


def test_a_hidden_page_gives_up_its_line_and_catches_up_when_it_is_seen(
    page: Page, site: Site
) -> None:
    job_id = site.a_run("hidden", done=5)
    with page.expect_response(re.compile("stream=true")):
        page.goto(f"/#/jobs/{job_id}?smooth=0&curves=reward")
    value = page.locator(".curve .value")
    expect(value).to_be_visible()
    show = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange", { bubbles: true }));
    }"""
    with page.expect_event("requestfailed", lambda request: "stream=true" in request.url):
        page.evaluate(show, True)
    (event,) = story.step_events(job_id, range(6, 7), seed=6)
    site.tell(job_id, event)
    with page.expect_request(re.compile("stream=true")) as going_on:
        page.evaluate(show, False)
    assert going_on.value.headers["last-event-id"]
    expect(value).to_have_text(f"{as_dict(event)['reward']:.3f}")


def test_two_jobs_are_chosen_and_compared_in_one_chart(page: Page, site: Site, run: str) -> None:
    other = site.a_run("other", done=12, state="succeeded")
    page.goto("/#/")
    page.get_by_label(re.compile(run)).check()
    page.get_by_label(re.compile(other)).check()
    page.get_by_role("link", name="Compare 2 jobs").click()
    expect(page.get_by_label("Compared jobs").get_by_role("link", name="other")).to_be_visible()
    expect(page.locator(".curve").first.locator(".value")).to_have_count(2)


def test_pause_is_asked_for_and_cancel_only_after_a_question(
    page: Page, site: Site, http: httpx.Client
) -> None:
    job_id = site.a_run("stopped", done=3)

    def requested() -> str:
        return http.get(f"/v1/fine_tuning/jobs/{job_id}").json()["weir"]["requested"]

    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert requested() == "pause"
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Keep it").click()
    assert requested() == "run"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_text("cancelling")).to_be_visible()
    assert requested() == "cancel"


def test_the_running_job_is_shown_before_newer_ones_and_filters_are_the_servers(
    page: Page, site: Site
) -> None:
    name = f"pinned-{secrets.token_hex(4)}"
    running = site.submit(name)
    site.take_up(running, state="running", step=3)
    newer = [site.submit(f"{name}-newer") for _ in range(22)]
    page.goto("/#/")
    rows = page.locator(".jobs tbody tr")
    expect(rows.filter(has_text=running)).to_have_count(1)
    page.get_by_label("Find").fill(name.upper())
    page.get_by_label("State").select_option("running")
    expect(rows).to_have_count(1)
    page.get_by_label("State").select_option("queued")
    expect(rows.first).to_contain_text(newer[-1])
    expect(rows.first).to_contain_text("in the queue")


def test_an_ended_job_is_forked_downloaded_and_deleted(
    page: Page, site: Site, http: httpx.Client
) -> None:
    job_id = site.submit("to-go-on")
    a_checkpoint(site.stack, job_id, 2, reward=0.5)
    model = a_model(site.stack.data_dir / "jobs" / job_id / "model")
    site.take_up(job_id, state="succeeded", result={"model": str(model)})
    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("link", name="Download or fork").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download config.json").click()
    assert Path(download.value.path()).read_text() == "{}"
    page.get_by_label("Its learning rate").fill("0.00003")
    page.get_by_role("button", name="Fork from step 2").click()
    expect(page.get_by_text(f"from {job_id} at step 2")).to_be_visible()
    fork = http.get(f"/v1/fine_tuning/jobs/{page.url.rsplit('/', 1)[1]}").json()
    assert fork["weir"]["recipe"]["optimizer"]["learning_rate"] == 0.00003
    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete the job").click()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert http.get(f"/v1/fine_tuning/jobs/{job_id}").status_code == 404


def test_samples_are_filtered_and_one_is_opened_with_its_grades(page: Page, run: str) -> None:
    page.goto(f"/#/jobs/{run}/samples")
    page.get_by_label("Correct").select_option("no")
    page.get_by_label("Order").select_option("oldest first")
    expect(page.locator(".samples tbody")).not_to_contain_text("right")
    expect(page.locator(".samples .texts").first).to_contain_text("boxed")
    page.get_by_label("Step", exact=True).fill("2")
    rows = page.locator(".samples tbody tr")
    expect(rows.first.locator("td").first).to_have_text("2")
    assert "correct=false" in page.url
    assert "step=2" in page.url
    rows.first.get_by_role("link").first.click()
    card = page.get_by_role("article").first
    for name in ("A_out", "A_proc", "A_total", "reward"):
        expect(card.get_by_text(name, exact=True)).to_be_visible()
    expect(page.get_by_text("Each step follows").first).to_be_visible()
    expect(page.locator(".mark.wrong sup").first).to_have_text("✗")


def test_a_search_goes_on_by_itself_until_it_finds_something(page: Page, run: str) -> None:
    held: list[Route] = []

    def takes_long(route: Route) -> None:
        """At first the gateway has found nothing, and says where to go on."""
        url, _, place = route.request.url.partition("&after=")
        if place:
            held.append(route)
            return
        route.fulfill(json=route.fetch(url=url).json() | {"data": [], "has_more": True})

    page.route(re.compile("text="), takes_long)
    with page.expect_request(re.compile("text=.*after=")):
        page.goto(f"/#/jobs/{run}/samples?step=1&text=46-")  # a few groups of the step hold it
    expect(page.get_by_role("status")).to_have_text("Searching…")
    expect(page.get_by_role("button", name="More")).to_have_count(0)
    held[0].continue_(url=held[0].request.url.partition("&after=")[0])
    rows = page.locator(".samples tbody tr")
    expect(rows.first).to_be_visible()
    page.goto(f"/#/jobs/{run}/samples?step=1&task=nobody")
    expect(page.get_by_role("status")).to_have_text("No sample is like that.")


def test_tokens_are_coloured_by_what_is_chosen_and_tell_their_numbers(page: Page, run: str) -> None:
    page.goto(f"/#/jobs/{run}/samples/train:20")
    text = page.get_by_role("group", name=re.compile("Text of response 0"))
    colours = "node => [...node.querySelectorAll('[data-token]')].map(part => part.className)"
    expect(text.locator("[data-token]").first).to_be_visible()
    assert all(re.match("up|down", name) for name in text.evaluate(colours) if name)
    page.get_by_label("Colour by").select_option("surprise")
    expect(text.locator("[class^=at]").first).to_be_visible()
    text.focus()
    page.keyboard.press("ArrowRight")
    reading = page.locator(".reading:not(:empty)")
    for name in ("advantage", "surprise", "entropy", "parity gap"):
        expect(reading).to_contain_text(name)
    text.locator(".mark.wrong, .mark.right").first.hover()
    expect(reading).to_contain_text(re.compile("right|wrong"))


def test_what_is_not_the_policys_own_is_shown_apart_and_without_numbers(
    page: Page, run: str
) -> None:
    page.goto(f"/#/jobs/{run}/samples/train:{story.EPISODES}?colour=surprise")
    text = page.get_by_role("group", name=re.compile("Text of response 0"))
    foreign, reading = text.locator(".foreign"), page.locator(".reading:not(:empty)")
    expect(foreign.first).to_be_visible()
    shown = {int(each.get_attribute("data-token") or -1) for each in foreign.all()}
    count = int(text.locator("[data-token]").last.get_attribute("data-token") or 0) + 1
    assert shown == {token for token in range(count) if token % 9 >= 6}
    foreign.first.hover()
    expect(reading).to_contain_text("of a tool or the environment")
    expect(reading).not_to_contain_text("nats")
    expect(page.get_by_role("article").first).to_contain_text(f"{count - len(shown)} tokens")


def test_an_episode_shows_its_conversation_and_what_the_environment_says(
    page: Page, run: str
) -> None:
    page.goto(f"/#/jobs/{run}/samples/train:{story.EPISODES}")
    first, last = (page.get_by_role("article").nth(place) for place in (0, 7))
    played = first.get_by_label("Episode")
    expect(played).to_contain_text("0.500")
    expect(played.get_by_role("listitem").filter(has_text="user")).to_contain_text("=?")
    assert [each.inner_text().split()[0] for each in played.get_by_role("listitem").all()] == [
        *("user", "assistant", "tool")
    ]
    assert [each.inner_text()[:4] for each in played.locator(".foreign").all()] == ["user", "tool"]
    expect(last.get_by_label("Episode")).to_contain_text("not over in 600 s")
    expect(last).to_contain_text("ungradable")
    expect(last.locator(".tokens")).to_have_count(0)


def test_keys_go_from_group_to_group_of_the_list_and_say_what_they_do(page: Page, run: str) -> None:
    page.goto(f"/#/jobs/{run}/samples/train:10?order=oldest")
    here = page.locator("h2.key")
    expect(page.get_by_role("article").first).to_be_visible()
    page.keyboard.press("j")
    expect(here).to_have_text("train:11")
    page.keyboard.press("k")
    expect(here).to_have_text("train:10")
    page.keyboard.press("ArrowLeft")
    expect(here).to_have_text("train:9")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("previous group")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("u")
    expect(page.get_by_label("Order")).to_have_value("oldest")


def test_evaluations_time_ledger_events_and_recipe_are_told(page: Page, run: str) -> None:
    told = {"data": [{"task_id": "arithmetic-016", "prompt": "46-5+8+19=?"}], "has_more": False}
    page.route("**/samples?purpose=eval*", lambda route: route.fulfill(json=told))
    page.goto(f"/#/jobs/{run}/evaluations")
    expect(page.get_by_role("link", name="46-5+8+19=?")).to_be_visible()
    expect(page.get_by_role("region", name="Results")).to_contain_text("95 % interval")
    expect(page.get_by_role("region", name="Tasks").get_by_role("row")).to_have_count(41)
    page.get_by_role("link", name="Time & flow").click()
    expect(page.get_by_text("wait for groups")).to_be_visible()
    cost = page.get_by_role("list", name="Core-seconds by service")
    expect(cost).to_contain_text(re.compile("all 7 min.*learner 75.0.*rollout 25.0"))
    ledger = r"492 asked\s*=\s*477 used\s*\+\s*3 dropped\s*\+\s*12 under way"
    expect(page.locator(".ledger")).to_contain_text(re.compile(ledger))
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_text("evaluation at step 30")).to_be_visible()
    page.get_by_role("link", name="Recipe").click()
    expect(page.get_by_text("lambda_process")).to_be_visible()


def test_what_a_model_writes_is_text_and_never_markup(
    page: Page, site: Site, faults: list[str]
) -> None:
    def refuse(dialog: Dialog) -> None:
        faults.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", refuse)
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e"
    job_id = site.a_run(evil[:64], done=2)
    site.tell(job_id, story.an_event(job_id, "evil", evil))
    page.goto(f"/#/jobs/{job_id}/events")
    told = evil.replace("\u202e", "⟨U+202E⟩")
    expect(page.get_by_role("list").get_by_text(told, exact=True)).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text(told)
    assert page.locator("main img, main script").count() == 0


def test_the_policy_of_the_page_lets_nothing_foreign_in(site: Site) -> None:
    with httpx.Client(base_url=site.stack.url) as http:
        for path in ("/", "/static/js/main.js", "/static/css/base.css", "/static/icon.svg"):
            reply = http.get(path)
            assert reply.status_code == 200
            assert reply.headers["content-security-policy"].startswith("default-src 'self';")
        assert http.get("/static/../routes.py").status_code == 404


def test_a_view_that_a_gateway_does_not_have_says_so(
    page: Page, site: Site, faults: list[str]
) -> None:
    job_id = site.a_run("without-samples", done=2, state="succeeded")
    page.goto(f"/#/jobs/{job_id}/samples/train:7")
    expect(page.get_by_text("There is no such sample any more")).to_be_visible()
    page.goto("/#/jobs/ftjob-none")
    expect(page.get_by_text("There is no such job")).to_be_visible()
    assert all("404" in fault for fault in faults)
    faults.clear()


def test_the_last_step_and_an_evaluation_long_before_it_are_told(
    site: Site, http: httpx.Client
) -> None:
    job_id = site.submit("latest")
    nothing = http.get(f"/v1/page/jobs/{job_id}/latest").json()
    assert (nothing["metrics"], nothing["evaluation"], nothing["rewards"]) == (None, None, [])
    site.tell(job_id, story.evaluation_event(job_id, 0, 0.4))
    events = list(story.step_events(job_id, range(1, 151)))
    site.tell(job_id, *events, story.an_event(job_id, "last", "a message"))
    told = http.get(f"/v1/page/jobs/{job_id}/latest").json()
    assert told["metrics"] == as_dict(events[-1])
    assert told["rewards"] == [as_dict(event)["reward"] for event in events[-40:]]
    assert told["evaluation"]["step"] == 0
    assert "per_task" not in told["evaluation"]
    site.tell(job_id, story.evaluation_event(job_id, 150, 0.6))
    told = http.get(f"/v1/page/jobs/{job_id}/latest").json()
    assert (told["metrics"], told["evaluation"]["step"]) == (as_dict(events[-1]), 150)
    assert http.get("/v1/page/jobs/ftjob-none/latest").status_code == 404
