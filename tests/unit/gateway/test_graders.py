"""How OpenAI's graders become the checks of a recipe, and which are refused with a remedy."""

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
from tests.tables import table
from tests.unit.gateway.graders import ALIKE, EXACT, GRADERS, JUDGED, LABELLED, SOURCE

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
    assert single_check(EXACT) == StringCheck()
    assert single_check(ALIKE) == TextSimilarity(
        reference="{{item.solution}}", evaluation_metric="rouge_l"
    )
    labelled = single_check(LABELLED)
    assert isinstance(labelled, LabelModel)
    assert labelled.passing_labels == ("good",)
    assert single_check(SOURCE) == PythonSource(source=SOURCE["source"])
    boxed = r"\boxed{{{item.answer}}} }} and { {x}^{2}}"  # braces around a field are text
    assert single_check(EXACT | {"reference": boxed}) == StringCheck(reference=boxed)


def test_score_model_becomes_a_question_to_the_judge() -> None:
    assert single_check(JUDGED).range == (0.0, 1.0)
    params = {"seed": 3, "temperature": 0.5, "reasoning_effort": "high"}
    names = {"top_p": 1, "max_completions_tokens": 900}
    tuned = single_check(JUDGED | {"range": [1, 7], "sampling_params": params | names})
    assert tuned == ScoreModel.model_validate(
        {"input": JUDGED["input"], "range": [1, 7], "max_tokens": 900, "model": "judge", **params}
    )


def test_blocks_of_text_are_one_text() -> None:
    texts = ("Grade this: ", "{{sample.output_text}}")
    blocks = [{"type": "input_text", "text": text} for text in texts]
    messages = [
        {"role": "developer", "content": blocks[0], "type": "message"},
        {"role": "user", "content": blocks},
    ]
    developer, user = single_check(JUDGED | {"input": messages}).input
    assert (developer.role, developer.content) == ("developer", "Grade this: ")
    assert (user.role, user.content) == ("user", "Grade this: {{sample.output_text}}")


def test_multi_is_a_formula_of_checks_by_the_names_of_its_graders() -> None:
    built = reward(BOTH | {"graders": {"exact": EXACT, "alike": {"type": "math_answer"}}})
    assert built.formula == BOTH["calculate_output"]
    exact, alike = built.outcome
    assert (exact.label, exact.verifier) == ("exact", "string_check")
    assert (alike.label, alike.verifier) == ("alike", "math_answer")


SPOILT = SOURCE | {"source": "def grade("}


@table(
    """
    name     | changes                                                           | field
    source   | {"source": "x = 1"}                                               | source
    labelled | {"passing_labels": ["fine"]}                                      |
    exact    | {"type": "endpoint", "url": "x"}                                  | type
    exact    | {"refrence": "x"}                                                 | refrence
    exact    | {"reference": "{{item}}"}                                         | reference
    exact    | {"reference": "{{item.answer and {{sample.output_text}}"}         | reference
    exact    | {"weight": 2.0}                                                   | weight
    judged   | {"input": [{"role": "user", "content": "{{ question }}"}]}        | input.0.content
    judged   | {"input": [{"role": "user", "content": {"type": "input_image"}}]} | input.0.content
    judged | {"sampling_params": {"top_p": 0.5}} | sampling_params.top_p
    judged | {"sampling_params": {"seed": "many"}} | sampling_params.seed
    alike | {"evaluation_metric": "cosine"} | evaluation_metric
    both     | {"calculate_output": "exact.real + alike"}                        | calculate_output
    both     | {"calculate_output": "exact ^ 2"}                                 | calculate_output
    """,
    ("exact", {"reference": "x" * 100_001}, "reference"),
    ("both", {"graders": {"x": BOTH}}, "graders.x.type"),
    ("both", {"graders": {"exact": EXACT, "alike": SPOILT}}, "graders.alike.source"),
    ("both", {"graders": {f"g{n}": EXACT for n in range(21)}}, "graders"),
)
def test_what_the_recipe_cannot_say_is_refused_with_its_field(
    name: str, changes: dict[str, Any], field: str
) -> None:
    """A formula, for one, must leave no grader out."""
    with pytest.raises((Problem, ValidationError)) as caught:
        reward({**GRADERS, "both": BOTH}[name] | changes)
    error = caught.value
    (line,) = error.detail.splitlines() if isinstance(error, Problem) else explain_body(error)
    assert line.partition(": ")[0] == f"grader.{field}".rstrip(".")
