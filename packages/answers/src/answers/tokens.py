r"""A text cut into the tokens of mathematics: LaTeX, plain text, or both mixed.

This module alone knows how things are spelled: in its tokens ``\dfrac``, ``½`` and ``⁄`` have
become one. Cutting is linear in the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple


def vocabulary(text: str) -> list[str]:
    return text.split()


def lexicon(text: str) -> frozenset[str]:
    return frozenset(vocabulary(text))


class Token(NamedTuple):
    """A piece of text: its kind, its usual spelling, whether white space precedes it, its place.

    Kinds: number repeating letters accent function command operator relation open close bar comma
    semicolon colon and words roman money row ampersand ellipsis unknown. ``letters`` is a run of
    letters, ``words`` the content of a ``\\text{}``, ``roman`` a single letter in a ``\\text{}``.
    """

    kind: str
    text: str
    gap: bool = False
    start: int = 0
    end: int = 0


Side = tuple[Token, ...]  # the tokens between two marks, such as one side of an equation

FUNCTIONS = lexicon(
    """
    sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch
    arcsinh arccosh arctanh log ln lg exp
    """
)
GREEK = lexicon(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho
    sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar
    prime
    """
)
_INVERSES = {name.replace("arc", "a"): name for name in FUNCTIONS if name.startswith("arc")}
_CIRCLE = r"(?: \\circ | \\degree | \\(?:text|mathrm) \s? \{ \s? o \s? \} | (?<=\{) o (?=\}) )"
# Every alternative is bounded, possessive or ends its group, so that cutting is linear in the text.
_TOKEN = re.compile(
    r"""
    (?P<row> \\\\ (?: \[ [^\]\n]{0,12} \] )? | \\cr (?![a-zA-Z]) )
    | (?P<degree>
        (?: \{\} \s? )? \^ \s?
          (?: \{ \s? CIRCLE \s? \} | CIRCLE | (?<=[0-9]\^) o (?![a-zA-Z]) )
        | °
        | \\(?:text)?degree (?![a-zA-Z])
        | \\text \s? \{ \s? (?: \^\\circ | ° ) \s? \}
      )
    | (?P<space>
        (?:
          \s | ~ | \\[,;:>! ()\[\]] | (?<!\\)\$
          | [\u200b-\u200f\u2060-\u2064\u20d0-\u20f0\ufeff]
          | \\(?:left|right) \s? \.
          | \\(?:
              left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|(?:no)?limits|bf|rm|it|large
              |Large|mathbf|boldsymbol|bm|mathit|underline|boxed|fbox
              |(?:neg)?(?:thin|med|thick)space
            ) (?![a-zA-Z])
          | \\q?quad (?![a-zA-Z])
          | \\(?:text)?color \s? \{ [^{}]* \}
        )+
      )
    | (?P<ellipsis> \.\.\.+ | … | ⋯ | \\[lcdv]?dots[bcmo]? (?![a-zA-Z]) )
    | (?P<repeating> [0-9]{0,20} \. [0-9]{0,20} \\(?:overline|bar|dot) \s? \{? [0-9]{1,20} \}? )
    | (?P<scientific>
        (?: [0-9]++\.[0-9]++ | 1 (?=[eE]) | [0-9]++ (?=[eE][+-]?0) | [0-9]++ (?=[eE]\+?[0-9]) )
        [eE] [+-]? [0-9]{1,3} (?![0-9a-zA-Z.])
      )
    | (?P<number>
        (?:
          [0-9]{1,3}
            (?: (?: , | (?: \{,\} | ,? \s? \\! | \s? \\[,;:\ ] | ~ ) \s? ) [0-9]{3} (?![0-9]) )+
          | [0-9]++
        )
        (?: \.[0-9]++ | \. (?!\.) )?
        | \.[0-9]++
      )
    | (?P<ordinal> \^ \s? \{ \s? \\(?:text|mathrm) \s? \{ \s? (?:st|nd|rd|th) \s? \} \s? \} )
    | (?P<area>
        (?<=[0-9]) (?:[kcm]?m|in|ft) (?:/s)? [²³]
        | (?<=[0-9][ ]) (?:[kcm]?m|in|ft) (?:/s)? [²³]
      )
    | (?P<words>
        \\(?:text(?:rm|bf|it|sf|normal)?|mbox|hbox|mathrm|mathsf|operatorname\*?) \s?
        \{ (?P<content> (?: [^{}] | \{,\} | \^\{-?[0-9]\} ){0,300} ) \}
      )
    | (?P<accent>
        \\(?:vec|hat|bar|tilde|overline) \s?
        (?: \{ \s? (?P<under> [a-zA-Z] ) \s? \} | (?<=\s) [a-zA-Z] (?![a-zA-Z]) )
      )
    | (?P<money> \\\$ | € | £ | \\(?:euro|pounds) (?![a-zA-Z]) )
    | (?P<relation>
        \\not \s? = | := | <= | >= | (?<![0-9)])!= | !=(?![0-9]) | == | [=<>≤≥⩽⩾≠≈≡∈]
        | \\(?:
            le|leq|leqq|leqslant|ge|geq|geqq|geqslant|lt|gt|ne|neq
            |approx|equiv|cong|sim|simeq|in
          ) (?![a-zA-Z])
      )
    | (?P<colon> : | \{:\} | \\colon (?![a-zA-Z]) )
    | (?P<open>
        [(\[{] | \\\{ | \\(?:lbrace|langle|lfloor|lceil|lvert) (?![a-zA-Z]) | [⟨⌊⌈]
        | \\begin \s? \{ [a-zA-Z]+ \*? \} (?: \s? \{ [lcr|\ ]* \} )?
      )
    | (?P<close>
        [)\]}] | \\\} | \\(?:rbrace|rangle|rfloor|rceil|rvert) (?![a-zA-Z]) | [⟩⌋⌉]
        | \\end \s? \{ [a-zA-Z]+ \*? \}
      )
    | (?P<bar> \| | \\[lr]?vert (?![a-zA-Z]) | \\mid (?![a-zA-Z]) )
    | (?P<operator>
        \*\* | [-+*/×÷·−–‐‑⋅∙∗^_!%√∛±∓∪∩∖⁄]
        | \\(?:times|cdot|div|ast|pm|mp|cup|cap|setminus|backslash) (?![a-zA-Z])
        | \\%
      )
    | (?P<and> \\(?:land|lor|wedge|vee) (?![a-zA-Z]) )
    | (?P<comma> , ) | (?P<semicolon> ; ) | (?P<ampersand> & )
    | (?P<raised> [⁺⁻]? [⁰¹²³⁴-⁹]{1,9} ) | (?P<lowered> [₀-₉]{1,9} ) | (?P<vulgar> [¼½¾⅐⅑⅓-⅞] )
    | (?P<han> [\u4e00-\u9fff]++ )
    | (?P<letters> [a-zA-Z]++ (?: (?<=[a-zA-Z]{2}) ['’] [a-zA-Z]{1,2} (?![a-zA-Z]) )? )
    | (?P<command> \\[a-zA-Z]++ )
    | (?P<unknown> \\. | . )
    """.replace("CIRCLE", _CIRCLE),
    re.DOTALL | re.VERBOSE,
)
# A line has the usual spelling, and then others.
_SPELLINGS = r"""
-          − – ‐ ‑
\times     ×
*          \cdot · ⋅ ∙ \ast ∗
/          \div ÷ ⁄
^          **
%          \%
\pm        ±
\mp        ∓
\cup       ∪
\cap       ∩
\setminus  ∖ \backslash
<=         ≤ ⩽ \le \leq \leqq \leqslant
>=         ≥ ⩾ \ge \geq \geqq \geqslant
<          \lt
>          \gt
=          == :=
!=         ≠ \ne \neq
\in        ∈
\equiv     ≡
\approx    ≈ \simeq
\{         \lbrace
\}         \rbrace
\langle    ⟨
\rangle    ⟩
\lfloor    ⌊
\rfloor    ⌋
\lceil     ⌈
\rceil     ⌉
|          \lvert \rvert \vert \mid
\frac      \dfrac \tfrac \cfrac
\binom     \dbinom \tbinom
\pi        π
\infty     ∞
\emptyset  ∅ Ø \varnothing
\to        → \rightarrow \longrightarrow
euro       € \euro
pound      £ \pounds
dollar     \$
...        …
"""
_SPELLED = {
    spelling: usual
    for usual, *spellings in map(str.split, _SPELLINGS.strip().splitlines())
    for spelling in spellings
}
_SPELLED["ℝ"] = r"\mathbb R"
_GREEK_NAMES = """
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau varphi chi
psi omega Delta Sigma Omega Gamma Theta Lambda Phi Psi
"""
_GREEK_LETTERS = dict(zip("αβγδεζηθικλμνξρστφχψωΔΣΩΓΘΛΦΨ", _GREEK_NAMES.split(), strict=True))
_PLAIN_COMMANDS = {
    "pi": r"\pi",
    "sqrt": r"\sqrt",
    "cbrt": "∛",
    "infty": r"\infty",
    "infinity": r"\infty",
    "inf": r"\infty",
    "oo": r"\infty",
}
_ESCAPED_COMMA = re.compile(r"\{,\}|,?\s?\\[!,;: ]\s?|~|\s")
_ROMAN_COMMANDS = lexicon("gcd lcm det")
_BLACKBOARD = re.compile(r"\\(?:mathbb|Bbb)\s?\{?\s?([A-Z])\s?\}?")
_INVERSE = re.compile(r"\s?\^\s?(?:\{\s?-\s?1\s?\}|-1(?![0-9]))")
_INVERTIBLE = lexicon("sin cos tan cot sinh cosh tanh")
_FIRST_IDEOGRAPH = "\u3000"
_FIRST_MATH_LETTER = "\U0001d400"


