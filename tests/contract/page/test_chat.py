"""Chats with models on the page, answered by a rollout that counts."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from protocol.calls import Call, Refusal

from tests.contract.gateway.fake_rollout import FakeRollout, a_rollout
from tests.contract.gateway.stack import a_checkpoint, a_grader, a_model
from tests.contract.page.conftest import Site

pytestmark = pytest.mark.redis
COUNTED = "0 1 2 3 4 "
LONG = Refusal(status=400, code="context_length_exceeded", message="the chat is too long")


def conversation(call: Call) -> list[str]:
    return [str(turn["content"]) for turn in call.messages or ()]


@pytest.fixture(scope="module")
def job(site: Site) -> str:
    """A job that has trained a model on texts; the base model `with-turns` knows chats."""
    (a_model(site.stack.models / "with-turns") / "chat_template.jinja").write_text("{{ messages }}")
    job_id = site.submit("to-talk-to")
    a_checkpoint(site.stack, job_id, 2)
    site.end(job_id)
    return job_id


@pytest.fixture(scope="module", autouse=True)
def grader(site: Site) -> Iterator[None]:
    """Before the browser, whose event loop is in the way."""
    with a_grader(site.stack):
        yield


@pytest.fixture
def rollout(site: Site) -> Iterator[FakeRollout]:
    """One that refuses what is long, and never answers what asks it to wait."""
    with a_rollout(
        site.stack,
        refuse=lambda call: LONG if conversation(call)[-1] == "long" else None,
        begins=lambda call: conversation(call)[-1] != "wait",
    ) as rollout:
        yield rollout


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def test_two_models_answer_next_to_each_other_and_go_on_if_they_know_chats(
    page: Page, job: str, rollout: FakeRollout
) -> None:
    page.goto(f"/#/jobs/{job}/model")
    page.locator(".files").get_by_role("link", name="Chat").click()
    groups = page.get_by_label("Next to it").locator("optgroup")
    expect(groups.first).to_be_attached()
    labels = groups.evaluate_all("groups => groups.map((group) => group.label)")
    assert labels[:2] == ["Jobs", "Base models"]
    assert f"Checkpoints of to-talk-to …{job[-6:]}" in labels
    page.get_by_label("Next to it").select_option("with-turns")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Max tokens").fill("9")
    answers = page.get_by_role("article")
    for number, question in enumerate(("One", "Two"), 1):
        send(page, question)
        expect(page.locator("[aria-busy=false]")).to_have_count(2 * number)
        expect(answers.locator(".tokens")).to_have_text([COUNTED] * 2 * number)
    for part in ("at step 2", COUNTED, "version 7: tokens 0 to 5", "stands alone"):
        expect(answers.first).to_contain_text(part)
    versions = [(call.served.version, *conversation(call)) for call in rollout.calls]
    assert sorted(versions) == [
        (0, "One"),
        (0, "One", COUNTED, "Two"),
        (2, "One"),
        (2, "Two"),
    ]
    for call in rollout.calls:
        assert call.sampling.temperature == 0.5
        assert call.sampling.max_tokens == 9


def test_a_task_is_asked_at_a_click_and_graded_by_the_reward_of_its_job(
    page: Page, job: str, rollout: FakeRollout
) -> None:
    page.goto(f"/#/chat?model={job}")
    page.get_by_text("Ask a task of the job").click()
    page.get_by_role("button", name="1+1=?").click()
    answer = page.get_by_role("article")
    expect(answer).to_contain_text("no answer")
    expect(answer.locator(".verdict")).to_have_text("✗wrong")
    assert conversation(rollout.calls[0]) == ["1+1=?"]


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
    assert conversation(rollout.calls[-1]) == ["One"]
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("article")).to_have_count(0)
    assert all("400" in fault for fault in faults), faults
    faults.clear()
