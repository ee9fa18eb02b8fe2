"""Dynamic sampling through the whole stack: steps are refilled, whatever dies."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from protocol.recipe import Purpose
from protocol.samples import USED, SampledGroup, SampleFacts

from services.learner.supply.feeder import task_index
from services.learner.supply.log import read_log
from tests.kept_samples import counted, fates, last_samples
from tests.stack.conftest import TASKS, Json, Stack, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
STEPS, GROUPS_PER_STEP = 12, 4
TRAINING = {
    "steps": STEPS,
    "groups_per_step": GROUPS_PER_STEP,
    "checkpoint_every": 5,
    "dynamic_sampling": True,
    "max_oversampling": 4.0,
}


def steps_of(stack: Stack, job_id: str) -> list[Json]:
    """The metrics of each training step, and that each is told of once and in order."""
    steps = [event["data"] for event in stack.events(job_id) if "reward" in event["data"]]
    assert [data["step"] for data in steps] == list(range(1, STEPS + 1))
    return steps


def assert_balanced(account: dict[str, Any]) -> None:
    dropped = sum(account["dropped"].values())
    assert account["asked"] == account["trained"] + dropped + account["under_way"]


def test_a_job_refills_its_steps_and_survives_the_death_of_its_learner(stack: Stack) -> None:
    job_id = stack.submit(training=TRAINING, algorithm={"advantage": "grpo"})
    stack.wait_for_step(job_id, 7)
    stack.kill("learner")
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["error"]
    assert job["weir"]["attempt"] == 2

    steps = steps_of(stack, job_id)
    for data in steps:
        assert_balanced(data["groups"])
        assert data["signal"] == 1
        assert data["staleness_max"] <= 1
        judged = data["looked_at"] - data["surplus"]
        assert data["waste"] == pytest.approx(1 - data["kept"] / judged)
        assert data["kept"] == GROUPS_PER_STEP or judged == 4 * GROUPS_PER_STEP

    ledger = job["weir"]["result"]["groups"]
    assert_balanced(ledger)
    assert ledger["under_way"] == 0
    assert ledger["dropped"]["no_signal"] > 0
    # Both attempts have told of steps: their sums agree only if they decided the same.
    looked_at = sum(data["looked_at"] for data in steps)
    assert ledger["trained"] == sum(data["kept"] for data in steps)
    assert ledger["asked"] >= looked_at
    kept = fates(stack.job_folder(job_id) / "samples", Purpose.TRAIN)
    assert list(kept) == list(range(looked_at))
    assert counted(kept)["used"] == ledger["trained"]
    assert counted(kept)["no_signal"] == ledger["dropped"]["no_signal"]
    samples = last_samples(stack.job_folder(job_id) / "samples").values()
    assert max(gap for facts, group in samples for gap in parity_gaps(facts, group)) <= 1e-3


def parity_gaps(facts: SampleFacts, group: SampledGroup) -> list[float]:
    """Of the responses that were sampled by the policy that they trained: learner less sampler."""
    if facts.fate != USED or group.graded.group is None:
        return []
    own = [
        all(span.version == facts.step for span in response.spans)
        for response in group.graded.group.responses
    ]
    gaps = [response.parity_gap for response in facts.responses]
    return [gap for gap, is_own in zip(gaps, own, strict=True) if is_own and gap is not None]


def test_a_job_that_finds_no_signal_makes_no_update_and_fails_for_it(stack: Stack) -> None:
    job_id = stack.submit(
        training=TRAINING | {"steps": 2, "max_oversampling": 1.0, "max_staleness": 0},
        rollout={"group_size": 2, "sampling": {"max_tokens": 1}},
        algorithm={"advantage": "grpo"},
    )
    job = stack.wait_for_end(job_id)
    assert job["status"] == "failed"
    assert "none of 8 groups was trained (no_signal 8)" in job["error"]["message"]
    events = stack.events(job_id)
    warnings = [event["message"] for event in events if event["level"] == "warn"]
    assert len(warnings) == 2
    assert all("it made no update" in text and "max_oversampling" in text for text in warnings)
    *_, ledger = (event["data"]["groups"] for event in events if "groups" in event["data"])
    assert ledger == {
        "asked": 2 * GROUPS_PER_STEP,
        "trained": 0,
        "dropped": {"no_signal": 2 * GROUPS_PER_STEP},
        "under_way": 0,
    }


def tasks_with_some_ungradable(path: Path, ungradable: Collection[int]) -> Path:
    """50 tasks; those with these indices have an answer that no verifier can read."""
    tasks = [json.loads(line) for line in TASKS.read_text().splitlines()[:50]]
    for index in ungradable:
        tasks[index]["answer"] = "+*"
    path.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    return path


def warnings_of_ungradable(stack: Stack, job_id: str) -> list[str]:
    with stack.client() as weir:
        messages = [event["message"] for event in weir.past_events(job_id)]
    return [message for message in messages if "could not be graded" in message]


def test_what_cannot_be_graded_pauses_the_job_long_before_the_limit(
    stack: Stack, tmp_path: Path
) -> None:
    tasks = tasks_with_some_ungradable(tmp_path / "tasks.jsonl", range(50))
    job_id = stack.submit(tasks=tasks, training=TRAINING | {"max_oversampling": 50.0})
    wait_for(lambda: stack.job(job_id)["status"] == "paused", 240, "the pause")
    logged = [graded for _, graded in read_log(stack.job_folder(job_id) / "log")]
    assert GROUPS_PER_STEP <= len(logged) <= 8 * GROUPS_PER_STEP
    assert len(warnings_of_ungradable(stack, job_id)) == 1
    stack.ask(job_id, "resume")
    wait_for(lambda: len(warnings_of_ungradable(stack, job_id)) == 2, 240, "the next pause")
    with stack.client() as weir:
        weir.cancel(job_id)
    assert stack.wait_for_end(job_id)["status"] == "cancelled"
    (_, second) = warnings_of_ungradable(stack, job_id)
    assert "of the scores of step 0 could not be graded (gold_not_parsable " in second


def test_who_resumes_a_job_accepts_what_could_not_be_graded_even_if_its_learner_dies(
    stack: Stack, tmp_path: Path
) -> None:
    first = [task_index(number, 50, seed=3) for number in range(GROUPS_PER_STEP)]
    tasks = tasks_with_some_ungradable(tmp_path / "tasks.jsonl", first)
    job_id = stack.submit(tasks=tasks, training=TRAINING | {"steps": 3, "seed": 3})
    wait_for(lambda: stack.job(job_id)["status"] == "paused", 240, "the pause")
    stack.kill("learner")
    assert stack.job(job_id)["weir"]["step"] == 0
    stack.ask(job_id, "resume")
    job = stack.wait_for_end(job_id)
    assert (job["status"], job["weir"]["attempt"]) == ("succeeded", 2)
    assert len(warnings_of_ungradable(stack, job_id)) == 1
