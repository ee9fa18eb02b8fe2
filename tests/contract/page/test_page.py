"""What a person does on the page, in a real browser."""

import re
import secrets
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Dialog, Locator, Page, Route, expect

from tests.builders import as_dict
from tests.contract.gateway.stack import JOBS, KEY, TASKS, Client, a_checkpoint
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


def see(part: Locator) -> None:
    expect(part).to_be_visible()


def press(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_role("button", name=name, exact=True).click()


def read_job(http: Client, page: Page) -> dict[str, Any]:
    """The job that the page shows."""
    return http.read(f"{JOBS}/{page.url.rsplit('/', 1)[1]}")


def forgive(faults: list[str], reason: str) -> None:
    """Take back the faults that a test wants; there are no others."""
    assert all(reason in fault for fault in faults), faults
    faults.clear()


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
    press(page, "Open")
    expect(page.get_by_role("alert")).to_contain_text("does not know this key")
    page.get_by_label("API key").fill(KEY)
    press(page, "Open")
    see(page.get_by_role("heading", name="Submit a job"))
    assert page.evaluate("localStorage.length") == 0
    page.evaluate("sessionStorage.setItem('weir.key', 'revoked')")
    page.get_by_role("link", name="Jobs").click()
    see(page.get_by_label("API key"))
    page.goto(f"/#key={KEY}")
    see(page.get_by_role("link", name="Submit a job"))
    assert "key" not in page.url


def test_a_pasted_recipe_shows_its_plan_and_becomes_a_job(
    page: Page, tmp_path: Path, faults: list[str], http: Client
) -> None:
    tasks = tmp_path / "train.jsonl"
    tasks.write_text(TASKS)
    page.goto("/#/submit")
    page.get_by_label("or paste it").fill(RECIPE.replace("group_size", "groupsize"))
    press(page, "Check and plan")
    expect(page.get_by_role("alert")).to_contain_text("rollout.groupsize: unknown key")
    forgive(faults, "400")
    page.get_by_label("or paste it").fill(RECIPE)
    press(page, "Check and plan")
    see(page.get_by_text("30 steps × 16 = 480"))
    page.get_by_label("Tasks to train on: new file").set_input_files(tasks)
    press(page, "Submit pasted")
    see(page.get_by_role("heading", name="pasted"))
    assert read_job(http, page)["weir"]["recipe"]["training"]["steps"] == 30


def test_files_of_one_name_are_told_apart_by_their_content(
    page: Page, tmp_path: Path, http: Client
) -> None:
    sources = {"easy": TASKS, "hard": TASKS.partition("\n")[2]}
    tables = [f"[[tasks.sources]]\nname = '{name}'\ntrain = 'train.jsonl'\n" for name in sources]
    recipe = RECIPE.replace('[tasks]\ntrain = "train.jsonl"\n', "".join(tables))
    page.goto("/#/submit")
    page.get_by_label("or paste it").fill(recipe)
    press(page, "Check and plan")
    for name, content in sources.items():
        tasks = tmp_path / name / "train.jsonl"
        tasks.parent.mkdir()
        tasks.write_text(content)
        label = f"Tasks to train on: {name}"
        expect(page.get_by_label(f"{label}, as the recipe says train.jsonl")).to_have_value("")
        page.get_by_label(f"{label}: new file").set_input_files(tasks)
    press(page, "Submit pasted")
    see(page.get_by_role("heading", name="pasted"))
    stored = read_job(http, page)["weir"]["recipe"]["tasks"]["sources"]
    contents = [http.get(f"/v1/files/{source['train']}/content").text for source in stored]
    assert contents == [*sources.values()]


def test_a_recipe_is_copied_as_toml_and_changed_for_a_job_on_files_that_are_there(
    page: Page, site: Site, http: Client
) -> None:
    first = http.read(f"{JOBS}/{site.submit('to-copy')}")
    page.goto(f"/#/jobs/{first['id']}/recipe")
    shown = page.get_by_role("region", name="Recipe as TOML")
    expect(shown.get_by_text("lambda_process = ")).to_have_class("soft")
    expect(shown.get_by_text("group_size = 4")).not_to_have_class("soft")
    page.get_by_role("link", name="Submit a changed copy").click()
    text = page.get_by_label("or paste it")
    expect(text).to_have_value(re.compile("to-copy"))
    recipe = text.input_value()
    text.fill(recipe.replace("learning_rate = 0.000001", "learning_rate = 0.00001"))
    press(page, "Check and plan")
    expect(page.get_by_label("Tasks to train on")).to_have_value(first["training_file"])
    press(page, "Submit to-copy")
    see(page.get_by_role("heading", name="to-copy", level=1))
    second = read_job(http, page)
    assert second["model"] == first["model"]
    assert second["training_file"] == first["training_file"]
    optimizer = first["weir"]["recipe"]["optimizer"] | {"learning_rate": pytest.approx(1e-5)}
    assert second["weir"]["recipe"] == first["weir"]["recipe"] | {"optimizer": optimizer}


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
        (event,) = story.step_events(
            job_id,
            range(step, step + 1),
            seed=step,
        )
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
    see(value)
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


def test_a_job_is_paused_and_only_cancelled_after_a_question(
    page: Page, site: Site, http: Client
) -> None:
    job_id = site.a_run("stopped", done=3)
    page.goto(f"/#/jobs/{job_id}")
    press(page, "Pause")
    see(page.get_by_role("button", name="Resume"))
    assert read_job(http, page)["weir"]["requested"] == "pause"
    press(page, "Resume")
    see(page.get_by_role("button", name="Pause"))
    press(page, "Cancel", "Keep it")
    assert read_job(http, page)["weir"]["requested"] == "run"
    press(page, "Cancel", "Cancel the job")
    see(page.get_by_text("cancelling"))


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


def test_a_fork_has_the_learning_rate_that_was_written(
    page: Page, site: Site, http: Client
) -> None:
    job_id = site.submit("to-go-on")
    a_checkpoint(site.stack, job_id, 2, reward=0.5)
    site.end(job_id)
    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("link", name="Download or fork").click()
    page.get_by_label("Its learning rate").fill("0.00003")
    press(page, "Fork from step 2")
    see(page.get_by_text(f"from {job_id} at step 2"))
    assert read_job(http, page)["weir"]["recipe"]["optimizer"]["learning_rate"] == 0.00003


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
        see(card.get_by_text(name, exact=True))
    see(page.get_by_text("Each step follows").first)
    expect(page.locator(".mark.wrong sup").first).to_have_text("✗")


def test_a_search_goes_on_by_itself_until_it_finds_something(page: Page, run: str) -> None:
    waiting: list[Route] = []

    def takes_long(route: Route) -> None:
        """At first the gateway has found nothing, and says where to go on."""
        url, _, place = route.request.url.partition("&after=")
        if place:
            waiting.append(route)
            return
        route.fulfill(
            json=route.fetch(url=url).json()
            | {
                "data": [],
                "has_more": True,
            }
        )

    page.route(re.compile("text="), takes_long)
    with page.expect_request(re.compile("text=.*after=")):
        page.goto(f"/#/jobs/{run}/samples?step=1&text=46-")  # a few groups of the step hold it
    expect(page.get_by_role("status")).to_have_text("Searching…")
    expect(page.get_by_role("button", name="More")).to_have_count(0)
    waiting[0].continue_(url=waiting[0].request.url.partition("&after=")[0])
    rows = page.locator(".samples tbody tr")
    see(rows.first)
    page.goto(f"/#/jobs/{run}/samples?step=1&task=nobody")
    expect(page.get_by_role("status")).to_have_text("No sample is like that.")


def test_tokens_are_coloured_by_what_is_chosen_and_tell_their_numbers(page: Page, run: str) -> None:
    page.goto(f"/#/jobs/{run}/samples/train:20")
    text = page.get_by_role("group", name=re.compile("Text of response 0"))
    colours = "node => [...node.querySelectorAll('[data-token]')].map(part => part.className)"
    see(text.locator("[data-token]").first)
    assert all(re.match("up|down", name) for name in text.evaluate(colours) if name)
    page.get_by_label("Colour by").select_option("surprise")
    see(text.locator("[class^=at]").first)
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
    see(foreign.first)
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
    episode = first.get_by_label("Episode")
    expect(episode).to_contain_text("0.500")
    turns = episode.get_by_role("listitem")
    expect(turns).to_contain_text(["user", "assistant", "tool"])
    expect(turns.first).to_contain_text("=?")
    expect(episode.locator(".foreign")).to_contain_text(["user", "tool"])
    expect(last.get_by_label("Episode")).to_contain_text("not over in 600 s")
    expect(last).to_contain_text("ungradable")
    expect(last.locator(".tokens")).to_have_count(0)


def test_keys_go_from_group_to_group_of_the_list_and_say_what_they_do(page: Page, run: str) -> None:
    page.goto(f"/#/jobs/{run}/samples/train:10?order=oldest")
    see(page.get_by_role("article").first)
    for key, group in (
        ("j", 11),
        ("k", 10),
        ("ArrowLeft", 9),
    ):
        page.keyboard.press(key)
        expect(page.locator("h2.key")).to_have_text(f"train:{group}")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("previous group")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("u")
    expect(page.get_by_label("Order")).to_have_value("oldest")


def test_evaluations_and_the_ledger_are_shown(page: Page, run: str) -> None:
    samples = {"data": [{"task_id": "arithmetic-016", "prompt": "46-5+8+19=?"}], "has_more": False}
    page.route("**/samples?purpose=eval*", lambda route: route.fulfill(json=samples))
    page.goto(f"/#/jobs/{run}/evaluations")
    see(page.get_by_role("link", name="46-5+8+19=?"))
    expect(page.get_by_role("region", name="Results")).to_contain_text("95 % interval")
    expect(page.get_by_role("region", name="Tasks").get_by_role("row")).to_have_count(41)
    page.get_by_role("link", name="Time & flow").click()
    see(page.get_by_text("wait for groups"))
    cost = page.get_by_role("list", name="Core-seconds by service")
    expect(cost).to_contain_text(re.compile(r"all 7 min.*learner 7\d.*rollout 2\d"))
    bill = page.locator("section", has=page.get_by_role("heading", name="Bill"))
    expect(bill).to_contain_text(re.compile("hours of the machine.*2.*learner/train 100.0"))
    expect(page.get_by_role("list", name="Tokens")).to_contain_text("dropped/no signal 1,000")
    ledger = r"492 asked\s*=\s*477 used\s*\+\s*3 dropped\s*\+\s*12 under way"
    expect(page.locator(".ledger")).to_contain_text(re.compile(ledger))
    page.get_by_role("link", name="Events").click()
    see(page.get_by_text("evaluation at step 30"))


def test_a_forecast_continues_the_accuracy_and_a_spent_budget_is_raised(
    page: Page, site: Site, http: Client
) -> None:
    job_id = site.a_run("foretold", steps=60, state="paused", budget_gpu_hours=1)
    for step in (6, 12, 18, 24):
        site.tell(job_id, story.evaluation_event(job_id, step, 0.3 + 0.4 * step / 30))
    http.post(f"{JOBS}/{job_id}/pause")
    page.goto(f"/#/jobs/{job_id}/evaluations")
    chart = page.get_by_role("img", name=re.compile(r"forecast 0\.\d+ at step 60"))
    see(chart)
    page.get_by_label("New budget").fill("5")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".status").first).to_contain_text("queued")


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
    shown = evil.replace("\u202e", "⟨U+202E⟩")
    see(page.get_by_role("list").get_by_text(shown, exact=True))
    expect(page.get_by_role("heading", level=1)).to_have_text(shown)
    assert page.locator("main img, main script").count() == 0


