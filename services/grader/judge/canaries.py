"""Known solutions that a judge grades between questions, so that its drift shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from prometheus_client import Counter
from protocol.messages import Task, Ungradable

from services.grader.judge.prompt import load_rubric, rubric_form, rubric_messages
from services.grader.judge.question import Question, Verdict

EVERY = 200  # questions
CANARIES = Counter(
    "weir_judge_canaries_total",
    "Known solutions that the judge was asked about, by their level and by the judge's",
    ["level", "judged"],
)
_TEXT = Path(__file__).with_name("canaries.jsonl").read_text("utf-8")
_CANARIES = list(map(json.loads, _TEXT.splitlines()))


def canary_question(number: int, question: Question) -> Question:
    """A known solution to grade by ``holistic``, asked as a question of the run is."""
    canary = _CANARIES[number % len(_CANARIES)]
    rubric = load_rubric("holistic")
    messages = rubric_messages(rubric, Task(**canary["task"]), canary["response"])
    return replace(question, messages=messages, form=rubric_form(rubric))


def count_canary(number: int, answer: Verdict | Ungradable) -> None:
    judged = "none" if isinstance(answer, Ungradable) else str(answer["solution"])
    CANARIES.labels(_CANARIES[number % len(_CANARIES)]["level"], judged).inc()
