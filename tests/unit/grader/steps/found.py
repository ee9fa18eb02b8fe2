"""The steps of a text that have a verdict."""

from __future__ import annotations

from services.grader.steps import UNREAD, Step
from services.grader.steps.derivation import derive


def judge(text: str, most: int) -> list[Step]:
    return [step for step in derive(text, "", "", "", most).steps if step.verdict != UNREAD]
