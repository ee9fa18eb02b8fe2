"""A grader claims nothing that it could not grade, and says what is in the way."""

from __future__ import annotations

import pytest
from protocol.messages import Graded
from protocol.rewards import Reward

from services.grader import gate
from services.grader.judge.judge import Judge
from services.grader.judge.settings import JudgeSettings
from services.grader.pool import Pool
from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS

BY_RULE = Reward.model_validate({"process": "equation_steps"})
BY_JUDGE = Reward.model_validate({"process": ["equation_steps", "model_judge"]})
BY_ORACLE = Reward.model_validate({"outcome": "my_lab.oracle"})
POOL = Pool(1)  # never opened
NO_JUDGE = Tools(POOL)
JUDGE = Tools(POOL, Judge(JudgeSettings("http://127.0.0.1:1/v1", "gpt-oss-20b")))


def test_nothing_is_in_the_way_of_rules() -> None:
    assert gate.what_is_in_the_way(BY_RULE, NO_JUDGE) is None
    assert gate.what_is_in_the_way(BY_RULE, JUDGE) is None


def test_without_a_judge_the_variable_is_named() -> None:
    assert "WEIR_JUDGE_URL" in (gate.what_is_in_the_way(BY_JUDGE, NO_JUDGE) or "")


def test_a_judge_that_is_not_up_is_in_the_way() -> None:
    assert gate.what_is_in_the_way(BY_JUDGE, JUDGE) == "the judge is not up: starting"


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
