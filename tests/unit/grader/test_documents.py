"""The examples of the documents on rewards are graded as these say."""

import re
import tomllib

import pytest
from protocol.messages import Task
from protocol.rewards import Check, MathAnswer, PythonSource, Reward

from services.grader.client_code import grade
from services.grader.grading import grade_response
from services.grader.tools import Tools
from services.grader.verifiers import VERIFIERS, equation_steps, math_answer
from tests.architecture.project import ROOT
from tests.builders import a_task
from tests.tables import table

PAGE = (ROOT / "docs/reference/rewards.md").read_text("utf-8")
VERIFIER = (ROOT / "docs/how-to/verifier.md").read_text("utf-8")
EGGS = "A box holds 12 eggs. Ann buys 3 boxes and breaks 4 eggs. How many are left?"

pytestmark = pytest.mark.anyio


def rows(name: str) -> list[list[str]]:
    """The cells of a marked table, without the backticks."""
    _, _, *lines = PAGE.split(f"<!-- {name} -->\n")[1].split("\n<!--")[0].splitlines()
    return [[cell.strip().strip("`") for cell in row.split("|")[1:-1]] for row in lines]


async def test_answers_are_read_by_the_conventions_of_the_page(tools: Tools) -> None:
    table = rows("answers")
    assert len(table) > 10
    for gold, boxed, problem, verdict, why in table:
        task = Task(id="t", prompt=problem or "?", answer=gold)
        score = await math_answer.verify(task, rf"\boxed{{{boxed}}}", MathAnswer(), tools)
        assert score.kind == "graded"
        assert score.value == (verdict == "right"), (gold, boxed, why)
        assert score.reason != "unknown", (gold, boxed)


async def test_derivations_are_worth_what_the_page_says(tools: Tools) -> None:
    (solution,) = re.findall(r"solution\n`(.+?)` and", PAGE)
    task = Task(id="t", prompt=EGGS, answer="32", solution=solution)
    for text, value, reason in rows("steps"):
        score = await equation_steps.verify(task, text, Check(verifier="equation_steps"), tools)
        shown_value = f"{score.value:.2g}" if score.kind == "graded" else ""
        assert (shown_value, score.reason or "") == (value, reason), text


@table("""
    text              | value
    It is about 99.5. | 1
    90, or -12        | 0
    I do not know.    | 0
""")
def test_the_function_of_the_document_grades(text: str, value: float) -> None:
    example = tomllib.loads(re.findall(r"```toml\n(.*?)```", VERIFIER, re.DOTALL)[0])
    (check,) = Reward.model_validate(example["reward"]).outcome
    assert isinstance(check, PythonSource)
    assert grade(check.source, {"output_text": text}, {"answer": "100"}) == {"value": value}


async def test_the_module_of_the_document_grades(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module,) = re.findall(r'```python\n("""my_lab\.brief.*?)```', VERIFIER, re.DOTALL)
    monkeypatch.setitem(VERIFIERS, "my_lab.brief", None)  # it goes with the test
    exec(module, {"__name__": "my_lab"})
    check = {"verifier": "my_lab.brief", "settings": {"most_chars": 1}}
    reward = Reward.model_validate({"outcome": check})
    grades = [await grade_response(reward, a_task(), text, tools) for text in ("no", "2")]
    assert [grade.accuracy for grade in grades] == [0, 1]
