"""A grader claims nothing that it could not grade, and says what is in the way."""

from __future__ import annotations

import pytest
from protocol.messages import ActiveJob, Graded
from protocol.rewards import Reward

from services.chassis.faults import Unable
from services.grader import gate
from services.grader.judge.judge import Judge
from services.grader.judge.settings import JudgeSettings
from services.grader.pool import Pool
from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS
from tests.builders import a_recipe

BY_RULE = Reward.model_validate({"process": "equation_steps"})
BY_JUDGE = Reward.model_validate({"process": ["equation_steps", "model_judge"]})
BY_ORACLE = Reward.model_validate({"outcome": "my_lab.oracle"})
POOL = Pool(1)  # never opened
NO_JUDGE = Tools(POOL)
JUDGE = Tools(POOL, Judge(JudgeSettings("http://127.0.0.1:1/v1", "gpt-oss-20b")))


def test_only_who_needs_a_judge_waits_for_one() -> None:
    assert gate.what_is_in_the_way(BY_RULE, NO_JUDGE) is None
    assert gate.what_is_in_the_way(BY_RULE, JUDGE) is None
    assert "WEIR_JUDGE_URL" in (gate.what_is_in_the_way(BY_JUDGE, NO_JUDGE) or "")
    assert gate.what_is_in_the_way(BY_JUDGE, JUDGE) == "the judge is not up: starting"


def a_job(reward: Reward) -> ActiveJob:
    recipe = a_recipe(reward=reward.model_dump(), algorithm={"advantage": "grpo"})
    return ActiveJob(job_id="job", attempt=1, recipe=recipe)


@pytest.mark.parametrize("reward", [BY_JUDGE, BY_ORACLE])
def test_what_no_waiting_will_mend_is_handed_on_after_a_while(reward: Reward) -> None:
    waiting, patient = gate.Gate(NO_JUDGE, patience_s=60), gate.Gate(NO_JUDGE, patience_s=0)
    assert not waiting.is_open(a_job(reward))
    assert patient.is_open(a_job(reward))
    with pytest.raises(Unable, match=r"where (they|the graders) run"):
        patient.admit(a_job(reward))
    patient.admit(a_job(BY_RULE))
    assert waiting.is_open(a_job(BY_RULE))


def test_what_waiting_may_mend_is_waited_for() -> None:
    patient = gate.Gate(JUDGE, patience_s=0)
    assert not patient.is_open(a_job(BY_JUDGE))
    patient.admit(a_job(BY_JUDGE))  # it was claimed while the judge was up


def test_a_verifier_that_nobody_has_added_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    message = gate.what_is_in_the_way(BY_ORACLE, NO_JUDGE) or ""
    assert "'my_lab.oracle'" in message
    assert "WEIR_GRADER_EXTENSIONS" in message

    async def oracle(*_: object) -> Graded:
        return Graded(value=1)

    monkeypatch.setitem(VERIFIERS, "my_lab.oracle", oracle)
    assert gate.what_is_in_the_way(BY_ORACLE, NO_JUDGE) is None


def test_a_model_that_nobody_has_named_is_refused_with_those_that_are_known() -> None:
    asked = Reward.model_validate({"outcome": {"verifier": "model_judge", "model": "gpt-5"}})
    message = gate.what_is_in_the_way(asked, JUDGE) or ""
    assert "no model 'gpt-5', but 'judge', 'gpt-oss-20b'" in message
    assert "WEIR_JUDGES" in message
    others = Tools(POOL, other_judges={"gpt-5": Judge(JudgeSettings("http://127.0.0.1:1/v1", "x"))})
    assert gate.what_is_in_the_way(asked, others) == "the judge is not up: starting"


def test_clients_code_needs_a_deployment_that_runs_it() -> None:
    own = Reward.model_validate({"outcome": {"verifier": "python", "source": "x"}})
    assert "WEIR_GRADER_PYTHON=on" in (gate.what_is_in_the_way(own, JUDGE) or "")
    assert gate.what_is_in_the_way(own, Tools(POOL, sandbox=POOL)) is None
