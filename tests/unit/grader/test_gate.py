"""A grader claims nothing that it could not grade, and says what is in the way."""

from __future__ import annotations

import pytest
from protocol.messages import Graded
from protocol.rewards import Reward

from services.grader import gate
from services.grader.judge.judge import Judge
from services.grader.judge.settings import JudgeSettings
from services.grader.verifiers import VERIFIERS

BY_RULE = Reward.model_validate({"process": "equation_steps"})
BY_JUDGE = Reward.model_validate({"process": ["equation_steps", "model_judge"]})
BY_ORACLE = Reward.model_validate({"outcome": "my_lab.oracle"})
JUDGE = Judge(JudgeSettings("http://127.0.0.1:1/v1", "judge"))


def test_nothing_is_in_the_way_of_rules() -> None:
    assert gate.what_is_in_the_way(BY_RULE, None) is None
    assert gate.what_is_in_the_way(BY_RULE, JUDGE) is None


def test_without_a_judge_the_variable_is_named() -> None:
    assert "WEIR_JUDGE_URL" in (gate.what_is_in_the_way(BY_JUDGE, None) or "")


def test_a_judge_that_is_not_up_is_in_the_way() -> None:
    assert gate.what_is_in_the_way(BY_JUDGE, JUDGE) == "the judge is not up: starting"


def test_a_verifier_that_nobody_has_added_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    message = gate.what_is_in_the_way(BY_ORACLE, None) or ""
    assert "'my_lab.oracle'" in message
    assert "WEIR_GRADER_EXTENSIONS" in message

    async def oracle(*_: object) -> Graded:
        return Graded(value=1)

    monkeypatch.setitem(VERIFIERS, "my_lab.oracle", oracle)
    assert gate.what_is_in_the_way(BY_ORACLE, None) is None
