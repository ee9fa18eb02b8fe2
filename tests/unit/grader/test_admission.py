"""A grader claims nothing that it could not grade, and says what is in the way."""

from __future__ import annotations

import pytest
from protocol.messages import ActiveJob
from protocol.rewards import Reward

from services.chassis.faults import Unable
from services.grader import worker
from services.grader.judge.judge import Judge
from services.grader.judge.settings import JudgeSettings
from services.grader.pool import Pool
from services.grader.tools import Tools
from tests.builders import a_recipe

BY_RULE = Reward.model_validate({"process": "equation_steps"})
BY_JUDGE = Reward.model_validate({"process": ["equation_steps", "model_judge"]})
BY_ORACLE = Reward.model_validate({"outcome": "my_lab.oracle"})
BY_GPT = Reward.model_validate({"outcome": {"verifier": "model_judge", "model": "gpt-5"}})
BY_CODE = Reward.model_validate({"outcome": {"verifier": "python", "source": "x"}})
POOL = Pool(1)  # never opened
NO_JUDGE = Tools(POOL)
UP_SOON = Judge(JudgeSettings("http://127.0.0.1:1/v1", "gpt-oss-20b"))
JUDGE = Tools(POOL, UP_SOON)
STARTING = "the judge is not up: starting"


@pytest.mark.parametrize(
    ("reward", "tools", "words"),
    [
        (BY_RULE, NO_JUDGE, None),
        (BY_RULE, JUDGE, None),
        (BY_JUDGE, NO_JUDGE, ["WEIR_JUDGE_URL"]),
        (BY_JUDGE, JUDGE, [STARTING]),
        (BY_ORACLE, NO_JUDGE, ["'my_lab.oracle'", "WEIR_GRADER_EXTENSIONS"]),
        (BY_GPT, JUDGE, ["no model 'gpt-5', but 'judge', 'gpt-oss-20b'", "WEIR_JUDGES"]),
        (BY_GPT, Tools(POOL, other_judges={"gpt-5": UP_SOON}), [STARTING]),
        (BY_CODE, JUDGE, ["WEIR_GRADER_PYTHON=on"]),
        (BY_CODE, Tools(POOL, sandbox=POOL), None),
    ],
)
def test_what_a_grader_lacks_is_in_the_way_and_named_with_the_remedy(
    reward: Reward, tools: Tools, words: list[str] | None
) -> None:
    message = worker.what_is_in_the_way(reward, tools)
    assert (message is None) is (words is None)
    assert all(each in (message or "") for each in words or [])


def a_job(reward: Reward) -> ActiveJob:
    recipe = a_recipe(reward=reward.model_dump(), algorithm={"advantage": "grpo"})
    return ActiveJob(job_id="job", attempt=1, recipe=recipe)


@pytest.mark.parametrize("reward", [BY_JUDGE, BY_ORACLE])
def test_what_no_waiting_will_mend_is_handed_on_after_a_while(reward: Reward) -> None:
    waiting, patient = (worker.Admission(NO_JUDGE, patience_s=each) for each in (60, 0))
    assert not waiting.is_open(a_job(reward))
    assert patient.is_open(a_job(reward))
    with pytest.raises(Unable, match=r"where (they|the graders) run"):
        patient.admit(a_job(reward))
    patient.admit(a_job(BY_RULE))
    assert waiting.is_open(a_job(BY_RULE))


def test_what_waiting_may_mend_is_waited_for() -> None:
    patient = worker.Admission(JUDGE, patience_s=0)
    assert not patient.is_open(a_job(BY_JUDGE))
    patient.admit(a_job(BY_JUDGE))  # it was claimed while the judge was up
