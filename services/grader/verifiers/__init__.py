"""The table of verifiers: a recipe's checks name one each.

Each is asked for one response at a time, thousands at once: it awaits what takes long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from protocol.messages import Score, Task
from protocol.names import VerifierName

from services.grader.tools import Tools
from services.grader.verifiers import environment, equation_steps, judges, math_answer, openai

# (task, text of the response, the recipe's settings of this check, tools); each verifier takes the
# class of checks that `protocol.rewards` makes of its name.
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
