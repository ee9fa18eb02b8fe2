"""How OpenAI's graders become the checks of a recipe, and which are refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.rewards import (
    LabelModel,
    PythonSource,
    Reward,
    ScoreModel,
    StringCheck,
    TextSimilarity,
)
from pydantic import ValidationError

from services.gateway.api.graders import GraderToValidate
from services.gateway.api.openai.graders import build_reward
from services.gateway.errors import Problem, explain_body

EXACT: dict[str, Any] = {
    "type": "string_check",
    "name": "exact",
    "input": "{{sample.output_text}}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
ALIKE: dict[str, Any] = {
    "type": "text_similarity",
    "name": "alike",
    "input": "{{sample.output_text}}",
    "reference": "{{item.solution}}",
    "evaluation_metric": "rouge_l",
}
JUDGED: dict[str, Any] = {
    "type": "score_model",
    "name": "judged",
    "model": "judge",
    "input": [{"role": "user", "content": "{{item.prompt}}\n\n{{sample.output_text}}"}],
}
LABELLED: dict[str, Any] = {
    "type": "label_model",
    "name": "labelled",
    "model": "judge",
    "input": [{"role": "user", "content": "{{sample.output_text}}"}],
    "labels": ["good", "bad"],
    "passing_labels": ["good"],
}
SOURCE: dict[str, Any] = {
    "type": "python",
    "name": "own",
    "source": "def grade(sample, item):\n    return 1.0",
    "image_tag": "2025-05-08",
}
BOTH: dict[str, Any] = {
    "type": "multi",
    "name": "both",
    "graders": {"exact": EXACT, "alike": ALIKE},
    "calculate_output": "0.7 * exact + 0.3 * alike",
}


def reward(grader: object) -> Reward:
    return build_reward(GraderToValidate.model_validate({"grader": grader}).grader, "grader")


def single_check(grader: object) -> Any:
    (check,) = reward(grader).outcome
    return check


def test_graders_keep_their_fields() -> None:
    assert single_check(EXACT) == StringCheck(reference="{{ item.answer }}")
    assert single_check(ALIKE) == TextSimilarity(
        reference="{{item.solution}}", evaluation_metric="rouge_l"
    )
    labelled = single_check(LABELLED)
    assert isinstance(labelled, LabelModel)
    assert labelled.labels == ("good", "bad")
    assert labelled.passing_labels == ("good",)
    assert single_check(SOURCE) == PythonSource(source=SOURCE["source"])
    boxed = r"\boxed{{{item.answer}}} }} and { {x}^{2}}"  # braces around a field are text
    assert single_check(EXACT | {"reference": boxed}) == StringCheck(reference=boxed)


def test_score_model_becomes_a_question_to_the_judge() -> None:
    plain = single_check(JUDGED)
    assert isinstance(plain, ScoreModel)
    assert plain.input[0].content == "{{item.prompt}}\n\n{{sample.output_text}}"
    assert plain.range == (0.0, 1.0)
    params = {"seed": 3, "temperature": 0.5, "reasoning_effort": "high", "top_p": 1}
    params["max_completions_tokens"] = 900
    tuned = single_check(JUDGED | {"range": [1, 7], "sampling_params": params})
    assert tuned.range == (1.0, 7.0)
    assert tuned.reasoning_effort == "high"
    assert tuned.seed == 3
    assert tuned.temperature == 0.5
    assert tuned.max_tokens == 900


def test_blocks_of_text_are_one_text() -> None:
    texts = ("Grade this: ", "{{sample.output_text}}")
    blocks = [{"type": "input_text", "text": text} for text in texts]
    messages = [
        {"role": "developer", "content": blocks[0], "type": "message"},
        {"role": "user", "content": blocks},
    ]
    assert [
        (turn.role, turn.content) for turn in single_check(JUDGED | {"input": messages}).input
    ] == [
        ("developer", "Grade this: "),
        ("user", "Grade this: {{sample.output_text}}"),
    ]


def test_multi_is_a_formula_of_checks_by_the_names_of_its_graders() -> None:
    built = reward(BOTH | {"graders": {"exact": EXACT, "alike": {"type": "math_answer"}}})
    assert built.formula == BOTH["calculate_output"]
    assert [(check.label, check.verifier) for check in built.outcome] == [
        ("exact", "string_check"),
        ("alike", "math_answer"),
    ]


def asks(content: Any) -> dict[str, Any]:
    return JUDGED | {"input": [{"role": "user", "content": content}]}


OPEN = "{{item.answer and {{sample.output_text}}"
TOO_MANY = {f"g{number}": EXACT for number in range(21)}
SPOILT = {"exact": EXACT, "alike": SOURCE | {"source": "def grade("}}
PARAMS = "sampling_params"
REFUSED: dict[str, tuple[object, str]] = {
    "a source without a function": (SOURCE | {"source": "x = 1"}, "source"),
    "a label that is none": (LABELLED | {"passing_labels": ["fine"]}, ""),
    "endpoint": ({"type": "endpoint", "url": "x"}, "type"),
    "a long template": (EXACT | {"reference": "x" * 100_001}, "reference"),
    "an unknown key": (EXACT | {"refrence": "x"}, "refrence"),
    "the whole item": (EXACT | {"reference": "{{item}}"}, "reference"),
    "a template of nothing known": (asks("{{ question }}"), "input.0.content"),
    "a template that does not close": (EXACT | {"reference": OPEN}, "reference"),
    "top_p": (JUDGED | {PARAMS: {"top_p": 0.5}}, f"{PARAMS}.top_p"),
    "multi in multi": (BOTH | {"graders": {"x": BOTH}}, "graders.x.type"),
    "a bad source in multi": (BOTH | {"graders": SPOILT}, "graders.alike.source"),
    "many graders": (BOTH | {"graders": TOO_MANY}, "graders"),
    "a metric that needs a model": (ALIKE | {"evaluation_metric": "cosine"}, "evaluation_metric"),
    "a field of a recipe alone": (EXACT | {"weight": 2.0}, "weight"),
    "a number that is none": (
        JUDGED | {PARAMS: {"max_completions_tokens": "many"}},
        f"{PARAMS}.max_completions_tokens",
    ),
    "a picture": (asks({"type": "input_image"}), "input.0.content"),
    "code in a formula": (BOTH | {"calculate_output": "exact.real + alike"}, "calculate_output"),
    "a formula that leaves one out": (BOTH | {"calculate_output": "exact ^ 2"}, "calculate_output"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_recipe_cannot_say_is_refused_with_its_field(case: str) -> None:
    grader, field = REFUSED[case]
    with pytest.raises((Problem, ValidationError)) as caught:
        reward(grader)
    error = caught.value
    (line,) = error.detail.splitlines() if isinstance(error, Problem) else explain_body(error)
    assert line.partition(": ")[0] == f"grader.{field}".rstrip(".")
