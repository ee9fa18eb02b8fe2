r"""Where an answer is: the last ``\boxed{}`` of a response. Linear in the text."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
_BRACES = re.compile(
    r"\\\\?(?:boxed|fbox)(?:\s*+\{|(?:\s++|(?=[0-9]))(?P<token>[0-9A-Za-z])(?=$|[\s$.,;)]))"
    r"|\\.|[{}]",
    re.DOTALL,
)
_SAYS_WHAT_IS_IN_BOX = re.compile(r"(?:=|\\text ?\{[^{}]*\})\s*\Z")
_BOLD = re.compile(r"\s*\*\*((?:(?!\*\*).)+)\*\*\s*", re.DOTALL)
_WHOLE_BOX = re.compile(r"\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete ``\boxed{}`` or ``\fbox{}``, or None without one."""
    box = last_box(text)
    return None if box is None else text[slice(*box)]


def last_box(text: str) -> tuple[int, int] | None:
    r"""Where the contents of the last complete box start and end; of nested ones the outermost.

    Braces are matched; a doubled backslash is one. Without braces a box holds one letter or digit
    that stands alone, ``\boxed 5``. Text up to the last ``</think>``, or with an open ``<think>``,
    is no answer.
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
    r"""``\boxed{\boxed{5}}`` and ``**5**`` hold 5, and ``n = \boxed{5}`` says ``n = 5``."""
    while (box := _WHOLE_BOX.fullmatch(content)) and last_boxed(content) == box.group(1):
        content = box.group(1)
    if bold := _BOLD.fullmatch(content):
        return unwrapped(bold[1])
    begin = _BOX.search(content)
    box = _WHOLE_BOX.fullmatch(content, begin.start()) if begin else None
    if box and _SAYS_WHAT_IS_IN_BOX.search(content[: box.start()]):
        is_alone = last_boxed(content) == box.group(1) and not _BOX.search(box.group(1))
        return f"{content[: box.start()]}{{{box.group(1)}}}" if is_alone else content
    return content