def tokenize(text: str) -> list[Token]:
    return list(_cut(text))


def _cut(text: str) -> Iterator[Token]:
    text = _fold(text)
    at = 0
    gap = False
    while match := _TOKEN.match(text, at):
        start, at = match.span()
        kind = str(match.lastgroup)
        if kind == "space":
            gap = True
            continue
        tokens = _read_match(kind, match)
        blackboard = _BLACKBOARD.match(text, start) if kind == "command" else None
        if blackboard:
            tokens = [Token("command", rf"\mathbb {blackboard[1]}")]
            at = blackboard.end()
        for token in tokens:
            may_be_inverse = token.kind == "function" and token.text in _INVERTIBLE
            inverse = _INVERSE.match(text, at) if may_be_inverse else None
            if inverse:
                token = token._replace(text=f"arc{token.text}")
                at = inverse.end()
            yield token._replace(gap=gap, start=start, end=at)
            gap = False


def _fold(text: str) -> str:
    """Write letters and digits of any width and weight in ASCII; each keeps its place."""
    if text.isascii():
        return text
    return "".join(map(_fold_char, text))


def _fold_char(char: str) -> str:
    is_styled = char >= _FIRST_MATH_LETTER or "！" <= char <= "～"
    if is_styled:
        return unicodedata.normalize("NFKC", char)
    return char


