"""What cannot work is refused by name, before anything is queued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from protocol.capacity import worst_case_bytes
from protocol.exchange.connection import Memory

from services.gateway.errors import Problem
from services.gateway.jobs.refusals import check, check_memory, check_room
from services.gateway.models.folders import NOTHING_KNOWN, ModelFacts, facts_of
from tests.builders import a_recipe

SAMPLING = {"max_tokens": 8}


def refused(
    facts: ModelFacts = NOTHING_KNOWN,
    messages: bool = False,
    **tables: Any,
) -> tuple[str | None, str]:
    """The field that the refusal names, and its words."""
    with pytest.raises(Problem) as caught:
        check(a_recipe(**tables), facts, with_messages=["training_file"] * messages)
    assert caught.value.status_code == 400
    return caught.value.param, caught.value.detail


def accepted(facts: ModelFacts = NOTHING_KNOWN, messages: bool = False, **tables: Any) -> None:
    with_messages = ["training_file"] * messages
    check(a_recipe(**tables), facts, has_formulas=True, with_messages=with_messages)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "more steps than can be counted": ({"training": {"steps": 2**62}}, "training.steps"),
    "more pretraining than can be counted": (
        {"algorithm": {"advantage": "gae"}, "critic": {"pretrain_steps": 2**62}},
        "critic.pretrain_steps",
    ),
    "a temperature above the engine's": (
        {"rollout": {"sampling": SAMPLING | {"temperature": 2.1}}},
        "rollout.sampling.temperature",
    ),
    "an empty stop": (
        {"rollout": {"sampling": SAMPLING | {"stop": ["\n", ""]}}},
        "rollout.sampling.stop",
    ),
    "a rate that changes nothing, of the critic": (
        {
            "critic": {"optimizer": {"learning_rate": 1e-306}},
            "algorithm": {"advantage": "gae"},
        },
        "critic.optimizer.learning_rate",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_numbers_with_which_nothing_works_are_refused_by_their_field(case: str) -> None:
    tables, field = BAD[case]
    assert refused(**tables)[0] == f"recipe.{field}"


def test_the_largest_numbers_with_which_all_works_are_accepted() -> None:
    accepted(training={"steps": 2**45})  # times 2, 2 and 64
    for temperature in (0.01, 2.0):
        accepted(rollout={"sampling": SAMPLING | {"temperature": temperature}})


def test_a_formula_that_nobody_here_can_have() -> None:
    algorithm = {"advantage": "my_lab.squared"}
    assert refused(algorithm=algorithm)[0] == "recipe.algorithm.advantage"
    accepted(algorithm=algorithm)


def test_a_context_that_the_model_cannot_read() -> None:
    named, words = refused(ModelFacts(context=32))
    assert named == "recipe.model.max_context"
    assert "the model reads 32 tokens, not 64" in words
    accepted(ModelFacts(context=64))


def test_messages_need_a_chat_template_and_a_prompt_template_needs_prompts() -> None:
    plain, without = {"prompt_template": "{prompt}"}, ModelFacts(has_chat_template=False)
    named, words = refused(without)
    assert named == "recipe.model.prompt_template"
    assert "no chat template" in words
    _, words = refused(without, messages=True, model=plain)
    assert "training_file have messages" in words
    assert "no chat template" in words
    _, words = refused(ModelFacts(has_chat_template=True), messages=True, model=plain)
    assert "leave it out" in words
    accepted(without, model=plain)
    accepted(ModelFacts(has_chat_template=True), messages=True)


def a_model(folder: Path, config: Any, tokenizer: Any = None) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 256}, 256),
        ({"n_positions": 1024, "max_position_embeddings": 2048}, 1024),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4.0}}, 400),
        ({"max_position_embeddings": 100, "rope_parameters": {"a": {"factor": 2}}}, 200),
        ({"max_position_embeddings": 100, "rope_scaling": {"factor": None}}, 100),
        ({}, None),
        ([], None),
    ],
)
def test_the_context_is_read_from_the_configuration(
    tmp_path: Path, config: Any, context: int | None
) -> None:
    assert facts_of(a_model(tmp_path, config)).context == context


def test_a_chat_template_is_found_wherever_it_lies(tmp_path: Path) -> None:
    assert facts_of(a_model(tmp_path, {})).has_chat_template is False
    assert facts_of(a_model(tmp_path, {}, {"chat_template": ""})).has_chat_template is False
    assert facts_of(a_model(tmp_path, {}, {"chat_template": "{{x}}"})).has_chat_template is True
    a_model(tmp_path, {}, {})
    (tmp_path / "tekken.json").touch()
    assert facts_of(str(tmp_path)).has_chat_template is None
    (tmp_path / "chat_template.jinja").touch()
    assert facts_of(str(tmp_path)).has_chat_template is True
    assert facts_of("Qwen/Qwen3-4B") == NOTHING_KNOWN


def test_a_configuration_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{oops")
    with pytest.raises(Problem, match="config") as caught:
        facts_of(str(tmp_path))
    assert (caught.value.status_code, caught.value.param) == (400, "model")
    assert str(tmp_path) not in caught.value.detail


def test_half_of_the_memory_limit_or_all_of_the_machine_is_allowed_and_not_a_byte_more() -> None:
    needed = worst_case_bytes(a_recipe(), {})
    for enough in (Memory(0, None), Memory(0, 2 * needed), Memory(0, None, needed)):
        check_memory(a_recipe(), {}, enough)
    for too_little in (Memory(0, 2 * needed - 1), Memory(0, None, needed - 1)):
        with pytest.raises(Problem, match="8,192 bytes") as caught:
            check_memory(a_recipe(), {}, too_little)
        assert (caught.value.status_code, caught.value.param) == (400, "recipe.rollout")


def test_what_dynamic_sampling_adds_to_the_memory_is_counted_and_said() -> None:
    recipe = a_recipe(training={"dynamic_sampling": True, "max_oversampling": 3.0})
    plain = worst_case_bytes(a_recipe(), {})
    with pytest.raises(Problem, match=r"24,576 bytes .* x 3"):
        check_memory(recipe, {}, Memory(0, 2 * plain))


def test_a_job_is_refused_while_memory_is_nearly_full() -> None:
    for room in (Memory(10**9, None), Memory(75, 100)):
        check_room(room)
    with pytest.raises(Problem, match="DELETE") as caught:
        check_room(Memory(76, 100))
    assert caught.value.status_code == 507
    assert caught.value.headers == {"x-should-retry": "false"}
