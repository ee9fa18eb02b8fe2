"""What a response says to a judge, and when that is its own fault."""

from __future__ import annotations

from protocol.messages import Graded

from services.grader.thinking import without_thinking

_MAX_CHARS = 200_000  # far above what a judge's context takes
_MAX_CHARS_THINKING = 2_000_000  # with the thinking, which has to be looked through


def said(text: str) -> str | Graded:
    """The response without its thinking; a 0 if nothing is left, or far too much for any judge."""
    if len(text) > _MAX_CHARS_THINKING:
        return Graded(value=0, reason="too_long")
    solution = without_thinking(text).strip()
    if len(solution) > _MAX_CHARS:
        return Graded(value=0, reason="too_long")
    return solution or Graded(value=0, reason="no_solution")
