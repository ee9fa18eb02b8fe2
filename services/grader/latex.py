"""Answers as text: find the box, tidy the LaTeX.

Everything here is pure and linear in the length of its input.
"""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
_BRACES = re.compile(
    r"\\\\?(?:boxed|fbox)(?:\s*+\{|(?:\s++|(?=[0-9]))(?P<token>[0-9A-Za-z])(?=$|[\s$.,;)]))"
    r"|\\.|[{}]",
    re.DOTALL,
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MAX_OUTER_BRACES = 8
_SAYS_WHAT_IS_IN_BOX = re.compile(r"(?:=|\\text ?\{[^{}]*\})\s*\Z")
_WHOLE_BOX = re.compile(r"\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*", re.DOTALL)

_UNICODE = str.maketrans(
    {
        **dict.fromkeys("−–‐‑", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff", ""),
        **dict.fromkeys("·⋅∙", r"\cdot "),
        **dict.fromkeys("‘’′", "'"),
        **{f"{digit}": f"^{{{power}}}" for power, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
        **{half: rf"\frac{{{a}}}{{{b}}}" for half, a, b in ("½12", "⅓13", "⅔23", "¼14", "¾34")},
        **{letter: rf"\{name} " for letter, name in zip("αβγδθλμσφω", (
            "alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "sigma", "varphi", "omega",
        ), strict=True)},
        "×": r"\times ",
        "÷": r"\div ",
        "π": r"\pi ",
        "√": r"\sqrt ",
        "∛": r"\sqrt[3]",
        "≤": r"\le ",
        "≥": r"\ge ",
        "⩽": r"\le ",
        "⩾": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "∞": r"\infty ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "±": r"\pm ",
        "∓": r"\mp ",
        "°": r"^\circ ",
        "…": r"\ldots ",
        "⋯": r"\ldots ",
        "ℝ": r"\mathbb{R}",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
    }
)  # fmt: skip
_ROOT_OF_ONE = re.compile(r"√\s*([0-9]+|[a-z])")

_END = r"(?![a-zA-Z])"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\left ?\\(?:\{|lbrace) ?\\begin\{(?:array\} ?\{[lcr ]*|aligned)\}", r"\\begin{cases}"),
        (r"\\end\{(?:array|aligned)\} ?\\right ?\.", r"\\end{cases}"),
        (rf"\\[dtc]frac{_END}", r"\\frac"),
        (rf"\\(?:left|right)\s*\.|\\(?:left|right|middle|[bB]igg?[lrm]?){_END}", ""),
        (rf"\\(?:displaystyle|textstyle|(?:no)?limits|bf|rm|it|large|Large){_END}", ""),
        (r"(?<=[0-9])(?:\{,\}|, ?\\!|\\[,;: !]|~) ?(?=[0-9]{3}(?![0-9]))", ""),  # of thousands
        (r"(?<!\\)\\!", ""),
        (rf"(?<!\\)\\[,;:> ]|~|\\q?quad{_END}", " "),  # but not the "\\ " between rows
        (r"(?<!\\)\$|(?<!\\)\\[()\[\]]", ""),
        (r"\\%", "%"),
        (r"\\operatorname\*?\{ ?([a-z]{2,}) ?\}", r"\\\1 "),
        (r"\\(?:mathrm|text(?:rm|normal)?) ?\{ ?((?:arc)?(?:sin|cos|tan)h?|cot|csc|ln|log|exp"
         r"|gcd|lcm) ?\}", r"\\\1 "),
        (r"\\(sin|cos|tan) ?\^ ?(?:\{ ?-1 ?\}|-1)", r"\\arc\1 "),
        (r"\\(?:mathrm|text) ?\{ ?([kcm]?m|ft|mi) ?\} ?/ ?\\(?:mathrm|text) ?\{ ?([a-z]{1,3}) ?\}",
         r"\\text{\1/\2}"),
        (r"(?<=[0-9)}]) ?\\mathrm ?\{ ?([smhglNVWJA]) ?\}(?= ?(?:\^ ?\{? ?[23] ?\}?)?\s*\Z)",
         r"\\text{\1}"),  # a unit, unlike a letter elsewhere
        (r"\\(?:mathrm|mathit|mathbf|boldsymbol|bm|operatorname)\{\s?([A-Za-z])\s?\}", r"\1"),
        (r"\\(?:mathbf|boldsymbol|bm|mathit|textcolor\{[a-z]*\}|color\{[a-z]*\}) ?\{([^{}]*)\}",
         r"{\1}"),
        (rf"\\(?:text(?:bf|it|rm|sf|normal)?|mathrm|mathsf|mbox|hbox){_END} ?(?=\{{)", r"\\text"),
        (r"\\color ?\{[a-zA-Z0-9!]*\}", ""),
        (r"(?<![0-9}])(?<![0-9}] )\\underline ?\{([^{}]*)\}(?! ?[\\0-9{])", r"{\1}"),
        (r"\\text\{ *\}", " "),
        (r"\\text ?\{ ?[.,;] ?\} ?\Z", ""),
        (r"\\text ?\{ ?,(?: and)? \}", ", "),
        (r"\\text ?\{,\}", ","),
        (rf"\{{:\}}|\\colon{_END}", ":"),
        (rf"\\cr{_END}", r"\\\\ "),
        (r"\{smallmatrix\}", "{matrix}"),
        (r"(?<=[0-9]) ?\^ ?(?:\{ ?(?:\\text ?\{ ?o ?\}|o) ?\}|\\text ?\{ ?o ?\}|o(?![a-zA-Z]))",
         r"^\\circ"),
        (r"\\text ?\{ ?(\\\$|\\?%) ?\}", r"\1"),
        (r" ?(?:\{\})?\^ ?(?:\\circ|\{ ?\\circ ?\})| ?\\(?:text)?degree(?![a-zA-Z])", r"^\\circ"),
        (r" ?\\text ?\{ ?\^\\circ ?\}", r"^\\circ"),
        (rf"\\([lgn])e(?:q|qslant)?{_END}", r"\\\1e"),
        (rf"\\lt{_END}", "<"),
        (rf"\\gt{_END}", ">"),
        (rf"\\lbrace{_END}", r"\\{"),
        (rf"\\rbrace{_END}", r"\\}"),
        (rf"\\[lr]?vert{_END}", "|"),
        (rf"\\varnothing{_END}", r"\\emptyset"),
        (r"\\(?:mathbb|Bbb) ?\{?R\}?", r"\\mathbb{R}"),
        (rf"(?<=\\mathbb\{{R\}}) ?(?:-|\\backslash{_END}) ?(?=\\\{{)", r" \\setminus "),
        (r"\\not ?=", r"\\ne "),
        (r"\\frac ?([0-9])", r"\\frac{\1}"),
        (r"(\\frac ?\{[^{}]*\}) ?([0-9])(?![0-9])", r"\1{\2}"),
        (r"\\sqrt ?\(([^()]*)\)", r"\\sqrt{\1}"),
    )
)  # fmt: skip
_OF_TEX = re.compile(r"\\(?:over|choose)(?![a-zA-Z])")
_BESIDE_TEX = r"(?:[^{}\\]|\\(?!(?:over|choose)(?![a-zA-Z]))|\{[^{}]*\})*"
_GROUP_OF_TEX = re.compile(
    rf"(?<!\\)\{{(?P<top>{_BESIDE_TEX})\\(?P<name>over|choose){_END}(?P<below>{_BESIDE_TEX})\}}"
)
_MAX_GROUPS_OF_TEX = 4  # within each other
_LATEX = frozenset("\\$~{")
_PLAIN_NAMES = re.compile(r"(?<![a-zA-Z])(sqrt|pi|infty)(?![a-zA-Z])")
_SPACES = re.compile(r"\s+")
_SPACE_BESIDE_NO_DIGIT = re.compile(r"(?<![0-9]) | (?![0-9])")
_ELLIPSIS = re.compile(r"\\(?:[lcdv]?dots|cdots)|…|\.\.\.")


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete ``\boxed{}`` or ``\fbox{}``, or None without one."""
    box = last_box(text)
    return None if box is None else text[slice(*box)]


def last_box(text: str) -> tuple[int, int] | None:
    r"""Where the contents of the last complete box start and end, or None without one.

    Braces are matched, escaped ones ignored; of nested boxes the outermost counts, then `unwrapped`
    gives what is inside. A doubled backslash is taken for one. Without braces a box holds one
    letter or digit, as in TeX, if that stands alone: ``\boxed 5``, but not ``\boxed 42``. Text up
    to the last ``</think>`` is no answer, nor is any text with a ``<think>`` that is never closed.
    """
    begin = text.rfind("</think>") + 1
    first = _BOX.search(text, begin)
    if first is None or "<think>" in text[begin:]:
        return None
    opened: list[int] = []  # where the contents begin; negative for plain braces
    last: tuple[int, int] | None = None
    for match in _BRACES.finditer(text, first.start()):
        token = match.group()
        if match["token"]:
            last = match.span("token")
        elif token[-1] == "{" and token != "\\{":
            opened.append(match.end() if token[0] == "\\" else -1)
        elif token == "}" and opened and (start := opened.pop()) >= 0:
            last = start, match.start()
    return last


def unwrapped(content: str) -> str:
    r"""``\boxed{\boxed{5}}`` holds 5, and ``n = \boxed{5}`` says ``n = 5``."""
    while (box := _WHOLE_BOX.fullmatch(content)) and last_boxed(content) == box.group(1):
        content = box.group(1)
    begin = _BOX.search(content)
    box = _WHOLE_BOX.fullmatch(content, begin.start()) if begin else None
    if box and _SAYS_WHAT_IS_IN_BOX.search(content[: box.start()]):
        is_alone = last_boxed(content) == box.group(1) and not _BOX.search(box.group(1))
        return f"{content[: box.start()]}{{{box.group(1)}}}" if is_alone else content
    return content


def tidy(latex: str) -> str:
    """The same mathematics in fewer spellings; still fit for a parser."""
    if not latex.isascii():
        latex = _ROOT_OF_ONE.sub(r"\\sqrt{\1}", latex).translate(_UNICODE)
    if not _LATEX.isdisjoint(latex) or latex.endswith("^o"):
        latex = _SPACES.sub(" ", latex)
        for pattern, replacement in _REWRITES:
            latex = pattern.sub(replacement, latex)
        if _OF_TEX.search(latex):
            latex = _in_latex(f"{{{latex}}}")
    elif "sqrt" in latex or "pi" in latex:
        latex = _PLAIN_NAMES.sub(r"\\\1", latex)
        return tidy(latex) if "\\" in latex else latex
    latex = _SPACES.sub(" ", latex).strip(" ")
    latex = latex if latex.endswith("...") else latex.rstrip(".,; ")
    return _without_outer_braces(latex)


def _in_latex(latex: str) -> str:
    r"""``{3 \over 4}`` and ``{10 \choose 3}`` with the commands of LaTeX."""
    for _ in range(_MAX_GROUPS_OF_TEX):
        latex = _GROUP_OF_TEX.sub(_with_command, latex)
    return latex


def _with_command(match: re.Match[str]) -> str:
    command = {"over": "frac", "choose": "binom"}[match["name"]]
    top, below = (_without_outer_braces(match[part].strip(" ")) for part in ("top", "below"))
    return rf"{{\{command}{{{top}}}{{{below}}}}}"


def _without_outer_braces(latex: str) -> str:
    """``{5}`` is 5, but ``{5}{6}`` stays."""
    for _ in range(_MAX_OUTER_BRACES):
        if not (latex.startswith("{") and latex.endswith("}")):
            return latex
        depth, end = 0, len(latex)
        for match in _BRACE.finditer(latex):
            depth += {"{": 1, "}": -1}.get(match.group(), 0)
            if depth == 0:
                end = match.end()
                break
        if depth or end < len(latex):
            return latex
        latex = latex[1:-1].strip(" ")
    return latex


def squeezed(latex: str) -> str:
    """Tidied LaTeX without spaces, but for those between digits: equal text means equal answers."""
    return _SPACE_BESIDE_NO_DIGIT.sub("", latex)


def has_ellipsis(latex: str) -> bool:
    """Whether the answer leaves something to the reader."""
    return _ELLIPSIS.search(latex) is not None
