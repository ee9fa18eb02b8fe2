r"""A text cut into the tokens of mathematics: LaTeX, plain text, or both mixed.

Linear in the text, and the only place that knows how things are spelled: whatever follows works on
`Token`, where ``\dfrac``, ``½`` and ``⁄`` have become one.
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
    letters as it stands, ``words`` what is inside a ``\\text{}``, ``roman`` a single letter there.
    """

    kind: str
    text: str
    gap: bool = False
    start: int = 0
    end: int = 0


Side = tuple[Token, ...]  # what stands between two marks

FUNCTIONS = lexicon(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech "
    "csch arcsinh arccosh arctanh log ln lg exp"
)
GREEK = lexicon(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu "
    "nu xi rho sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi "
    "Omega ell hbar prime"
)
_INVERSES = {name.replace("arc", "a"): name for name in FUNCTIONS if name.startswith("arc")}
_END = r"(?![a-zA-Z])"
_THOUSANDS = r"[0-9]{1,3}(?:(?:,|(?:\{,\}|,?\s?\\!|\s?\\[,;: ]|~)\s?)[0-9]{3}(?![0-9]))+"
_SCIENTIFIC = (
    r"(?:[0-9]++\.[0-9]++|1(?=[eE])|[0-9]++(?=[eE][+-]?0)|[0-9]++(?=[eE]\+?[0-9]))"
    r"[eE][+-]?[0-9]{1,3}(?![0-9a-zA-Z.])"
)
_FORMAT = "left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|(?:no)?limits|bf|rm|it|large"
_FORMAT += "|Large|mathbf|boldsymbol|bm|mathit|underline|boxed|fbox|(?:neg)?(?:thin|med|thick)space"
_RELATIONS = "le|leq|leqq|leqslant|ge|geq|geqq|geqslant|lt|gt|ne|neq|approx|equiv|cong|sim|simeq|in"
_CIRCLE = r"(?:\\circ|\\degree|\\(?:text|mathrm)\s?\{\s?o\s?\}|(?<=\{)o(?=\}))"
# Every alternative is bounded, possessive or ends its group, so that cutting is linear in the text.
_TOKEN = re.compile(
    r"(?P<row>\\\\(?:\[[^\]\n]{0,12}\])?|\\cr" + _END + r")"
    rf"|(?P<degree>(?:\{{\}}\s?)?\^\s?(?:\{{\s?{_CIRCLE}\s?\}}|{_CIRCLE}|(?<=[0-9]\^)o{_END})"
    r"|°|\\(?:text)?degree" + _END + r"|\\text\s?\{\s?(?:\^\\circ|°)\s?\})"
    r"|(?P<space>(?:\s|~|\\[,;:>! ()\[\]]|(?<!\\)\$|[\u200b-\u200f\u2060-\u2064\u20d0-\u20f0\ufeff]"
    rf"|\\(?:left|right)\s?\.|\\(?:{_FORMAT}){_END}|\\q?quad{_END}|\\(?:text)?color\s?\{{[^{{}}]*\}})+)"
    rf"|(?P<ellipsis>\.\.\.+|…|⋯|\\[lcdv]?dots[bcmo]?{_END})"
    r"|(?P<repeating>[0-9]{0,20}\.[0-9]{0,20}\\(?:overline|bar|dot)\s?\{?[0-9]{1,20}\}?)"
    rf"|(?P<scientific>{_SCIENTIFIC})"
    rf"|(?P<number>(?:{_THOUSANDS}|[0-9]++)(?:\.[0-9]++|\.(?!\.))?|\.[0-9]++)"
    r"|(?P<ordinal>\^\s?\{\s?\\(?:text|mathrm)\s?\{\s?(?:st|nd|rd|th)\s?\}\s?\})"
    r"|(?P<area>(?<=[0-9])(?:[kcm]?m|in|ft)(?:/s)?[²³]|(?<=[0-9] )(?:[kcm]?m|in|ft)(?:/s)?[²³])"
    r"|(?P<words>\\(?:text(?:rm|bf|it|sf|normal)?|mbox|hbox|mathrm|mathsf|operatorname\*?)"
    r"\s?\{(?P<content>(?:[^{}]|\{,\}|\^\{-?[0-9]\}){0,300})\})"
    r"|(?P<accent>\\(?:vec|hat|bar|tilde|overline)\s?(?:\{\s?(?P<under>[a-zA-Z])\s?\}|(?<=\s)[a-zA-Z]"
    + _END
    + r"))"
    rf"|(?P<money>\\\$|€|£|\\(?:euro|pounds){_END})"
    r"|(?P<relation>\\not\s?=|:=|<=|>=|(?<![0-9)])!=|!=(?![0-9])|==|[=<>≤≥⩽⩾≠≈≡∈]"
    rf"|\\(?:{_RELATIONS}){_END})"
    r"|(?P<colon>:|\{:\}|\\colon" + _END + r")"
    r"|(?P<open>[(\[{]|\\\{|\\(?:lbrace|langle|lfloor|lceil|lvert)" + _END + r"|[⟨⌊⌈]"
    r"|\\begin\s?\{[a-zA-Z]+\*?\}(?:\s?\{[lcr| ]*\})?)"
    r"|(?P<close>[)\]}]|\\\}|\\(?:rbrace|rangle|rfloor|rceil|rvert)" + _END + r"|[⟩⌋⌉]"
    r"|\\end\s?\{[a-zA-Z]+\*?\})"
    rf"|(?P<bar>\||\\[lr]?vert{_END}|\\mid{_END})"
    r"|(?P<operator>\*\*|[-+*/×÷·−–‐‑⋅∙∗^_!%√∛±∓∪∩∖⁄]"
    rf"|\\(?:times|cdot|div|ast|pm|mp|cup|cap|setminus|backslash){_END}|\\%)"
    r"|(?P<and>\\(?:land|lor|wedge|vee)" + _END + r")"
    r"|(?P<comma>,)|(?P<semicolon>;)|(?P<ampersand>&)"
    r"|(?P<raised>[⁺⁻]?[⁰¹²³⁴-⁹]{1,9})|(?P<lowered>[₀-₉]{1,9})|(?P<vulgar>[¼½¾⅐⅑⅓-⅞])"
    r"|(?P<han>[\u4e00-\u9fff]++)"
    r"|(?P<letters>[a-zA-Z]++(?:(?<=[a-zA-Z]{2})['’][a-zA-Z]{1,2}(?![a-zA-Z]))?)"
    r"|(?P<command>\\[a-zA-Z]++)"
    r"|(?P<unknown>\\.|.)",
    re.DOTALL,
)
_SPELLED = {
    **dict.fromkeys("−–‐‑", "-"), **dict.fromkeys((r"\times", "×"), r"\times"),
    **dict.fromkeys((r"\cdot", "·", "⋅", "∙", r"\ast", "∗", "*"), "*"),
    **dict.fromkeys((r"\div", "÷", "⁄"), "/"), "**": "^", r"\%": "%", "±": r"\pm", "∓": r"\mp",
    **dict.fromkeys(("∪", r"\cup"), r"\cup"), **dict.fromkeys(("∩", r"\cap"), r"\cap"),
    **dict.fromkeys(("∖", r"\backslash"), r"\setminus"), "∛": "∛",
    **dict.fromkeys(("≤", "⩽", r"\le", r"\leq", r"\leqq", r"\leqslant"), "<="),
    **dict.fromkeys(("≥", "⩾", r"\ge", r"\geq", r"\geqq", r"\geqslant"), ">="),
    **dict.fromkeys((r"\lt",), "<"), **dict.fromkeys((r"\gt",), ">"), "==": "=", ":=": "=",
    **dict.fromkeys(("≠", r"\ne", r"\neq"), "!="), "∈": r"\in", "≡": r"\equiv",
    **dict.fromkeys(("≈", r"\approx", r"\simeq"), r"\approx"),
    r"\lbrace": r"\{", r"\rbrace": r"\}", "⟨": r"\langle", "⟩": r"\rangle", "⌊": r"\lfloor",
    "⌋": r"\rfloor", "⌈": r"\lceil", "⌉": r"\rceil", r"\lvert": "|", r"\rvert": "|", r"\vert": "|",
    r"\mid": "|", r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", "π": r"\pi",
    r"\dbinom": r"\binom", r"\tbinom": r"\binom", "∞": r"\infty", r"\varnothing": r"\emptyset",
    **dict.fromkeys((r"\rightarrow", r"\longrightarrow", "→"), r"\to"),
    "∅": r"\emptyset", "Ø": r"\emptyset", "€": "euro", r"\euro": "euro", "£": "pound",
    r"\pounds": "pound", r"\$": "dollar", "ℝ": r"\mathbb R", "…": "...",
}  # fmt: skip
_LETTERS = dict(zip("αβγδεζηθικλμνξρστφχψωΔΣΩΓΘΛΦΨ", vocabulary(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau varphi"
    " chi psi omega Delta Sigma Omega Gamma Theta Lambda Phi Psi"), strict=True))  # fmt: skip
