r"""What a letter stands for, said behind an answer: ``2^n, n \in \mathbb{N}``."""

from __future__ import annotations

import re

_COUNTS = frozenset("jklmn")  # letters that stand for whole numbers, if any do; i may be imaginary
_DOMAIN = re.compile(
    r"(?P<rest>.*[^, ]) ?(?:(?:, ?)?(?:\\forall|\\text ?\{ ?for(?: all| any| every)? ?\})|,) ?"
    r"(?P<letter>[a-zA-Z]) ?(?:\\in ?\\mathbb ?\{?(?P<set>[NZR])\}?|\\ge ?[01])",
    re.DOTALL,
)
_RESTRICTS = re.compile(r"[<>,]|\\(?:[lgn]e|in|pm|mp|cup|text)(?![a-zA-Z])")
_GOES_BOTH_WAYS = re.compile(r"\\pi|\\circ")


def without_domain(gold: str, answer: str) -> str:
    r"""The answer without what is said of a letter that the gold has too, and says nothing of.

    It may be real, or a whole number if it has a name for it. Of solutions that go both ways, as in
    ``k\pi``, ``k \in \mathbb{N}`` is only a half.
    """
    match = _DOMAIN.fullmatch(answer)
    if match is None or _RESTRICTS.search(gold) or _RESTRICTS.search(match["rest"]):
        return answer
    if match["set"] != "R" and match["letter"] not in _COUNTS:
        return answer
    is_half = match["set"] in (None, "N") and _GOES_BOTH_WAYS.search(match["rest"])
    letter = re.compile(rf"(?<![a-zA-Z\\]){match['letter']}(?![a-zA-Z])")
    has_letter = letter.search(gold) and letter.search(match["rest"])
    return answer if is_half or not has_letter else match["rest"]