def _read_match(kind: str, match: re.Match[str]) -> Iterable[Token]:
    text = match.group()
    if kind in _READERS:
        return [_READERS[kind](match)]
    if kind in ("raised", "lowered"):
        return _read_raised(match)
    if kind == "vulgar":
        return _read_vulgar_fraction(match)
    if kind == "unknown" and text in _GREEK_LETTERS:
        return [Token("accent", "\\" + _GREEK_LETTERS[text])]
    if kind == "unknown" and text in _SPELLED:
        return [Token("command", _SPELLED[text])]
    if text.startswith((r"\begin", r"\end")):
        return [Token(kind, re.findall(r"[a-zA-Z]+", text)[1])]
    if text.startswith(r"\not"):
        return [Token(kind, "!=")]
    return [Token(kind, _SPELLED.get(text, text))]


def _read_raised(match: re.Match[str]) -> list[Token]:
    plain = unicodedata.normalize("NFKC", match.group()).replace("−", "-")
    mark = Token("operator", "_" if match.lastgroup == "lowered" else "^")
    sign = [Token("operator", plain[0])] if plain[0] in "+-" else []
    number = Token("number", plain.lstrip("+-"))
    return [mark, Token("open", "{"), *sign, number, Token("close", "}")]


def _read_vulgar_fraction(match: re.Match[str]) -> list[Token]:
    top, _, bottom = unicodedata.normalize("NFKC", match.group()).partition("⁄")
    return tokenize(rf"\frac{{{top}}}{{{bottom}}}")