def test_a_view_that_a_gateway_does_not_have_says_so(
    page: Page, site: Site, faults: list[str]
) -> None:
    job_id = site.a_run("without-samples", done=2, state="succeeded")
    page.goto(f"/#/jobs/{job_id}/samples/train:7")
    see(page.get_by_text("There is no such sample any more"))
    page.goto("/#/jobs/ftjob-none")
    see(page.get_by_text("There is no such job"))
    forgive(faults, "404")


def test_the_last_step_and_an_evaluation_long_before_it_are_told(site: Site, http: Client) -> None:
    job_id = site.submit("latest")

    def latest() -> dict[str, Any]:
        answer = http.read(f"/v1/page/jobs/{job_id}/latest")
        return {name: answer[name] for name in ("metrics", "evaluation", "rewards")}

    assert latest() == {"metrics": None, "evaluation": None, "rewards": []}
    events = list(story.step_events(job_id, range(1, 151)))
    early, late = (
        story.evaluation_event(
            job_id,
            step,
            0.4,
        )
        for step in (0, 150)
    )
    site.tell(
        job_id,
        early,
        *events,
        story.an_event(job_id, "last", "a message"),
    )
    expected = {
        "metrics": as_dict(events[-1]),
        "rewards": [as_dict(event)["reward"] for event in events[-40:]],
    }
    for evaluation in (early, late):
        site.tell(job_id, evaluation)
        result = as_dict(evaluation)["evaluation"]
        del result["per_task"]
        assert latest() == expected | {"evaluation": result}
    assert http.get("/v1/page/jobs/ftjob-none/latest").status_code == 404
