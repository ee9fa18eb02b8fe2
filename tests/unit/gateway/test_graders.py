"""How OpenAI's graders become the checks of a recipe, and which are refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from protocol.rewards import (
    Check,
    LabelModel,
    PythonSource,
    Reward,
    ScoreModel,
    StringCheck,
    TextSimilarity,
)
from pydantic import ValidationError

from services.gateway.errors import Problem, explain_body
from services.gateway.openai.graders import GraderToValidate, reward_of

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
    read = GraderToValidate.model_validate({"grader": grader}).grader
    return reward_of(read, "grader")


def checks(grader: object) -> tuple[Check, ...]:
    return reward(grader).outcome


def refusal(grader: object) -> list[str]:
    """One line per problem, each with its field."""
    try:
        checks(grader)
    except ValidationError as error:
        return explain_body(error)
    except Problem as problem:
        return problem.detail.splitlines()
    raise AssertionError("it was not refused")


def test_string_check_and_text_similarity_keep_their_fields() -> None:
    assert checks(EXACT) == (
        StringCheck(input="{{sample.output_text}}", reference="{{ item.answer }}", operation="eq"),
    )
    assert checks(ALIKE) == (
        TextSimilarity(reference="{{item.solution}}", evaluation_metric="rouge_l"),
    )


def test_score_model_becomes_a_question_to_the_judge() -> None:
    (plain,) = checks(JUDGED)
    assert isinstance(plain, ScoreModel)
    assert plain.input[0].content == "{{item.prompt}}\n\n{{sample.output_text}}"
    assert plain.range == (0.0, 1.0)
    params = {
        "seed": 3,
        "temperature": 0.5,
        "max_completions_tokens": 900,
        "reasoning_effort": "high",
        "top_p": 1,
    }
    (tuned,) = checks(JUDGED | {"range": [1, 7], "sampling_params": params})
    assert isinstance(tuned, ScoreModel)
    assert tuned.range == (1.0, 7.0)
    assert (tuned.seed, tuned.temperature, tuned.max_tokens) == (3, 0.5, 900)
    assert tuned.reasoning_effort == "high"


def test_blocks_of_text_are_one_text() -> None:
    blocks = [
        {"type": "input_text", "text": "Grade this: "},
        {"type": "input_text", "text": "{{sample.output_text}}"},
    ]
    messages = [
        {"role": "developer", "content": blocks[0], "type": "message"},
        {"role": "user", "content": blocks},
    ]
    (check,) = checks(JUDGED | {"input": messages})
    assert isinstance(check, ScoreModel)
    assert [(turn.role, turn.content) for turn in check.input] == [
        ("developer", "Grade this: "),
        ("user", "Grade this: {{sample.output_text}}"),
    ]


def test_multi_is_a_formula_of_checks_by_the_names_of_its_graders() -> None:
    found = reward(BOTH | {"graders": {"exact": EXACT, "alike": {"type": "math_answer"}}})
    assert found.formula == BOTH["calculate_output"]
    assert [(check.label, check.verifier) for check in found.outcome] == [
        ("exact", "string_check"),
        ("alike", "math_answer"),
    ]


def test_label_model_and_python_keep_their_fields() -> None:
    (labelled,) = checks(LABELLED)
    assert isinstance(labelled, LabelModel)
    assert (labelled.labels, labelled.passing_labels) == (("good", "bad"), ("good",))
    assert checks(SOURCE) == (PythonSource(source=SOURCE["source"]),)


REFUSED: dict[str, tuple[object, str]] = {
    "a source without a function": (SOURCE | {"source": "x = 1"}, "grader.source"),
    "a label that is none": (LABELLED | {"passing_labels": ["fine"]}, "grader"),
    "endpoint": ({"type": "endpoint", "url": "x"}, "grader.type"),
    "a long template": (EXACT | {"reference": "x" * 100_001}, "grader.reference"),
    "an unknown key": (EXACT | {"refrence": "x"}, "grader.refrence"),
    "the whole item": (EXACT | {"reference": "{{item}}"}, "grader.reference"),
    "a template of nothing known": (
        JUDGED | {"input": [{"role": "user", "content": "{{ question }}"}]},
        "grader.input.0.content",
    ),
    "a template that does not close": (
        EXACT | {"reference": "{{item.answer and {{sample.output_text}}"},
        "grader.reference",
    ),
    "top_p": (JUDGED | {"sampling_params": {"top_p": 0.5}}, "grader.sampling_params.top_p"),
    "multi in multi": (BOTH | {"graders": {"x": BOTH}}, "grader.graders.x.type"),
    "a bad source in multi": (
        BOTH | {"graders": {"exact": EXACT, "alike": SOURCE | {"source": "def grade("}}},
        "grader.graders.alike.source",
    ),
    "many graders": (
        BOTH | {"graders": {f"g{number}": EXACT for number in range(21)}},
        "grader.graders",
    ),
    "a metric that needs a model": (
        ALIKE | {"evaluation_metric": "cosine"},
        "grader.evaluation_metric",
    ),
    "a field of a recipe alone": (EXACT | {"weight": 2.0}, "grader.weight"),
    "a number that is none": (
        JUDGED | {"sampling_params": {"max_completions_tokens": "many"}},
        "grader.sampling_params.max_completions_tokens",
    ),
    "a picture": (
        JUDGED | {"input": [{"role": "user", "content": {"type": "input_image"}}]},
        "grader.input.0.content",
    ),
    "code in a formula": (
        BOTH | {"calculate_output": "exact.real + alike"},
        "grader.calculate_output",
    ),
    "a formula that leaves one out": (
        BOTH | {"calculate_output": "exact ^ 2"},
        "grader.calculate_output",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_recipe_cannot_say_is_refused_with_its_field(case: str) -> None:
    grader, field = REFUSED[case]
    (line,) = refusal(grader)
    assert line.startswith(f"{field}: "), line


def test_braces_around_a_field_are_text() -> None:
    boxed = EXACT | {"reference": r"\boxed{{{item.answer}}} }} and { {x}^{2}}"}
    assert checks(boxed) == (StringCheck(reference=boxed["reference"]),)
