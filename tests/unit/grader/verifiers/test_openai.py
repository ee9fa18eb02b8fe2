"""Two texts compared: exactly, or by a metric; and whose fault it is if that cannot be said."""

import pytest
from protocol.rewards import StringCheck, TextSimilarity

from services.chassis.pool import Cause, Failed
from services.grader.similarity import similarity
from services.grader.templates import MAX_CHARS
from services.grader.tools import Tools
from services.grader.verifiers.openai import string_check, text_similarity
from tests.builders import a_task
from tests.tables import table
from tests.unit.grader.pools import failing_tools
from tests.unit.grader.scores import describe

pytestmark = pytest.mark.anyio

TASK = a_task(answer="Paris", metadata={"street": "straße", "empty": "", "list": [1, "é"]})


@table(
    """
    operation | text                       | reference          | score
    eq        | Paris                      | item.answer        | 1
    eq        | paris                      | item.answer        | 0 wrong
    ne        | Paris                      | item.answer        | 0 wrong
    ne        | Rome                       | item.answer        | 1
    like      | It is Paris.               | item.answer        | 1
    like      | It is PARIS.               | item.answer        | 0 wrong
    ilike     | It is PARIS.               | item.answer        | 1
    ilike     | It is Rome.                | item.answer        | 0 wrong
    ilike     | STRASSE                    | item.street        | 1
    eq        | [1, "é"]                   | item.list          | 1
    eq        | <think>Rome?</think> Paris | item.answer        | 1
    like      | <think>Paris</think>Rome   | item.answer        | 0 wrong
    like      | x                          | item.empty         | ungradable empty_reference
    ilike     | x                          | item.empty         | ungradable empty_reference
    like      |                            | sample.output_text | 0 too_short
    """,
    ("ne", "x" * (MAX_CHARS + 1), "item.answer", "0 too_long"),
)
async def test_each_operation_compares_what_its_templates_say(
    operation: str, text: str, reference: str, score: str, tools: Tools
) -> None:
    templates = {"reference": f"{{{{ {reference} }}}}"}
    if reference.startswith("sample"):
        templates["input"] = "{{item.answer}}"
    check = StringCheck.model_validate({"operation": operation, **templates})
    assert describe(await string_check(TASK, text, check, tools)) == score


# Made with rouge-score 0.1.2 (F-measures), nltk 3.9 (sentence_gleu of 13a tokens), sacrebleu 2.6
# (sentence_bleu) and rapidfuzz 3.14 (fuzz.ratio).
TEXTS = (
    ("The cat is on the mat, I think.", "The cat sat on the mat."),
    ("x = 12 apples in 4 rows of 3", "4 rows of 3 apples make x = 12 apples"),
)
GOLDEN = {
    "fuzzy_match": (0.777778, 0.430769),
    "bleu": (0.205567, 0.534174),
    "gleu": (0.294118, 0.588235),
    "rouge_1": (0.714286, 0.823529),
    "rouge_2": (0.5, 0.666667),
    "rouge_3": (0.2, 0.461538),
    "rouge_4": (0.0, 0.181818),
    "rouge_5": (0.0, 0.0),
    "rouge_l": (0.714286, 0.470588),
}


@pytest.mark.parametrize("metric", GOLDEN)
def test_the_metrics_are_those_of_the_known_libraries(metric: str) -> None:
    values = [similarity(metric, *texts) for texts in TEXTS]
    assert values == pytest.approx(GOLDEN[metric], abs=1e-6)


@table("""
    metric      | text           | reference  | value
    rouge_2     | 42             | 42         | None
    rouge_2     |                | 42         | None
    rouge_2     | something else | 42         | None
    rouge_5     | x = 3 or 4     | x = 3 or 4 | None
    rouge_1     | +              | +          | None
    rouge_l     | +              | +          | None
    bleu        | words          | <skipped>  | None
    gleu        | words          | <skipped>  | None
    rouge_2     | x 42           | x 42       | 1
    rouge_2     | 42             | x 42       | 0
    fuzzy_match | -              | +          | 0
    rouge_1     | сумма равна 5  | Сумма: 5   | 0.8
""")
def test_a_reference_without_the_words_that_a_metric_counts_says_nothing(
    metric: str, text: str, reference: str, value: float | None
) -> None:
    assert similarity(metric, text, reference) == (value and pytest.approx(value))


ANSWER = "1 + 1 = 2"
HALF = "x" * (MAX_CHARS // 2)
OF_SOLUTION = {"reference": "{{item.solution}}", "evaluation_metric": "rouge_2"}
OF_ANSWER = {
    "input": "{{item.answer}}",
    "reference": "{{ sample.output_text }}",
    "evaluation_metric": "rouge_2",
}


async def checked(text: str, solution: str, settings: dict[str, str], tools: Tools) -> str:
    task = a_task(answer=ANSWER, solution=solution)
    check = TextSimilarity.model_validate(settings)
    return describe(await text_similarity(task, text, check, tools))


OF_SOLUTION = {"reference": "{{item.solution}}", "evaluation_metric": "rouge_2"}
OF_ANSWER = {
    "input": "{{item.answer}}",
    "reference": "{{ sample.output_text }}",
    "evaluation_metric": "rouge_2",
}
HALF = "x" * (MAX_CHARS // 2)
THRICE = "{{sample.output_text}}" * 3


@pytest.mark.parametrize(
    ("text", "solution", "settings", "score"),
    [
        (ANSWER, "2", {}, "1"),
        ("1 + 1", "2", {"evaluation_metric": "rouge_1"}, "0.8"),
        (f"<think>So 1 + 1 = 3?</think>\n{ANSWER}", "2", {}, "1"),
        ("x", "2", {"reference": "{{item.metadata.x}}"}, "ungradable unknown_field"),
        ("x", " ", OF_SOLUTION, "ungradable empty_reference"),
        ("x = 42", "42", OF_SOLUTION, "ungradable reference_too_short"),
        ("", "42", OF_SOLUTION, "ungradable reference_too_short"),
        ("x", HALF * 3, OF_SOLUTION, "ungradable reference_too_long"),
        # No response makes itself ungradable as the reference.
        *((text, "2", OF_ANSWER, "0 too_short") for text in ("", " ", "42")),
        (HALF, "2", {"reference": THRICE}, "0 too_long"),
        (HALF, "2", {"input": THRICE}, "0 too_long"),
        (HALF * 3, "2", {}, "0 too_long"),
    ],
    ids=range(14),
)
async def test_the_score_is_the_metric_of_the_filled_templates_or_says_whose_fault_it_is(
    text: str, solution: str, settings: dict[str, str], score: str, tools: Tools
) -> None:
    assert await checked(text, solution, settings, tools) == score


async def test_a_worker_that_is_stopped_says_nothing_about_the_response() -> None:
    tools, _ = failing_tools(Failed(Cause.TIMEOUT))
    assert await checked("x", "y", {}, tools) == "ungradable not_measured"
