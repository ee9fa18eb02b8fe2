"""Value pretraining through the whole stack: the critic learns first, whatever dies."""

from pathlib import Path

import pytest
from protocol.recipe import Purpose

from tests.kept_samples import last_samples
from tests.stack.conftest import Stack, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
PRETRAIN_STEPS, STEPS, GROUPS_PER_STEP = 20, 3, 4


def pretrained(stack: Stack, job_id: str) -> list[int]:
    data = [event["data"] for event in stack.events(job_id)]
    return [entry["pretrain_step"] for entry in data if "pretrain_step" in entry]


def is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def test_the_critic_learns_before_the_policy_moves_and_survives_a_death(stack: Stack) -> None:
    job_id = stack.submit(
        training={"steps": STEPS, "groups_per_step": GROUPS_PER_STEP, "checkpoint_every": 2},
        algorithm={"advantage": "length_adaptive_gae"},
        critic={"pretrain_steps": PRETRAIN_STEPS, "optimizer": {"learning_rate": 1e-3}},
    )
    checkpoints = stack.job_folder(job_id) / "checkpoints"
    wait_for(lambda: any(checkpoints.glob("step-*-pretrain-*")), 300, "a pretraining checkpoint")
    stack.kill("learner")
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["error"]
    assert job["weir"]["attempt"] == 2
    assert pretrained(stack, job_id) == list(range(1, PRETRAIN_STEPS + 1))

    result = job["weir"]["result"]
    for name, steps in (("pretraining_groups", PRETRAIN_STEPS), ("groups", STEPS)):
        groups = steps * GROUPS_PER_STEP
        assert result[name]["asked"] == groups
        assert result[name]["trained"] + sum(result[name]["dropped"].values()) == groups
        assert result[name]["under_way"] == 0

    kept = last_samples(stack.job_folder(job_id) / "samples").values()
    versions = {
        span.version
        for _, sampled in kept
        if sampled.graded.purpose is Purpose.PRETRAIN and sampled.graded.group is not None
        for response in sampled.graded.group.responses
        for span in response.spans
    }
    assert versions == {0}
    folder = stack.job_folder(job_id)
    assert result["critic"] == str(folder / "critic")
    assert is_model(folder / "critic")
    assert is_model(folder / "critic-pretrained")
    assert is_model(folder / "model")
