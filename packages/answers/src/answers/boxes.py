r"""Where an answer is: the last ``\boxed{}`` of a response, or the last boxes that make a list.

Linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
_BRACES = re.compile(
    r"\\\\?(?:boxed|fbox)(?:\s*+\{|(?:\s++|(?=[0-9]))(?P<token>[0-9A-Za-z])(?=$|[\s$.,;)]))"
    r"|\\.|[{}]",
    re.DOTALL,
)
_SPACE = r"(?:[\s$]|\\[()\[\],;:! ]|\\q?quad(?![a-z])){0,40}"
_AND = r"(?:[,;&、和或]|and|or|\\text\s?\{\s*,?\s*(?:and|or)\s*\})"
_NAME = r"(?:(?:[a-zA-Z]|\\[a-zA-Z]{2,8})(?:_\{?\w{1,4}\}?)?(?:\(\w{1,3}\))?\s?=\s?)?"
_JOINT = re.compile(rf"{_SPACE}{_AND}(?:{_SPACE}{_AND})?{_SPACE}{_NAME}{_SPACE}")
_NAME_BEFORE = re.compile(rf"{_NAME}\Z")
_MAX_NAME_CHARS = 30
_COMMENT = re.compile(r"[\s$]*%")
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
    is no answer, nor is a box that is empty or in a LaTeX comment. Boxes with only commas, "and",
    "or" and names between them are one answer, which starts before the first box and its name.
    """
    if not (boxes := _boxes(text)):
        return None
    last = boxes.pop()
    begin, contents = last.begin, {text[last.start : last.end]}
    while boxes and _JOINT.fullmatch(text, boxes[-1].after, begin):
        box = boxes.pop()
        begin = box.begin
        contents.add(text[box.start : box.end])
    if len(contents) == 1:
        return last.start, last.end
    name = _NAME_BEFORE.search(text, max(0, begin - _MAX_NAME_CHARS), begin)
    return name.start() if name else begin, last.after


class _Box(NamedTuple):
    begin: int
    start: int  # of its contents
    end: int
    after: int


def _boxes(text: str) -> list[_Box]:
    begin = text.rfind("</think>") + 1
    first = _BOX.search(text, begin)
    if first is None or "<think>" in text[begin:]:
        return []
    boxes = list[_Box]()
    for box in _closed_boxes(text, first.start()):
        while boxes and boxes[-1].begin > box.begin:
            boxes.pop()
        behind = boxes[-1].after if boxes else begin
        line = max(behind, text.rfind("\n", behind, box.begin) + 1)
        is_named_only = not text[box.start : box.end].strip(" .…")
        if not is_named_only and not _COMMENT.match(text, line, box.begin):
            boxes.append(box)
    return boxes


def _closed_boxes(text: str, start: int) -> Iterator[_Box]:
    """Those inside a box come before it."""
    opened: list[tuple[int, int]] = []  # where a box and its contents begin; negative without one
    for match in _BRACES.finditer(text, start):
        token = match.group()
        if match["token"]:
            yield _Box(match.start(), *match.span("token"), match.end())
        elif token[-1] == "{" and token != "\\{":
            opened.append((match.start(), match.end() if token[0] == "\\" else -1))
        elif token == "}" and opened and (place := opened.pop())[1] >= 0:
            yield _Box(*place, match.start(), match.end())


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
