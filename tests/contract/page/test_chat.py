"""Chats with models on the page, answered by a rollout that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from playwright.sync_api import Page, expect
from protocol.calls import Call, Refusal
from protocol.exchange import connect
from protocol.messages import Graded, Trial, TrialResult

from tests.contract.gateway.fake_rollout import FakeRollout, a_seen_rollout
from tests.contract.gateway.stack import a_checkpoint, a_model
from tests.contract.page.conftest import Site

pytestmark = pytest.mark.redis
COUNTED = "0 1 2 3 4 "
LONG = Refusal(status=400, code="context_length_exceeded", message="the chat is too long")


def asked(call: Call) -> list[str]:
    return [str(turn["content"]) for turn in call.messages or ()]


@pytest.fixture(scope="module")
def job(site: Site) -> str:
    """A job that has trained a model on texts; the base model `with-turns` knows chats."""
    (a_model(site.stack.models / "with-turns") / "chat_template.jinja").write_text("{{ messages }}")
    job_id = site.submit("to-talk-to")
    a_checkpoint(site.stack, job_id, 2)
    model = a_model(site.stack.data_dir / "jobs" / job_id / "model")
    site.take_up(job_id, state="succeeded", result={"model": str(model)})
    return job_id


@pytest.fixture
def trials(site: Site) -> Iterator[list[Trial]]:
    """Be a grader that finds no answer in any response."""
    taken, stop = list[Trial](), Event()

    async def grade() -> None:
        async with connect(site.stack.server.url, me="grader") as exchange:
            while not stop.is_set():
                if (trial := await exchange.take_trial(0.1)) is not None:
                    taken.append(trial)
                    nothing = Graded(value=0.0, reason="no_answer")
                    await exchange.answer_trial(trial, TrialResult(outcome=nothing))

    thread = Thread(target=lambda: asyncio.run(grade()))
    thread.start()
    yield taken
    stop.set()
    thread.join()


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


def test_two_models_answer_next_to_each_other_and_go_on_if_they_know_chats(
    page: Page, job: str, rollout: FakeRollout
) -> None:
    page.goto(f"/#/jobs/{job}/model")
    page.locator(".files").get_by_role("link", name="Chat").click()
    page.get_by_label("Next to it").select_option("with-turns")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Max tokens").fill("9")
    answers = page.get_by_role("article")
    for number, question in enumerate(("One", "Two"), 1):
        send(page, question)
        expect(page.locator("[aria-busy=false]")).to_have_count(2 * number)
        expect(answers.locator(".tokens")).to_have_text([COUNTED] * 2 * number)
    for told in ("at step 2", COUNTED, "version 7: tokens 0 to 5", "stands alone"):
        expect(answers.first).to_contain_text(told)
    of_step = [call for call in rollout.calls if call.served.version == 2]
    others = [call for call in rollout.calls if call not in of_step]
    assert [asked(call) for call in of_step] == [["One"], ["Two"]]
    assert [asked(call) for call in others] == [["One"], ["One", COUNTED, "Two"]]
    assert {(call.sampling.temperature, call.sampling.max_tokens) for call in rollout.calls} == {
        (0.5, 9)
    }


def test_a_task_is_asked_at_a_click_and_graded_by_the_reward_of_its_job(
    page: Page, job: str, rollout: FakeRollout, trials: list[Trial]
) -> None:
    page.goto(f"/#/chat?model={job}")
    page.get_by_text("Ask a task of the job").click()
    page.get_by_role("button", name="1+1=?").click()
    answer = page.get_by_role("article")
    expect(answer).to_contain_text("no answer")
    expect(answer.locator(".verdict")).to_have_text("✗wrong")
    assert asked(rollout.calls[0]) == ["1+1=?"]
    (trial,) = trials
    assert [check.verifier for check in trial.reward.process] == ["equation_steps"]
    assert (trial.task.prompt, trial.task.answer, trial.text) == ("1+1=?", "2", COUNTED)


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
    assert asked(rollout.calls[-1]) == ["One"]
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_role("article")).to_have_count(0)
    assert all("400" in fault for fault in faults), faults
    faults.clear()
