"""How alike two texts are, by metric; and whose fault it is if that cannot be said."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest
from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import TextSimilarity

from services.grader.similarity import similarity
from services.grader.templates import MAX_CHARS
from services.grader.tools import Tools
from services.grader.verifiers import text_similarity
from tests.builders import a_task

pytestmark = pytest.mark.slow

# Made with rouge-score 0.1.2 (F-measures), nltk 3.9 (sentence_gleu of 13a tokens), sacrebleu 2.6
# (sentence_bleu) and rapidfuzz 3.14 (fuzz.ratio).
GOLDEN = {
    ("The cat is on the mat, I think.", "The cat sat on the mat."): {
        "fuzzy_match": 0.777778,
        "bleu": 0.205567,
        "gleu": 0.294118,
        "rouge_1": 0.714286,
        "rouge_2": 0.5,
        "rouge_3": 0.2,
        "rouge_4": 0.0,
        "rouge_l": 0.714286,
    },
    ("x = 12 apples in 4 rows of 3", "4 rows of 3 apples make x = 12 apples"): {
        "fuzzy_match": 0.430769,
        "bleu": 0.534174,
        "gleu": 0.588235,
        "rouge_1": 0.823529,
        "rouge_2": 0.666667,
        "rouge_3": 0.461538,
        "rouge_4": 0.181818,
        "rouge_5": 0.0,
        "rouge_l": 0.470588,
    },
}


@pytest.mark.parametrize("texts", GOLDEN, ids=lambda texts: texts[1])
def test_the_metrics_are_those_of_the_known_libraries(texts: tuple[str, str]) -> None:
    found = {metric: similarity(metric, *texts) for metric in GOLDEN[texts]}
    assert found == pytest.approx(GOLDEN[texts], abs=1e-6)


@pytest.mark.parametrize(
    "metric", get_args(TextSimilarity.model_fields["evaluation_metric"].annotation)
)
def test_equal_texts_are_alike_and_others_are_not(metric: str) -> None:
    text = "Each of the 5 boxes holds 3 pens."
    assert similarity(metric, text, text) == pytest.approx(1)
    assert similarity(metric, "", text) == 0
    assert similarity(metric, "qqq", text) == 0


@pytest.mark.parametrize(
    ("metric", "reference"),
    [
        ("rouge_2", "42"),
        ("rouge_5", "x = 3 or 4"),
        ("rouge_1", "+"),
        ("rouge_l", "+"),
        ("bleu", "<skipped>"),
        ("gleu", "<skipped>"),
    ],
)
def test_a_reference_without_the_words_that_a_metric_counts_says_nothing(
    metric: str, reference: str
) -> None:
    for text in (reference, "", "something else"):
        assert similarity(metric, text, reference) is None


def test_a_reference_that_is_just_long_enough_says_what_it_says_in_any_script() -> None:
    assert similarity("rouge_2", "x 42", "x 42") == 1
    assert similarity("rouge_2", "42", "x 42") == 0
    assert similarity("fuzzy_match", "-", "+") == 0
    assert similarity("rouge_1", "сумма равна 5", "Сумма: 5") == pytest.approx(0.8)


# ---------------------------------------------------------------------- the verifier


async def checked(text: str, tools: Tools, *, solution: str = "2", **settings: Any) -> Score:
    task = a_task(answer="1 + 1 = 2", solution=solution)
    return await text_similarity.verify(task, text, TextSimilarity(**settings), tools)


@pytest.mark.anyio
async def test_the_score_is_the_metric_of_the_filled_templates(tools: Tools) -> None:
    assert await checked("1 + 1 = 2", tools) == Graded(value=1)
    half = await checked("1 + 1", tools, evaluation_metric="rouge_1")
    assert half == Graded(value=0.8)
    thought = await checked("<think>So 1 + 1 = 3?</think>\n1 + 1 = 2", tools)
    assert thought == Graded(value=1)


@pytest.mark.anyio
async def test_what_cannot_be_compared_is_ungradable(tools: Tools) -> None:
    missing = await checked("x", tools, reference="{{item.metadata.x}}")
    assert missing == Ungradable(reason="unknown_field")
    settings = {"reference": "{{item.solution}}", "evaluation_metric": "rouge_2"}
    for text, solution, reason in [
        ("x", " ", "empty_reference"),
        ("x = 42", "42", "reference_too_short"),
        ("", "42", "reference_too_short"),
    ]:
        score = await checked(text, tools, solution=solution, **settings)
        assert score == Ungradable(reason=reason)


@pytest.mark.anyio
@pytest.mark.parametrize("text", ["", " ", "42"])
async def test_no_response_makes_itself_ungradable_as_the_reference(
    text: str, tools: Tools
) -> None:
    swapped = {"input": "{{item.answer}}", "reference": "{{ sample.output_text }}"}
    score = await checked(text, tools, evaluation_metric="rouge_2", **swapped)
    assert score == Graded(value=0, reason="too_short")


@pytest.mark.anyio
async def test_texts_over_the_limit_are_too_long(tools: Tools) -> None:
    too_long = Graded(value=0, reason="too_long")
    half = "x" * (MAX_CHARS // 2)
    assert await checked(half * 3, tools) == too_long
    assert await checked(half, tools, input="{{sample.output_text}}" * 3) == too_long
    assert await checked(half, tools, reference="{{sample.output_text}}" * 3) == too_long
    score = await checked("x", tools, reference="{{item.solution}}", solution=half * 3)
    assert score == Ungradable(reason="reference_too_long")


@pytest.mark.anyio
async def test_a_worker_that_is_stopped_says_nothing_about_the_response(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_similarity, "_DEADLINE_S", 0.3)
    texts = ["".join(random.Random(seed).choices("abc ", k=MAX_CHARS)) for seed in (1, 2)]
    score = await checked(texts[0], tools, solution=texts[1], reference="{{item.solution}}")
    assert score == Ungradable(reason="not_measured")
