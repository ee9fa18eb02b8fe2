"""The table of verifiers: a recipe names one for the outcome and perhaps one for the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from protocol.messages import Score, Task
from protocol.recipe import VerifierName

from services.grader.tools import Tools
from services.grader.verifiers import equation_steps, math_answer

Verifier = Callable[[Task, str, Tools], Awaitable[Score]]  # (task, text of the response, tools)

VERIFIERS: Mapping[VerifierName, Verifier] = {
    "math_answer": math_answer.verify,
    "equation_steps": equation_steps.verify,
}
