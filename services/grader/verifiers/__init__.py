"""The table of verifiers, by the names in a recipe's checks.

A verifier scores one response a call, and thousands of calls run at once, so it must not block.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from protocol.messages import Score, Task
from protocol.names import VerifierName

from services.grader.tools import Tools
from services.grader.verifiers import environment, equation_steps, judges, math_answer, openai

# (task, text of the response, check, tools); the check is of the verifier's class in
# `protocol.rewards`.
Verifier = Callable[[Task, str, Any, Tools], Awaitable[Score]]

VERIFIERS: dict[VerifierName, Verifier] = {
    "math_answer": math_answer.verify,
    "equation_steps": equation_steps.verify,
    "model_judge": judges.model_judge,
    "score_model": judges.score_model,
    "label_model": judges.label_model,
    "string_check": openai.string_check,
    "text_similarity": openai.text_similarity,
    "python": openai.python,
    "environment": environment.verify,
}