_PLAIN_COMMANDS = {"pi": r"\pi", "sqrt": r"\sqrt", "infty": r"\infty", "infinity": r"\infty"}
_PLAIN_COMMANDS |= {"inf": r"\infty", "oo": r"\infty", "cbrt": "∛"}
_ESCAPED_COMMA = re.compile(r"\{,\}|,?\s?\\[!,;: ]\s?|~|\s")
_ROMAN = frozenset({"gcd", "lcm", "det"})
_BLACKBOARD = re.compile(r"\\(?:mathbb|Bbb)\s?\{?\s?([A-Z])\s?\}?")
_INVERSE = re.compile(r"\s?\^\s?(?:\{\s?-\s?1\s?\}|-1(?![0-9]))")
_HAS_INVERSE = frozenset({"sin", "cos", "tan", "cot", "sinh", "cosh", "tanh"})


def tokens(text: str) -> list[Token]:
    return list(_cut(text))


def _cut(text: str) -> Iterator[Token]:
    at, gap, text = 0, False, _folded(text)
    while match := _TOKEN.match(text, at):
        at = match.end()
        kind = str(match.lastgroup)
        if kind == "space":
            gap = True
            continue
        if kind == "command" and (named := _BLACKBOARD.match(text, match.start())):
            at = named.end()
            yield Token("command", rf"\mathbb {named[1]}", gap, match.start(), at)
        else:
            for token in _named(kind, match):
                may_be_inverse = token.kind == "function" and token.text in _HAS_INVERSE
                if may_be_inverse and (inverse := _INVERSE.match(text, at)):
                    token, at = token._replace(text=f"arc{token.text}"), inverse.end()
                yield token._replace(gap=gap, start=match.start(), end=at)
                gap = False
        gap = False


