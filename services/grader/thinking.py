"""What a response says once its thinking is left out."""

from __future__ import annotations

_OPENS, _CLOSES = "<think>", "</think>"


def without_thinking(text: str) -> str:
    """The text without ``<think>…</think>``, which the prompt may have opened."""
    before, closes, after = text.partition(_CLOSES)
    if closes and _OPENS not in before:
        text = after
    said, *thoughts = text.split(_OPENS)
    return said + "".join(thought.partition(_CLOSES)[2] for thought in thoughts)
