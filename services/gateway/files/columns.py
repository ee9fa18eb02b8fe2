"""What graders name of a task must stand in the task files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from protocol.recipe import Recipe
from protocol.rewards import Check, LabelModel, ScoreModel, StringCheck, TextSimilarity

from services.gateway.errors import Problem
from services.gateway.files.shelf import StoredFile

_NAMED = re.compile(r"\{\{\s*item\.(?:metadata\.)?(\w+)")
_ALWAYS = {"id", "prompt", "metadata"}  # a template sees messages as the prompt


def refuse_missing_columns(recipe: Recipe, stored: StoredFile, param: str) -> None:
    """Refuse a job whose tasks lack what its graders need.

    Raises:
        Problem: 400 naming the column, if more tasks lack it than may be ungradable.
    """
    if stored.columns is None:
        return
    for check in (*recipe.reward.outcome, *recipe.reward.process):
        for column in sorted(set(_named(check)) - _ALWAYS):
            have = stored.columns.get(column, 0)
            if stored.tasks - have > recipe.reward.max_ungradable * stored.tasks:
                raise Problem(
                    400,
                    f"{param}: {have} of {stored.tasks} tasks have {column!r}, which the grader "
                    f"{check.label!r} needs of each; add it to the tasks, or change the grader",
                    param=param,
                    code="missing_column",
                )


def _named(check: Check) -> Iterator[str]:
    """The columns without which a check cannot grade a task."""
    texts: list[str] = []
    if check.if_ungradable == "leave_out":
        return
    if check.verifier == "math_answer":
        yield "answer"
    if isinstance(check, StringCheck | TextSimilarity):
        texts = [check.input, check.reference]
    if isinstance(check, ScoreModel | LabelModel):
        texts = [message.content for message in check.input]
    for text in texts:
        yield from _NAMED.findall(text)
