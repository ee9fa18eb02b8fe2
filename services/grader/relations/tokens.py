r"""A solution cut into the tokens of mathematics and of the prose around it.

Linear in the text. Mathematics is told from prose by ``$``, ``\(``, ``\[`` and environments: there
a line break is a space and a short run of letters is a product.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from services.grader.answers.units import unit_of
from services.grader.relations.notation import USUAL, Notation

_OPENS_LINE = re.compile(
    r"(?P<before>[^\S\n]*+(?:>[^\S\n]*+)*)(?:(?:[-*•]|\(?[0-9]{1,3}[.)]|\([a-z]\)|#++)[^\S\n]++)?"
)
# Every alternative is bounded, possessive or ends its group, so that cutting is linear in the text.
# No group is possessive: before Python 3.11.5 such groups could fail to match.
_TOKEN = (
    r"(?P<row>\\\\(?:\[[^\]\n]{0,12}\])?)"
    r"|(?P<space>(?:[^\S\n]|~|&(?=\s*=)|\\[,;:! ]|\\\$)+"
    r"|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits)(?![a-zA-Z])(?!\s*\.)"
    r"|\\(?:mathbf|boldsymbol|bm)\s?(?=\{-?[0-9]{1,30}(?:[.,][0-9]{1,30}){0,9}\}))"
    r"|(?P<ampersand>&)"
    r"|(?P<paragraph>\n[^\S\n]*+\n\s*+)|(?P<newline>\n)"
    r"|(?P<dollar>\$\$?)|(?P<edge>\\[()\[\]]|\\q?quad(?![a-zA-Z])|\*\*(?![-0-9(a-z])|(?<![0-9a-z)])\*\*)"
    r"|(?P<environment>\\(?P<which>begin|end)\s?\{(?P<name>[^{}\n]{0,30})\})"
    r"|(?P<words>\\(?:text(?:rm|bf|it|normal)?|mbox|hbox|mathrm)"
    r"\s?\{(?P<content>[^{}]{0,300})\})"
    r"|(?P<repeating>[0-9]{0,20}\.[0-9]{0,20}\\(?:overline|bar)\s?\{[0-9]{1,20}\})"
    r"|(?P<number>NUMBER)"
    r"|(?P<ellipsis>\.\.++|…|\\[lcdvi]?dots[bcmo]?(?![a-zA-Z]))"
    r"|(?P<arrow><<|>>|<?[-=]{1,3}+>|<-{1,3}+(?![0-9.(\\])|[⇒→⟹∴∵]"
    r"|\\(?:[lL]ong)?(?:[lL]eft)?[rR]ightarrow(?![a-zA-Z])"
    r"|\\(?:to|implies|impliedby|iff|therefore|because|land|lor|wedge|vee)(?![a-zA-Z]))"
    r"|(?P<relation>\\not\s?=|:=|<=|>=|!=|==++|[=<>≤≥≠≈≡≅∈]"
    r"|\\(?:[lg]eq?(?:slant|q)?|[lg]t|neq?|approx|equiv|cong|simeq|sim|propto|in|mid|parallel|perp)"
    r"(?![a-zA-Z]))"
    r"|(?P<power>\*\*)"
    r"|(?P<open>[(\[{]|\\\{|\\(?:lvert|lfloor|lceil)(?![a-zA-Z]))"
    r"|(?P<close>[)\]}]|\\\}|\\(?:rvert|rfloor|rceil)(?![a-zA-Z]))"
    r"|(?P<bar>\||\\vert(?![a-zA-Z]))"
    r"|(?P<operator>[-+*/×÷·−–⋅∙^_!%°√]|\\%|\\(?:times|cdot|div|circ|degree|ast)(?![a-zA-Z]))"
    r"|(?P<comma>,)|(?P<stop>[.;:?\"“”`#✓✔✅☑∎🌀-🫿\ufe0f])|(?P<cross>[✗✘❌])"
    r"|(?P<raised>⁻?[⁰¹²³⁴-⁹]{1,9})|(?P<vulgar>[¼½¾⅐⅑⅓-⅞])"
    r"|(?P<letters>LETTER++(?:['’]LETTER++)?)"
    r"|(?P<command>\\[a-zA-Z]++)"
    r"|(?P<unknown>\\.|.)"
)


_WORD_BEHIND = re.compile(r" [a-zA-Z]{2}")


def vocabulary(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_SPELLING = {"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "**": "^"}
_SPELLING |= {r"\times": "*", r"\cdot": "*", r"\ast": "*", r"\div": "/", r"\%": "%"}
_SPELLING |= {r"\circ": "°", r"\degree": "°", r"\vert": "|", r"\lvert": "|", r"\rvert": "|"}
_SPELLING |= {"≤": "<=", "≥": ">=", "≠": "!=", "≈": "~~", "≡": "==="}
_SPELLING |= {rf"\{word}": "<=" for word in ("le", "leq", "leqslant", "leqq")}
_SPELLING |= {rf"\{word}": ">=" for word in ("ge", "geq", "geqslant", "geqq")}
_SPELLING |= {r"\lt": "<", r"\gt": ">", r"\ne": "!=", r"\neq": "!=", r"\not=": "!=", "==": "="}
_SPELLING |= dict.fromkeys("✗✘❌", "wrong")
_SPELLING |= {r"\approx": "~~", r"\equiv": "===", r"\dfrac": r"\frac", r"\tfrac": r"\frac"}
_SPELLING |= {r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom", "π": r"\pi"}
_SPELLING |= {r"\fbox": r"\boxed", r"\pmod": "mod", r"\bmod": "mod"}
FUNCTIONS = vocabulary("sin cos tan cot sec csc arcsin arccos arctan log ln lg exp")
_SPELLING |= {rf"\{name}": name for name in FUNCTIONS} | {r"\mod": "mod"}
_GREEK = vocabulary(
    r"""\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \kappa \lambda
    \mu \nu \xi \rho \sigma \tau \phi \varphi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Phi
    \Psi \Omega \ell"""
)
_SHORT_WORDS = vocabulary(
    """is so and for the are of to in or we if has get let but can now by at as it an be"""
)
_FLAT = frozenset({"align", "align*", "aligned", "equation", "equation*", "gather", "gather*"})
_FLAT |= {"gathered", "split", "eqnarray", "eqnarray*", "multline", "multline*", "flalign*", "math"}
_FLAT |= {"alignat*", "displaymath", "center", "document", "proof", "solution", "itemize"}
_FLAT |= {"enumerate"}


_TYPED = {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)} | {ord("。"): "."}
_TYPED |= dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0x2062, 0xFEFF))  # of no width
STAR = "∗"  # an operation that the problem has defined


class Token(NamedTuple):
    """A piece of text: its kind, its usual spelling, and what is around it.

    Kinds: number name function command operator relation open close bar mod, and those that end an
    expression: word words comma stop row newline paragraph edge arrow. ``unknown`` belongs to an
    expression and makes it unreadable.
    """

    kind: str
    text: str
    gap: bool = False  # white space before it
    in_math: bool = False
    start: int = 0  # in the text; only tokens cut from it have a place
    end: int = 0


UNREADABLE = Token("unknown", "")
_KINDS = {"ellipsis": "unknown", "ampersand": "unknown", "power": "operator", "cross": "word"}


def tokens(text: str, notation: Notation = USUAL) -> Iterator[Token]:
    """The tokens of a text, in order."""
    typed, cutter = text.translate(_TYPED), _Cutter(notation)
    found = (token for match in _matches(typed, cutter) for token in cutter.tokens_of(match))
    return found if len(typed) == len(text) else _moved(found, text)


def _moved(found: Iterator[Token], text: str) -> Iterator[Token]:
    """The tokens with their places in the text as it is, where it has characters of no width."""
    kept = [at for at, char in enumerate(text) if _TYPED.get(ord(char), 0) is not None]
    for token in found:
        yield token._replace(start=kept[token.start], end=kept[token.end - 1] + 1)


@cache
def _pattern(notation: Notation) -> re.Pattern[str]:
    pattern = _TOKEN.replace("LETTER", r"[^\W\d_⁰¹²³⁴-⁹¼½¾⅐-⅞]")
    return re.compile(pattern.replace("NUMBER", notation.number), re.DOTALL)


def _matches(text: str, cutter: _Cutter) -> Iterator[re.Match[str]]:
    """Matches one after the other; what only marks a line of prose is passed over."""
    pattern = _pattern(cutter.notation)
    at = _line_start(text, 0, cutter.notation)
    while match := pattern.match(text, at):
        yield match
        at = match.end()
        if match.lastgroup in {"newline", "paragraph"} and not cutter.in_math:
            at = _line_start(text, at, cutter.notation)


def _line_start(text: str, at: int, notation: Notation) -> int:
    marks = _OPENS_LINE.match(text, at)
    if not marks:
        return at
    is_sign = notation.dash_is_sign and marks.group().rstrip().endswith("-")
    return marks.end("before") if is_sign else marks.end()


class _Cutter:
    """Knows whether it is inside mathematics, and whether white space came last."""

    def __init__(self, notation: Notation) -> None:
        self.notation = notation
        self.in_math = False
        self._gap = True
        self._last = ""

    def tokens_of(self, match: re.Match[str]) -> Iterator[Token]:
        kind = str(match.lastgroup)
        is_money = kind == "dollar" and self.notation.dollar_is_money
        if kind == "space" or is_money or (self.in_math and kind in {"newline", "ampersand"}):
            self._gap = True
            return
        start, end = match.span()
        for called, text in self._spelled(_KINDS.get(kind, kind), match):
            ends = start + 1 if text == "!" else end  # of 5!=120 it is the first of two tokens
            yield Token(called, text, self._gap, self.in_math, start, ends)
            self._last = called
            self._gap = called in {"newline", "paragraph", "edge", "row"}

    def _spelled(self, kind: str, match: re.Match[str]) -> Iterator[tuple[str, str]]:
        text = match.group()
        match kind:
            case "dollar" | "edge" | "paragraph":
                self._turn(text)
                yield "paragraph" if kind == "paragraph" else "edge", text
            case "environment":
                yield self._environment(match["which"], match["name"])
            case "words":
                yield "words", match["content"]
            case "letters" | "raised" | "vulgar":
                yield from self._letters(match) if kind == "letters" else _in_ascii(text)
            case "command":
                yield _command(text)
            case "relation":
                yield from self._relation(text)
            case "operator" if self.notation.star_is_operation and text in {"*", r"\ast"}:
                yield kind, STAR
            case _:
                plain = self.notation.plain(text) if kind == "number" else text
                yield kind, _SPELLING.get(plain, plain)

    def _turn(self, text: str) -> None:
        if text in {"$", "$$"}:
            self.in_math = not self.in_math
        elif text in {r"\(", r"\["}:
            self.in_math = True
        elif text in {r"\)", r"\]"} or text.isspace():
            self.in_math = False

    def _environment(self, which: str, name: str) -> tuple[str, str]:
        if name in _FLAT:
            self.in_math = which == "begin" and name not in {"center", "document", "proof"}
            return "edge", name
        return ("open", "env") if which == "begin" else ("close", "env")

    def _relation(self, text: str) -> Iterator[tuple[str, str]]:
        touches = text == "!=" and not self._gap  # 5!=120
        if touches and self.in_math:
            yield from (("operator", "!"), ("relation", "="))
        else:
            yield "relation", "?" if touches else _SPELLING.get(text.replace(" ", ""), text)

    def _letters(self, match: re.Match[str]) -> Iterator[tuple[str, str]]:
        text = match.group()
        lower = text.lower()
        if self._is_article(match):
            yield "word", lower
        elif lower in FUNCTIONS:
            yield "function", lower
        elif lower in {"pi", "mod", "sqrt"}:
            yield {"pi": ("command", r"\pi"), "mod": ("mod", ""), "sqrt": ("operator", "√")}[lower]
        elif not text.isalpha() and self.in_math:
            yield "unknown", text
        elif len(text) > 1 and self._is_word(lower):
            yield "word", lower
        else:
            for letter in text:
                yield ("command", r"\pi") if letter == "π" else ("name", letter)

    def _is_article(self, match: re.Match[str]) -> bool:
        """Whether a lone letter behind a number is a word before another: ``$50 a week``."""
        is_alone = match.group() in {"a", "A", "I"} and self._gap and not self.in_math
        is_behind = is_alone and self._last == "number"
        return is_behind and bool(_WORD_BEHIND.match(match.string, match.end()))

    def _is_word(self, text: str) -> bool:
        """And not a product of letters, as in LaTeX or behind a number: ``2ab``."""
        if len(text) > 3 or text in _SHORT_WORDS:
            return True
        behind_number = self._last == "number" and not self._gap and unit_of(text, None) is None
        return not (self.in_math or behind_number)


def _in_ascii(text: str) -> Iterator[tuple[str, str]]:
    """A superscript or a vulgar fraction, as ``^`` or ``\\frac`` would give it."""
    plain = unicodedata.normalize("NFKC", text)
    if top := plain.partition("⁄")[1]:
        yield "command", r"\frac"
        yield from (("number", digit) for digit in plain.split(top))
        return
    yield "operator", "^"
    if plain.startswith("−"):
        yield "operator", "-"
    yield "number", plain.lstrip("−")


def _command(text: str) -> tuple[str, str]:
    text = _SPELLING.get(text, text)
    if text in _GREEK:
        return "name", text
    if text in FUNCTIONS:
        return "function", text
    if text == "mod":
        return "mod", ""
    if text in {r"\checkmark", r"\qed"}:
        return "stop", text
    known = {r"\frac", r"\binom", r"\sqrt", r"\pi", r"\boxed"}
    return ("command", text) if text in known else ("unknown", text)
