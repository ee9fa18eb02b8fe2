"""A recipe that cannot work is refused by its field, before it is queued."""

import tomllib
from typing import Any

import pytest
from protocol.capacity import worst_case_bytes
from protocol.exchange.connection import Memory

from services.gateway.core.jobs.refusals import check_free_memory, check_memory_need, check_recipe
from services.gateway.core.models.folders import UNKNOWN_FACTS, ModelFacts
from services.gateway.errors import Problem
from tests.builders import a_recipe
from tests.tables import table
from tests.unit.gateway.refusing import refused

WITH = ModelFacts(has_chat_template=True)
WITHOUT = ModelFacts(has_chat_template=False)
PLAIN = {"model": {"prompt_template": "{prompt}"}}


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


PLAIN_CRITIC = "algorithm.advantage = 'gae'\ncritic."


@table(
    """
    settings                                                 | field
    training.steps = 4611686018427387904                     | training.steps
    rollout.sampling = { max_tokens = 8, temperature = 2.1 } | rollout.sampling.temperature
    algorithm.advantage = 'my_lab.squared'                   | algorithm.advantage
""",
    (f"{PLAIN_CRITIC}pretrain_steps = 4611686018427387904", "critic.pretrain_steps"),
    (
        f"{PLAIN_CRITIC}optimizer.learning_rate = 1e-306",
        "critic.optimizer.learning_rate",
    ),
)
def test_a_recipe_that_cannot_work_is_refused_by_its_field(settings: str, field: str) -> None:
    with refused(400, param=f"recipe.{field}"):
        check(tomllib.loads(settings))


def test_a_recipe_that_fits_no_model_is_refused_by_its_field() -> None:
    with refused(400, param="recipe.model.max_context"):
        check({}, ModelFacts(context=32))
    for tables, facts, messages in (({}, WITHOUT, False), (PLAIN, WITH, True)):
        with refused(400, param="recipe.model.prompt_template"):
            check(tables, facts, messages)


def test_a_recipe_at_the_limit_is_accepted() -> None:
    check({"training": {"steps": 2**45}})  # times 2, 2 and 64
    for temperature in (0.01, 2.0):
        check({"rollout": {"sampling": {"max_tokens": 8, "temperature": temperature}}})
    check({"algorithm": {"advantage": "my_lab.squared"}}, has_formulas=True)
    check({}, ModelFacts(context=64))
    for with_messages in (False, True):
        check(PLAIN, WITHOUT, with_messages)
    check({}, WITH, True)


def test_half_of_the_memory_limit_or_all_of_the_machine_is_allowed_and_not_a_byte_more() -> None:
    needed = worst_case_bytes(a_recipe(), {})
    for enough in (Memory(0, None), Memory(0, 2 * needed), Memory(0, None, needed)):
        check_memory_need(a_recipe(), {}, enough)
    for too_little in (Memory(0, 2 * needed - 1), Memory(0, None, needed - 1)):
        with refused(400, param="recipe.rollout", match="8,192 bytes"):
            check_memory_need(a_recipe(), {}, too_little)
    sampled_anew = a_recipe(training={"dynamic_sampling": True, "max_oversampling": 3.0})
    with pytest.raises(Problem, match=r"24,576 bytes .* x 3"):
        check_memory_need(sampled_anew, {}, Memory(0, 2 * needed))


def test_a_job_is_refused_while_memory_is_nearly_full() -> None:
    for room in (Memory(10**9, None), Memory(75, 100)):
        check_free_memory(room)
    with refused(507, "no_room") as caught:
        check_free_memory(Memory(76, 100))
    assert caught.value.headers == {"x-should-retry": "false"}
