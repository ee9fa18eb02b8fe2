r"""Where an answer is: the last ``\boxed{}`` of a response, or the last boxes that make a list.

The search is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
# An opening box, with braces or with one letter or digit that stands alone; or any brace.
_BRACES = re.compile(
    r"""
    \\\\?(?:boxed|fbox)
      (?: \s*+ \{ | (?: \s++ | (?=[0-9]) ) (?P<token> [0-9A-Za-z] ) (?= $ | [\s$.,;)] ) )
    | \\. | [{}]
    """,
    re.DOTALL | re.VERBOSE,
)
_SPACE = r"(?: [\s$] | \\[()\[\],;:!\ ] | \\q?quad(?![a-z]) ){0,40}"
_AND = r"(?: [,;&、和或] | and | or | \\text \s? \{ \s* ,? \s* (?: and | or ) \s* \} )"
_NAME = r"""
    (?:
      (?: [a-zA-Z] | \\[a-zA-Z]{2,8} ) (?: _ \{? \w{1,4} \}? )? (?: \( \w{1,3} \) )? \s? = \s?
    )?
"""
_JOINT = re.compile(
    rf"{_SPACE} {_AND} (?: {_SPACE} {_AND} )? {_SPACE} {_NAME} {_SPACE}", re.VERBOSE
)
_NAME_BEFORE = re.compile(rf"{_NAME} \Z", re.VERBOSE)
_MAX_NAME_CHARS = 30
_COMMENT = re.compile(r"[\s$]*%")
_NAMES_BOX = re.compile(r"(?:=|\\text ?\{[^{}]*\})\s*\Z")
_BOLD = re.compile(r"\s*\*\*((?:(?!\*\*).)+)\*\*\s*", re.DOTALL)
_WHOLE_BOX = re.compile(r"\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*", re.DOTALL)
_THINKING_STARTS = "<think>"
_THINKING_ENDS = "</think>"


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete ``\boxed{}`` or ``\fbox{}``, or None."""
    box = last_box(text)
    if box is None:
        return None
    return text[slice(*box)]


def last_box(text: str) -> tuple[int, int] | None:
    r"""Return where the content of the last complete box starts and ends.

    Of nested boxes the outermost counts. Braces are matched; a doubled backslash is one. Without
    braces a box holds one letter or digit that stands alone, ``\boxed 5``. Text up to the last
    ``</think>``, or with an open ``<think>``, holds no answer; nor does a box that is empty or in a
    LaTeX comment. Boxes with only commas, "and", "or" and names between them are one answer, which
    starts before the first box and its name.
    """
    boxes = _find_boxes(text)
    if not boxes:
        return None
    last = boxes.pop()
    begin = last.begin
    contents = {text[last.start : last.end]}
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
    start: int  # of the content
    end: int  # of the content
    after: int


def _find_boxes(text: str) -> list[_Box]:
    begin = text.rfind(_THINKING_ENDS) + 1
    first = _BOX.search(text, begin)
    if first is None or _THINKING_STARTS in text[begin:]:
        return []
    boxes = list[_Box]()
    for box in _find_closed_boxes(text, first.start()):
        while boxes and boxes[-1].begin > box.begin:
            boxes.pop()
        line_start = boxes[-1].after if boxes else begin
        line_start = max(line_start, text.rfind("\n", line_start, box.begin) + 1)
        is_empty = not text[box.start : box.end].strip(" .…")
        if not is_empty and not _COMMENT.match(text, line_start, box.begin):
            boxes.append(box)
    return boxes


def _find_closed_boxes(text: str, start: int) -> Iterator[_Box]:
    """Yield boxes by their ends: a nested box comes before the one around it."""
    stack: list[tuple[int, int]] = []  # where a box and its content begin; -1 for other braces
    for match in _BRACES.finditer(text, start):
        token = match.group()
        start, after = match.span()
        if match["token"]:
            yield _Box(start, *match.span("token"), after)
        elif token == "{":
            stack.append((start, -1))
        elif token[-1] == "{" and token != "\\{":
            stack.append((start, after))
        elif token == "}" and stack:
            begin, content = stack.pop()
            if content >= 0:
                yield _Box(begin, content, start, after)


def unwrap(content: str) -> str:
    r"""Reduce ``\boxed{\boxed{5}}`` and ``**5**`` to 5, and ``n = \boxed{5}`` to ``n = {5}``."""
    while (box := _WHOLE_BOX.fullmatch(content)) and last_boxed(content) == box[1]:
        content = box[1]
    if bold := _BOLD.fullmatch(content):
        return unwrap(bold[1])
    begin = _BOX.search(content)
    box = _WHOLE_BOX.fullmatch(content, begin.start()) if begin else None
    if box is None:
        return content
    name = content[: box.start()]
    is_alone = last_boxed(content) == box[1] and not _BOX.search(box[1])
    if is_alone and _NAMES_BOX.search(name):
        return f"{name}{{{box[1]}}}"
    return content