def _folded(text: str) -> str:
    """With letters and digits of any width and weight as those of ASCII, each in its place."""
    if text.isascii():
        return text
    return "".join(
        unicodedata.normalize("NFKC", char)
        if char >= "\U0001d400" or "！" <= char <= "～"
        else char
        for char in text
    )


def _named(kind: str, match: re.Match[str]) -> Iterable[Token]:
    text = match.group()
    if kind in _READ:
        return (_READ[kind](match),)
    if kind in ("raised", "lowered"):
        return _raised(match)
    if kind == "vulgar":
        return _vulgar(match)
    if kind == "unknown" and text in _LETTERS:
        return (Token("accent", "\\" + _LETTERS[text]),)
    if kind == "unknown" and text in _SPELLED:
        return (Token("command", _SPELLED[text]),)
    if kind in ("open", "close") and len(text) > 6 and text[1] in "be":
        return (Token(kind, re.findall(r"[a-zA-Z]+", text)[1]),)
    return (Token(kind, _SPELLED.get(text, "!=" if text.startswith(r"\not") else text)),)


def _raised(match: re.Match[str]) -> list[Token]:
    plain = unicodedata.normalize("NFKC", match.group()).replace("−", "-")
    mark = Token("operator", "_" if match.lastgroup == "lowered" else "^")
    sign = [Token("operator", plain[0])] if plain[0] in "+-" else []
    number = Token("number", plain.lstrip("+-"))
    return [mark, Token("open", "{"), *sign, number, Token("close", "}")]