def _read_words(match: re.Match[str]) -> Token:
    text = match.group()
    content = match["content"].replace("~", " ").replace("\\ ", " ")
    word = content.strip()
    word = _INVERSES.get(word, word)
    is_operator = text.startswith(r"\operator")
    is_roman = is_operator or text.startswith((r"\mathrm", r"\mathsf"))
    if word in FUNCTIONS and word != "sec":  # "sec" is seconds
        return Token("function", word)
    if (is_operator and len(word) > 1) or (is_roman and word in _ROMAN_COMMANDS):
        return Token("command", f"\\{word}")
    if len(word) == 1 and word.isalpha() and word < _FIRST_IDEOGRAPH:
        return Token("roman", word)
    return Token("words", content)


def _read_name(match: re.Match[str]) -> Token:
    text = match.group()
    is_command = text[0] == "\\"
    name = text[1:] if is_command else text.lower()
    name = _INVERSES.get(name, name)
    if name in FUNCTIONS:
        return Token("function", name)
    if is_command:
        return Token("accent" if name in GREEK else "command", _SPELLED.get(text, text))
    if name in _PLAIN_COMMANDS:
        return Token("command", _PLAIN_COMMANDS[name])
    return Token("letters", text)


_READERS: Mapping[str, Callable[[re.Match[str]], Token]] = {
    "number": lambda match: Token("number", _ESCAPED_COMMA.sub("", match.group())),
    "scientific": lambda match: Token("number", match.group().lower()),
    "degree": lambda _: Token("operator", "°"),
    "ordinal": lambda _: Token("words", "th"),
    "words": _read_words,
    "area": lambda match: Token("words", match.group().replace("²", "^2").replace("³", "^3")),
    "han": lambda match: Token("words", match.group()),
    "accent": lambda m: Token("accent", "\\" + " ".join(re.findall("[a-zA-Z]+", m.group()))),
    "letters": _read_name,
    "command": _read_name,
}


def to_plain(tokens: Iterable[Token]) -> str:
    pieces = list[str]()
    for token in tokens:
        if token.gap:
            pieces.append(" ")
        pieces.append(f"\\{token.text}" if token.kind == "function" else token.text)
    return " ".join("".join(pieces).split())


_LATEX_SPELLINGS = {
    "<=": r"\le",
    ">=": r"\ge",
    "!=": r"\ne",
    "*": r"\cdot",
    "°": r"^\circ",
    "dollar": r"\$",
}


def to_latex(tokens: Iterable[Token]) -> str:
    pieces = list[str]()
    for token in tokens:
        text = _spell_in_latex(token)
        if token.gap:
            pieces.append(" ")
        pieces.append(text)
        if text[:1] == "\\" and text[-1].isalpha():
            pieces.append(" ")
    return " ".join("".join(pieces).split())


def _spell_in_latex(token: Token) -> str:
    text = _LATEX_SPELLINGS.get(token.text, token.text)
    if token.kind == "words":
        return rf"\text{{{text}}}"
    if token.kind == "function":
        return f"\\{text}"
    if token.kind in ("open", "close") and text.isalpha():
        return rf"\{'begin' if token.kind == 'open' else 'end'}{{{text}}}"
    return f"{text.replace(' ', '{')}}}" if " " in text else text
