r"""A problem's text, and how it decides what its answer may be: a percentage, names, units.

So ``\text{Area} = 5`` is 5 if the problem asks for an area, and ``\text{wrong} = 5`` is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from answers.tokens import lexicon, to_plain, tokenize

MAX_CHARS = 8_000  # of a problem's end
_MAX_NAME_CHARS = 60
_MAX_ASKING_CHARS = 60
_CACHED_PROBLEMS = 1024
_LETTER = re.compile(r"[^a-zA-Z\\+*-]*(?:[a-zA-Z]|\\[a-zA-Z]+)[^a-zA-Z\\+*-]*")
_RUN = re.compile(r"(?<!\\)(?<![a-zA-Z])[a-zA-Z]+")
_PROSE = re.compile(r"(?<![a-zA-Z\\$_^{=+*/])[a-zA-Z][a-z]{2,}(?![a-zA-Z$_^}=+*/])")
_OPERATOR = re.compile(r"[+*-]")
_ASKING = re.compile(
    r"""
    (?:
      (?:find|compute|evaluate|calculate|determine|simplify|what\ is)
      (?: \ (?!
          (?:of|to|in|on|at|by|from|such|that|with|when|where|whether|for|given|whose|which|what
          |how|if|so|and|or)\b
        ) [a-z]{2,} ){0,3}
      | value\ of
    ) \ ?\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NO_LETTER_BEFORE = re.compile(r"(?<![a-zA-Z\\])\Z")
_NAME_ENDS = re.compile(r"(?![a-zA-Z0-9({])(?!\s?[\^_+*/=-])")
_REQUESTS = {
    "percent": re.compile("(?i)percent"),
    "ratio": re.compile("(?i)ratio"),
    "order": re.compile(
        r"""
        \b (?:
          arrange | sort | (?:a|de)scending | (?:in|de)creasing\ order
          | ordered\ (?:pair|triple|list) | (?:first|next|last)\ (?:\w+\ ){0,2}terms
          | (?:least|smallest|lowest)\ to\ (?:great|larg|high)est
          | (?:greatest|largest|highest)\ to\ (?:least|smallest|lowest)
        ) \b
        """,
        re.IGNORECASE | re.VERBOSE,
    ),
    "rounding": re.compile(r"(?i)\b(?:nearest|round\w*|approximat\w*|estimat\w*|about)\b"),
}
_BLANK = re.compile(
    r"""
    _{2,} | (?:\\_){2,} | \\underline\s?\{ [^a-zA-Z]* (?: \\[a-z]+ [^a-zA-Z]* )* \} | \[blank\]
    | [(（] (?: \s | \\q?quad )* [)）]
    """,
    re.VERBOSE,
)
_SENTENCE_END = re.compile(r"\.(?!\d)|[?!。？]")
_QUESTION = re.compile(r"(?i)\b(?:find|what|how|determine|calculate|compute|solve for)\b|求")
_QUESTION_MARK = re.compile("[?？]")
# The parts of the answer are alike: all solutions of one question.
_ALIKE = re.compile(
    r"""
    \b (?:
      all|any|both|every|each|two|three|solutions?|roots?|zero(?:e?s)?|possible|factors
    ) \b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# The parts answer different questions: "the A and the B", "find a and b".
_APART = re.compile(
    r"""
    \b respectively \b | 分别 | \b the\ (?: [\w$\\{}'^-]+,?\  ){1,6}? and\ the \b
    | \b the\ (?:\w+\ )? \w*[^\Ws] \ and\ (?:\w+\ )? \w*[^\Ws] \b
    | \b (?:find|for|of|are|determine|compute|calculate) \ \$?[a-z]\$? (?: \ and\  | ,\ ? )
      \$?[a-z] \b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Words that may be in the name of any answer.
_COMMON_WORDS = lexicon(
    """
    a an and answer amount are cost count final for in is max maximum min minimum number of on
    probability result solution sum the time to total value
    """
)


@dataclass(frozen=True)
class Problem:
    text: str = ""

    def asks(self, request: Literal["percent", "ratio", "order", "rounding"]) -> bool:
        """Return whether 12% may be 12, 3:30 a ratio, a list ordered, a whole number a rounding."""
        return _REQUESTS[request].search(self.text) is not None

    def has_questions(self, number: int) -> bool:
        """Return whether it has that many blanks or questions, or asks for the A and the B."""
        num_blanks = len(_BLANK.findall(self.text))
        if num_blanks > 1:
            return num_blanks == number
        if len(_QUESTION_MARK.findall(self.text)) == number:
            return True
        sentences = _SENTENCE_END.split(self.text[-MAX_CHARS:])
        questions = list(filter(_QUESTION.search, sentences))
        if any(map(_ALIKE.search, questions)):
            return False
        return len(questions) == number or any(map(_APART.search, questions))

    def names(self, name: str) -> bool:
        """Return whether a name is an indexed letter, or its words are the problem's."""
        if not self.text or _LETTER.fullmatch(name):
            return True
        if _OPERATOR.search(name):
            return False
        stems, points = _problem_words(self.text[-MAX_CHARS:])
        return all(
            points.issuperset(word) or word.casefold() in _COMMON_WORDS or _stem(word) in stems
            for word in _RUN.findall(name)
        )

    def counts(self, word: str) -> bool:
        """Return whether a word is in the problem's prose, which may name the counted things."""
        return len(word) > 2 and _stem(word) in _prose_stems(self.text[-MAX_CHARS:])

    def mentions(self, side: str) -> bool:
        return _occurs(side, self.text[-MAX_CHARS:], _NO_LETTER_BEFORE)

    def requests(self, side: str) -> bool:
        return _occurs(side, self.text[-MAX_CHARS:], _ASKING)


def _stem(word: str) -> str:
    """Return the same for singular and plural: berry and berries, box and boxes."""
    stem = word.casefold().removesuffix("s").removesuffix("e")
    if stem.endswith("y"):
        return f"{stem[:-1]}i"
    return stem


@lru_cache(_CACHED_PROBLEMS)
def _occurs(side: str, problem: str, before: re.Pattern[str]) -> bool:
    """Return whether a side is in the problem as a name, after a text that ends in a pattern."""
    if not problem or len(side) > _MAX_NAME_CHARS:
        return False
    name = r"\s?".join(re.escape(to_plain([token])) for token in tokenize(side))
    text = _spell(problem)
    return any(
        before.search(text[max(0, match.start() - _MAX_ASKING_CHARS) : match.start()])
        and _NAME_ENDS.match(text, match.end())
        for match in re.finditer(name, text)
    )


@lru_cache(_CACHED_PROBLEMS)
def _spell(problem: str) -> str:
    return to_plain(tokenize(problem))


@lru_cache(_CACHED_PROBLEMS)
def _problem_words(problem: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the stems of all words, and the letters of words in capitals, which name points."""
    runs = frozenset(_RUN.findall(problem))
    return frozenset(map(_stem, runs)), frozenset("".join(filter(str.isupper, runs)))


@lru_cache(_CACHED_PROBLEMS)
def _prose_stems(problem: str) -> frozenset[str]:
    return frozenset(map(_stem, _PROSE.findall(problem)))
