"""Known solutions that a judge grades between questions: one that drifts to a single grade shows."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from prometheus_client import Counter
from protocol.messages import Task, Ungradable

from services.grader.judge.prompt import load_rubric, rubric_form, rubric_messages
from services.grader.judge.question import Question, Verdict

EVERY = 200  # questions
CANARIES = Counter(
    "weir_judge_canaries_total",
    "Known solutions that the judge was asked about, by what they are and what it said",
    ["known", "judged"],
)
_FILE = Path(__file__).with_name("canaries.jsonl")


def canary_question(number: int, question: Question) -> Question:
    """A known solution to grade by ``holistic``, asked as a question of the run is."""
    canary = _canaries()[number % len(_canaries())]
    task = Task(prompt=canary["problem"], **{n: canary[n] for n in ("id", "answer", "solution")})
    rubric = load_rubric("holistic")
    messages = rubric_messages(rubric, task, canary["response"])
    return replace(question, messages=messages, form=rubric_form(rubric))


def count_canary(number: int, answer: Verdict | Ungradable) -> None:
    known = "right" if _canaries()[number % len(_canaries())]["is_right"] else "wrong"
    judged = "none"
    if not isinstance(answer, Ungradable):
        score = load_rubric("holistic").score({name: str(level) for name, level in answer.items()})
        judged = "right" if score == 1 else "wrong"
    CANARIES.labels(known, judged).inc()


@cache
def _canaries() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _FILE.read_text("utf-8").splitlines()]
