"""Chats with models on the page, answered by a rollout that counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Page, expect
from protocol.calls import Call, Refusal

from tests.contract.gateway.fake_rollout import FakeRollout, a_seen_rollout
from tests.contract.gateway.stack import a_checkpoint, a_grader, a_model
from tests.contract.page.conftest import Site, aside

pytestmark = pytest.mark.redis
COUNTED = "0 1 2 3 4 "
LONG = Refusal(status=400, code="context_length_exceeded", message="the chat is too long")


def asked(call: Call) -> list[str]:
    return [str(turn["content"]) for turn in call.messages or ()]


@pytest.fixture(scope="module")
def job(site: Site) -> str:
    """A job that has trained a model, and has kept a checkpoint."""
    job_id = site.submit("to-talk-to")
    a_checkpoint(site.stack, job_id, 2)
    model = a_model(site.stack.data_dir / "jobs" / job_id / "model")
    site.take_up(job_id, state="succeeded", result={"model": str(model)})
    return job_id


@pytest.fixture
def grader(site: Site) -> Iterator[None]:
    with ExitStack() as running:
        aside(running.enter_context, a_grader(site.stack))
        yield


@pytest.fixture
def rollout(site: Site) -> Iterator[FakeRollout]:
    """One that refuses what is long, and never answers what asks it to wait."""
    with a_seen_rollout(
        site.stack,
        refuse=lambda call: LONG if asked(call)[-1] == "long" else None,
        begins=lambda call: asked(call)[-1] != "wait",
    ) as rollout:
        yield rollout


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def test_two_models_answer_next_to_each_other_and_each_goes_on_from_its_own_answers(
    page: Page, job: str, rollout: FakeRollout
) -> None:
    page.goto(f"/#/jobs/{job}")
    page.locator(".actions").get_by_role("link", name="Chat").click()
    page.get_by_label("Next to it").select_option(f"{job}@2")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Max tokens").fill("9")
    answers = page.get_by_role("article")
    for number, question in enumerate(("One", "Two"), 1):
        send(page, question)
        expect(page.locator("[aria-busy=false]")).to_have_count(2 * number)
        expect(answers.locator(".tokens [data-token]")).to_have_count(10 * number)
    expect(answers.nth(1)).to_contain_text("at step 2")
    expect(answers.nth(1)).to_contain_text(COUNTED)
    expect(answers.nth(1)).to_contain_text("version 7: tokens 0 to 5")
    assert {call.served.version for call in rollout.taken} == {0, 2}
    assert [asked(call) for call in rollout.taken] == [["One"]] * 2 + [["One", COUNTED, "Two"]] * 2
    assert {(call.sampling.temperature, call.sampling.max_tokens) for call in rollout.taken} == {
        (0.5, 9)
    }


@pytest.mark.usefixtures("grader")
def test_a_task_is_asked_at_a_click_and_graded_as_the_job_does(
    page: Page, job: str, rollout: FakeRollout
) -> None:
    page.goto(f"/#/chat?model={job}")
    page.get_by_text("Ask a task of the job").click()
    page.get_by_role("button", name="1+1=?").click()
    answer = page.get_by_role("article")
    expect(answer).to_contain_text("no answer")
    expect(answer.locator(".verdict")).to_have_text("✗wrong")
    assert asked(rollout.taken[0]) == ["1+1=?"]


def test_a_chat_goes_on_after_a_refusal_and_after_one_that_was_stopped(
    page: Page, rollout: FakeRollout, faults: list[str]
) -> None:
    page.goto("/#/chat?model=tiny")
    send(page, "long")
    expect(page.get_by_role("alert")).to_have_text(LONG.message)
    send(page, "wait")
    page.get_by_role("button", name="Stop").click()
    send(page, "One")
    expect(page.get_by_role("article").last).to_contain_text(COUNTED)
    assert asked(rollout.taken[-1]) == ["One"]
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("article")).to_have_count(0)
    assert all("400" in fault for fault in faults), faults
    faults.clear()
