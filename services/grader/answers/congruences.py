r"""Classes of integers as answers: ``x \equiv 3 \pmod 5``, which is ``5k + 3``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MAX_DIGITS = 100
_INTEGERS = r"-?[0-9]+(?: ?(?:,|\\text ?\{ ?(?:or|and) ?\}) ?-?[0-9]+)*"
_CONGRUENCE = re.compile(
    rf"(?:(?P<letter>[a-zA-Z]) ?\\equiv ?)?(?P<residues>{_INTEGERS}) ?"
    r"\(?(?:\\[pb]?mod|\\text ?\{ ?\(?mod ?\}) ?\{? ?(?P<modulus>[0-9]+) ?\}?\)?"
)
_PROGRESSION = re.compile(
    r"(?:(?P<letter>[a-zA-Z]) ?= ?)?(?P<modulus>[0-9]+) ?[a-zA-Z] ?(?P<residue>[+-] ?[0-9]+)"
)


@dataclass(frozen=True)
class Congruence:
    """The residues that a letter, if there is one, may have."""

    letter: str | None
    residues: frozenset[int]
    modulus: int


def same_class(gold: str, answer: str) -> bool | None:
    """Whether both are the same integers; None if the gold is no congruence with a letter."""
    expected = _congruence(gold) if r"\equiv" in gold else None
    if expected is None:
        return None
    found = _congruence(answer) or _progression(answer)
    if found is None or found.letter not in (None, expected.letter):
        return False
    return (found.residues, found.modulus) == (expected.residues, expected.modulus)


def _congruence(latex: str) -> Congruence | None:
    match = _CONGRUENCE.fullmatch(latex)
    return match and _reduced(match, re.findall(r"-?[0-9]+", match["residues"]))


def _progression(latex: str) -> Congruence | None:
    match = _PROGRESSION.fullmatch(latex)
    return match and _reduced(match, [match["residue"].replace(" ", "")])


def _reduced(match: re.Match[str], residues: list[str]) -> Congruence | None:
    if max(map(len, (match["modulus"], *residues))) > _MAX_DIGITS or not int(match["modulus"]):
        return None
    modulus = int(match["modulus"])
    classes = frozenset(int(residue) % modulus for residue in residues)
    return Congruence(match["letter"], classes, modulus)