def _vulgar(match: re.Match[str]) -> list[Token]:
    top, _, bottom = unicodedata.normalize("NFKC", match.group()).partition("⁄")
    return tokens(rf"\frac{{{top}}}{{{bottom}}}")


def _words(match: re.Match[str]) -> Token:
    text, content = match.group(), match["content"].replace("~", " ").replace("\\ ", " ")
    said = _INVERSES.get(content.strip(), content.strip())
    is_roman = text.startswith((r"\mathrm", r"\mathsf", r"\operator"))
    if said in FUNCTIONS and said != "sec":  # these are seconds
        return Token("function", said)
    if (text.startswith(r"\operator") and len(said) > 1) or (is_roman and said in _ROMAN):
        return Token("command", f"\\{said}")
    is_letter = len(said) == 1 and said.isalpha() and said < "\u3000"
    return Token("roman", said) if is_letter else Token("words", content)


def _name(match: re.Match[str]) -> Token:
    text = match.group()
    name = text[1:] if text[0] == "\\" else text.lower()
    name = _INVERSES.get(name, name)
    if name in FUNCTIONS:
        return Token("function", name)
    if text[0] == "\\":
        return Token("accent" if name in GREEK else "command", _SPELLED.get(text, text))
    is_command = name in _PLAIN_COMMANDS
    return Token("command", _PLAIN_COMMANDS[name]) if is_command else Token("letters", text)


_READ: Mapping[str, Callable[[re.Match[str]], Token]] = {
    "number": lambda match: Token("number", _ESCAPED_COMMA.sub("", match.group())),
    "scientific": lambda match: Token("number", match.group().lower()),
    "degree": lambda _: Token("operator", "°"),
    "ordinal": lambda _: Token("words", "th"),
    "words": _words,
    "area": lambda match: Token("words", match.group().replace("²", "^2").replace("³", "^3")),
    "han": lambda match: Token("words", match.group()),
    "accent": lambda m: Token("accent", "\\" + " ".join(re.findall("[a-zA-Z]+", m.group()))),
    "letters": _name,
    "command": _name,
}


def plain_of(parts: Iterable[Token]) -> str:
    pieces = list[str]()
    for token in parts:
        pieces += [" "] if token.gap else []
        pieces.append(f"\\{token.text}" if token.kind == "function" else token.text)
    return " ".join("".join(pieces).split())


_AS_LATEX = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne", "*": r"\cdot", "°": r"^\circ"}
_AS_LATEX |= {"dollar": r"\$"}


def latex_of(parts: Iterable[Token]) -> str:
    pieces = list[str]()
    for token in parts:
        text = _AS_LATEX.get(token.text, token.text)
        if token.kind == "words":
            text = rf"\text{{{text}}}"
        elif token.kind == "function":
            text = f"\\{text}"
        elif token.kind in ("open", "close") and text.isalpha():
            text = rf"\{'begin' if token.kind == 'open' else 'end'}{{{text}}}"
        elif " " in text:
            text = f"{text.replace(' ', '{')}}}"
        pieces.append(f" {text}" if token.gap else text)
        pieces += [" "] if text[:1] == "\\" and text[-1].isalpha() else []
    return " ".join("".join(pieces).split())
