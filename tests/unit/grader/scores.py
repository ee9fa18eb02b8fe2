"""Scores in words."""

from protocol.messages import Score


def describe(score: Score) -> str:
    """Return the value and the reason, as in "0 wrong" or "ungradable starved"."""
    value = f"{score.value:.4g}" if score.kind == "graded" else "ungradable"
    return f"{value} {score.reason or ''}".rstrip()
