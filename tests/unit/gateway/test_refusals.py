"""A recipe that cannot work is refused by its field, before it is queued."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.capacity import worst_case_bytes
from protocol.exchange.connection import Memory

from services.gateway.core.jobs.refusals import check_free_memory, check_memory_need, check_recipe
from services.gateway.core.models.folders import UNKNOWN_FACTS, ModelFacts
from services.gateway.errors import Problem
from tests.builders import a_recipe

WITH = ModelFacts(has_chat_template=True)
WITHOUT = ModelFacts(has_chat_template=False)
PLAIN = {"model": {"prompt_template": "{prompt}"}}
FORMULA = {"algorithm": {"advantage": "my_lab.squared"}}


def sampling(**values: Any) -> dict[str, Any]:
    return {"rollout": {"sampling": {"max_tokens": 8, **values}}}


def critic(**values: Any) -> dict[str, Any]:
    return {"algorithm": {"advantage": "gae"}, "critic": values}


def check(
    tables: dict[str, Any],
    facts: ModelFacts = UNKNOWN_FACTS,
    messages: bool = False,
    has_formulas: bool = False,
) -> None:
    with_messages = ["training_file"] * messages
    check_recipe(
        a_recipe(**tables), facts, has_extensions=has_formulas, message_fields=with_messages
    )


BAD: dict[str, tuple[Any, ...]] = {
    "more steps than can be counted": ("training.steps", {"training": {"steps": 2**62}}),
    "more pretraining than that": ("critic.pretrain_steps", critic(pretrain_steps=2**62)),
    "a temperature above the engine's": (
        "rollout.sampling.temperature",
        sampling(temperature=2.1),
    ),
    "a rate that changes nothing, of the critic": (
        "critic.optimizer.learning_rate",
        critic(optimizer={"learning_rate": 1e-306}),
    ),
    "a formula that nobody has": ("algorithm.advantage", FORMULA),
    "a context beyond the model's": ("model.max_context", {}, ModelFacts(context=32)),
    "no chat template": ("model.prompt_template", {}, WITHOUT),
    "messages and a prompt template": ("model.prompt_template", PLAIN, WITH, True),
}


@pytest.mark.parametrize("case", BAD)
def test_a_recipe_that_cannot_work_is_refused_by_its_field(case: str) -> None:
    field, *arguments = BAD[case]
    with pytest.raises(Problem) as caught:
        check(*arguments)
    assert caught.value.status_code == 400
    assert caught.value.param == f"recipe.{field}"


def test_a_recipe_at_the_limit_is_accepted() -> None:
    check({"training": {"steps": 2**45}})  # times 2, 2 and 64
    for temperature in (0.01, 2.0):
        check(sampling(temperature=temperature))
    check(FORMULA, has_formulas=True)
    check({}, ModelFacts(context=64))
    for with_messages in (False, True):
        check(PLAIN, WITHOUT, with_messages)
    check({}, WITH, True)


def test_half_of_the_memory_limit_or_all_of_the_machine_is_allowed_and_not_a_byte_more() -> None:
    needed = worst_case_bytes(a_recipe(), {})
    for enough in (Memory(0, None), Memory(0, 2 * needed), Memory(0, None, needed)):
        check_memory_need(a_recipe(), {}, enough)
    for too_little in (Memory(0, 2 * needed - 1), Memory(0, None, needed - 1)):
        with pytest.raises(Problem, match="8,192 bytes") as caught:
            check_memory_need(a_recipe(), {}, too_little)
        assert caught.value.status_code == 400
        assert caught.value.param == "recipe.rollout"
    sampled_anew = a_recipe(training={"dynamic_sampling": True, "max_oversampling": 3.0})
    with pytest.raises(Problem, match=r"24,576 bytes .* x 3"):
        check_memory_need(sampled_anew, {}, Memory(0, 2 * needed))


def test_a_job_is_refused_while_memory_is_nearly_full() -> None:
    for room in (Memory(10**9, None), Memory(75, 100)):
        check_free_memory(room)
    with pytest.raises(Problem) as caught:
        check_free_memory(Memory(76, 100))
    assert caught.value.status_code == 507
    assert caught.value.code == "no_room"
    assert caught.value.headers == {"x-should-retry": "false"}
