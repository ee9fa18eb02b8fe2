r"""What a problem's text tells of its answer: whether it is a percentage, and what its names are.

So ``\text{Area} = 5`` is 5 where an area is asked for, and ``\text{wrong} = 5`` is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from answers.tokens import lexicon, plain_of, tokens

MAX_CHARS = 8_000  # of a problem, the last ones
_MAX_NAME_CHARS = 60
_PROBLEMS = 1024
_LETTER = re.compile(r"[^a-zA-Z\\+*-]*(?:[a-zA-Z]|\\[a-zA-Z]+)[^a-zA-Z\\+*-]*")
_RUN = re.compile(r"(?<!\\)(?<![a-zA-Z])[a-zA-Z]+")
_PROSE = re.compile(r"(?<![a-zA-Z\\$_^{=+*/])[a-zA-Z][a-z]{2,}(?![a-zA-Z$_^}=+*/])")
_OPERATOR = re.compile(r"[+*-]")
_MAX_ASKING_CHARS = 60
_ASKING = re.compile(
    r"(?:(?:find|compute|evaluate|calculate|determine|simplify|what is)"
    r"(?: (?!(?:of|to|in|on|at|by|from|such|that|with|when|where|whether|for|given|whose|which|what"
    r"|how|if|so|and|or)\b)[a-z]{2,}){0,3}|value of) ?\Z",
    re.IGNORECASE,
)
_NO_LETTER = re.compile(r"(?<![a-zA-Z\\])\Z")
_NO_MORE = re.compile(r"(?![a-zA-Z0-9({])(?!\s?[\^_+*/=-])")
_ASKED = {
    "percent": re.compile("(?i)percent"),
    "ratio": re.compile("(?i)ratio"),
    "order": re.compile(
        r"(?i)\b(?:arrange|sort|(?:a|de)scending|(?:in|de)creasing order|ordered (?:pair|triple"
        r"|list)|(?:first|next|last) (?:\w+ ){0,2}terms|(?:least|smallest|lowest) to (?:great|larg"
        r"|high)est"
        r"|(?:greatest|largest|highest) to (?:least|smallest|lowest))\b"
    ),
    "rounding": re.compile(r"(?i)\b(?:nearest|round\w*|approximat\w*|estimat\w*|about)\b"),
}
_BLANK = re.compile(
    r"_{2,}|(?:\\_){2,}|\\underline\s?\{[^a-zA-Z]*(?:\\[a-z]+[^a-zA-Z]*)*\}|\[blank\]"
    r"|[(（](?:\s|\\q?quad)*[)）]"
)
_ENDS_SENTENCE = re.compile(r"\.(?!\d)|[?!。？]")
_QUESTION = re.compile(r"(?i)\b(?:find|what|how|determine|calculate|compute|solve for)\b|求")
_MARK = re.compile("[?？]")
_ALIKE = re.compile(
    r"(?i)\b(?:all|any|both|every|each|two|three|solutions?|roots?|zero(?:e?s)?|possible|factors)\b"
)
_APART = re.compile(
    r"(?i)\brespectively\b|分别|\bthe (?:[\w$\\{}'^-]+,? ){1,6}?and the\b"
    r"|\bthe (?:\w+ )?\w*[^\Ws] and (?:\w+ )?\w*[^\Ws]\b"
    r"|\b(?:find|for|of|are|determine|compute|calculate) \$?[a-z]\$?(?: and |, ?)\$?[a-z]\b"
)
_ALWAYS = lexicon(
    "a an and answer amount are cost count final for in is max maximum min minimum number of "
    "on probability result solution sum the time to total value"
)


@dataclass(frozen=True)
class Problem:
    text: str = ""

    def asks(self, what: Literal["percent", "ratio", "order", "rounding"]) -> bool:
        """Whether 12% may be 12, 3:30 a ratio, a list in its order, a whole number a rounding."""
        return _ASKED[what].search(self.text) is not None

    def has_questions(self, number: int) -> bool:
        """Whether it has so many blanks or questions, or asks for the A and the B."""
        if (blanks := len(_BLANK.findall(self.text))) > 1:
            return blanks == number
        sentences = _ENDS_SENTENCE.split(self.text[-MAX_CHARS:])
        questions = list(filter(_QUESTION.search, sentences))
        if len(_MARK.findall(self.text)) == number:
            return True
        if any(map(_ALIKE.search, questions)):
            return False
        return len(questions) == number or any(map(_APART.search, questions))

    def names(self, name: str) -> bool:
        """Whether it is a letter with an index, or its words are the problem's, if one is known."""
        if not self.text or _LETTER.fullmatch(name):
            return True
        stems, points = _words_of(self.text[-MAX_CHARS:])
        return not _OPERATOR.search(name) and all(
            points.issuperset(word) or word.casefold() in _ALWAYS or _stem(word) in stems
            for word in _RUN.findall(name)
        )

    def counts(self, word: str) -> bool:
        return len(word) > 2 and _stem(word) in _prose_of(self.text[-MAX_CHARS:])

    def mentions(self, side: str) -> bool:
        return _occurs(side, self.text[-MAX_CHARS:], _NO_LETTER)

    def asks_for(self, side: str) -> bool:
        return _occurs(side, self.text[-MAX_CHARS:], _ASKING)


def _stem(word: str) -> str:
    """That of singular and plural: berry and berries, box and boxes."""
    stem = word.casefold().removesuffix("s").removesuffix("e")
    return f"{stem[:-1]}i" if stem.endswith("y") else stem


@lru_cache(_PROBLEMS)
def _occurs(side: str, problem: str, behind: re.Pattern[str]) -> bool:
    if not problem or len(side) > _MAX_NAME_CHARS:
        return False
    name = r"\s?".join(re.escape(plain_of([token])) for token in tokens(side))
    text = _spelled(problem)
    return any(
        behind.search(text[max(0, match.start() - _MAX_ASKING_CHARS) : match.start()])
        and _NO_MORE.match(text, match.end())
        for match in re.finditer(name, text)
    )


@lru_cache(_PROBLEMS)
def _spelled(problem: str) -> str:
    return plain_of(tokens(problem))


@lru_cache(_PROBLEMS)
def _words_of(problem: str) -> tuple[frozenset[str], frozenset[str]]:
    runs = frozenset(_RUN.findall(problem))
    return frozenset(map(_stem, runs)), frozenset("".join(filter(str.isupper, runs)))


@lru_cache(_PROBLEMS)
def _prose_of(problem: str) -> frozenset[str]:
    return frozenset(map(_stem, _PROSE.findall(problem)))
