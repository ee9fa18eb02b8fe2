r"""Other spellings of a gold answer that keep its value, and small changes that do not.

Each spelling is made only of golds that it fits, by patterns as narrow as that takes: no reader of
the grader is used here. Numbers have more in ``test_rewritten``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

FRACTION = re.compile(r"(-?)\\d?frac *\{?([0-9]+)\}? *\{?([0-9]+)\}?")
TEXT = re.compile(r"\\text\{([A-Za-z]+)\}")
CHOICE = re.compile(r"\\text\{\(([A-E])\)\}")
INTERVAL = re.compile(r"\\?(?:left)?([(\[])(.+),(.+?)(?:\\right)?([)\]])")
SET = re.compile(r"\\\{(.+)\\\}")
LIST = re.compile(r"-?[0-9]+(?:, ?-?[0-9]+)+")
THOUSANDS = re.compile(r"(?:\\\$)?[0-9]+(?:,(?:\\! ?)?[0-9]{3})+")
IS_SCALAR = re.compile(r"[^,&=_]*")
NUMBER = re.compile(r"(?<![0-9_])[0-9]+(?![0-9]*,\\!)")
UNIT = r" *\\(?:text|mbox) *\{ *(?:cm|inches|cents|degrees)\}(?:\^2)?|\^\\circ|\\\$"
SIGNS = {"(": "<", ")": "<", "[": r"\leq", "]": r"\leq"}

# Of golds that a pattern fits: other spellings, with the gold as {0} and the pattern's groups.
TEMPLATES: dict[str | re.Pattern[str], tuple[str, ...]] = {
    ".*": (
        *(" {0} ", "{0}.", "${0}$", r"\({0}\)", r"\boxed{{{0}}}", r"\displaystyle {0}"),
        r"\text{{The answer is }}{0}",
    ),
    "-?[0-9]+": (
        *("({0})", "m+n={0}", "f(3) = {0}", r"{0}^\circ", "{0}00/100", "{0}00\\%", "{0}+0"),
        *(r"\{{{0}\}}", r"\text{{(B) }}{0}", r"\frac{{{0}0}}{{10}}"),
    ),
    FRACTION: (
        *("{1}{2}/{3}", r"{1}\frac{{{2}0}}{{{3}0}}", r"\frac{{{1}{2}}}{{{3}}}", r"{1}{2} \div {3}"),
        *(r"{1}{2} \cdot {3}^{{-1}}", r"p = {1}\tfrac{{{2}}}{{{3}}}", r"{1}\frac {{{2}}} {{{3}}}"),
    ),
    r"(.*[0-9}])\^\\circ": (
        *(r"{1}^{{\circ}}", "{1}°", r"{1}\text{{ degrees}}", r"\angle ABC = {0}"),
    ),
    f".*(?:{UNIT}).*": ("x = {0}",),
    TEXT: ("{1}", r"\textbf{{{1}}}", r"\mathrm{{{1}}}", r"\text{{ {1} }}", r"\text{{{1}.}}"),
    CHOICE: (
        *("{1}", "({1})", r"\textbf{{({1})}}", r"\text{{{1}}}", r"\text{{({1})}}\ 12", "{1}) 12"),
        r"\mathrm{{({1})}}",
    ),
    r"([0-9]+)_\{?([0-9]+)\}?": ("{1}", "{1}_{{{2}}}", "{1}_{2}"),
    r"[-+0-9a-z^ ]*[a-z][-+0-9a-z^ ]*": (
        *("0 + {0}", "{0} - -0", "({0})", r"\frac{{2({0})}}{{2}}"),
    ),
    r"(?!.*(?:text|mbox|\\pm|in))[^,&=_]*": ("A = {0}",),
    "y = (.+)": ("{1}", "{1} = y"),
    "(.+) = 0": ("0 = -({1})",),
    "x ?= ?([0-9]+)": ("{1}", "x = {1}"),
    r"x \\in (.+)": ("{1}",),
    r"([^u]+) \\cup ([^u]+)": (r"{2} \cup {1}", r"x \in {0}"),
}
# Replaced one after the other wherever they stand in a gold.
REPLACEMENTS: tuple[dict[str, str], ...] = (
    {r"(?<!\\left)\(": r"\\left( ", r"(?<!\\right)\)": r" \\right)"},
    {r"\\left|\\right": ""},
    {r"(?<=[0-9}]) *([-+]) *(?=[0-9\\a-z])": r" \1 "},
    {r"\\d?frac": r"\\tfrac"},
    {r"\\d?frac": r"\\dfrac"},
    {r"\\frac\{([0-9])\}\{([0-9])\}(?![0-9])": r"\\frac\1\2"},
    {r"\\sqrt\{([0-9])\}": r"\\sqrt \1"},
    {r"\\sqrt([0-9])": r"\\sqrt{\1}"},
    {r"([0-9]) *\\(pi|sqrt)": r"\1 \\cdot \\\2"},
    {r"([0-9]) *\\(pi|sqrt)": r"\1 \\times \\\2"},
    {r"\\pi": "π", "-": "−"},
    {r"^([^,]*) \\pm ([^,]*)$": r"\1 \\mp \2"},
    {r"^([^,]*) \\pm ([^,]*)$": r"\1 + \2, \1 - \2"},
    {UNIT: ""},
    {"pmatrix": "bmatrix"},
    {r" *(&|\\\\) *": r"\1"},
    {"&": " & ", r"\\\\": r" \\\\ \n "},
    {r"(?<![0-9])([0-9]+)/([0-9]+)": r"\\frac{\1}{\2}"},
)


def fractions(gold: str) -> Iterator[str]:
    if match := FRACTION.fullmatch(gold):
        sign, top, bottom = match[1], int(match[2]), int(match[3])
        yield f"{sign}{top / bottom:.12f}"
        if top > bottom:
            yield rf"{sign}{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}"
            yield f"{sign}{top // bottom} {top % bottom}/{bottom}"
        if 10**6 % bottom == 0:
            yield f"{sign}{top / bottom:.6f}"
    if r"\pi" not in gold and not re.search(r"[0-9)}] *\\frac|begin", gold):
        yield re.sub(r"\\frac\{([0-9]+)\}\{(2|4|5|8)\}", _decimals, gold)


def _decimals(match: re.Match[str]) -> str:
    return f"{int(match[1]) / int(match[2]):g}"


def others(gold: str) -> Iterator[str]:
    if match := TEXT.fullmatch(gold):
        yield from (match[1].lower(), match[1].capitalize())
    if THOUSANDS.fullmatch(gold):
        number = int(re.sub(r"[^0-9]", "", gold))
        yield from (f"{number}", f"{number:,}", f"{number:,}".replace(",", "{,}"))
    if re.fullmatch(r"[-+0-9a-z^ ]*[a-z][-+0-9a-z^ ]*", gold):
        terms = re.findall(r"[-+]?[^-+]+", gold.replace(" ", ""))
        terms[0] = terms[0] if terms[0][0] in "+-" else f"+{terms[0]}"
        yield "".join(terms[::-1]).removeprefix("+")
    if gold.startswith(r"\begin{pmatrix}") and "&" not in gold:
        cells = gold.removeprefix(r"\begin{pmatrix}").removesuffix(r"\end{pmatrix}")
        yield f"({','.join(cells.split(chr(92) * 2))})"


def members(gold: str) -> Iterator[str]:
    inner = SET.fullmatch(gold)
    if inner or (LIST.fullmatch(gold) and not re.search(r",[0-9]{3}", gold)):
        parts = [part.strip() for part in (inner[1] if inner else gold).split(",")]
        yield rf"\{{{', '.join(parts[::-1])}\}}"
        yield ", ".join(parts[1:] + parts[:1])
        yield r" \text{ or } ".join(parts)
        yield r", \text{ and } ".join(parts)


def intervals(gold: str) -> Iterator[str]:
    match = INTERVAL.fullmatch(gold)
    if match and r" \cup " not in gold and match[2].count(",") == 0:
        yield f"{match[1]} {match[2].strip()} ,  {match[3].strip()} {match[4]}"
        if match[2].strip() == r"-\infty":
            yield f"x {SIGNS[match[4]]} {match[3]}"
        elif match[1] + match[4] != "()":
            yield f"{match[2]} {SIGNS[match[1]]} x {SIGNS[match[4]]} {match[3]}"
            yield rf"x \in {gold}"


def rewritten(gold: str) -> list[str]:
    """Every other spelling of a gold answer."""
    found = [*fractions(gold), *others(gold), *members(gold), *intervals(gold)]
    for pattern, templates in TEMPLATES.items():
        if match := re.fullmatch(pattern, gold):
            found += [template.format(gold, *match.groups()) for template in templates]
    for replacements in REPLACEMENTS:
        text = gold
        for pattern, replacement in replacements.items():
            text = re.sub(pattern, replacement, text)
        found.append(text)
    return [text for text in dict.fromkeys(found) if text != gold]


def perturbed(gold: str) -> list[str]:
    """Answers that are wrong, each by one small change."""
    found = [
        gold[: match.start()] + str(int(match[0]) + 1) + gold[match.end() :]
        for match in NUMBER.finditer(gold)
    ]
    if (
        gold != "0"
        and IS_SCALAR.fullmatch(gold)
        and not re.search(r"text\{|\\pm|\\cup|[ =](?:in|\\in)", gold)
    ):
        found.append(gold[1:] if re.fullmatch("-[^-+]+", gold) else f"-({gold})")
    found += _other_brackets(gold)
    found += _fewer_members(gold)
    found += _other_letters(gold)
    return [text for text in dict.fromkeys(found) if text != gold]


def _other_brackets(gold: str) -> Iterator[str]:
    match = INTERVAL.fullmatch(gold)
    if match and match[2].count(",") == 0 and r"\cup" not in gold:
        for opens, closes in ("()", "(]", "[)", "[]"):
            if (opens, closes) != (match[1], match[4]):
                yield f"{opens}{match[2]},{match[3]}{closes}"
        yield rf"\{{{match[2]},{match[3]}\}}"


def _fewer_members(gold: str) -> Iterator[str]:
    if "," in gold and not re.search(r"[0-9],(?:\\!)? ?[0-9]{3}|\\cup", gold):
        yield re.sub(r"^((?:\\left *)?[(\[]|\\\{)?[^,]+,", r"\1", gold)
        yield f"{gold}, 17"
    if r"\cup" in gold:
        yield gold.partition(r" \cup ")[0]
    if r" \pm " in gold:
        yield gold.replace(r"\pm", "+")


def _other_letters(gold: str) -> Iterator[str]:
    if CHOICE.fullmatch(gold):
        yield from (r"\text{(A)}", "A", "BCE", "(D)")
    elif TEXT.fullmatch(gold):
        yield from (r"\text{Somebody}", "x", "3", rf"\text{{not {gold[6:-1]}}}")
    elif re.search(r"(?<![a-zA-Z\\])[a-z](?![a-z])", gold) and not re.search("text|in ", gold):
        yield re.sub(r"(?<![a-zA-Z\\])([a-z])(?![a-z])", r"\1_7", gold)
