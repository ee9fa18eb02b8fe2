"""The templates of OpenAI's graders: which places may stand in them. Pure."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_PLACE = re.compile(r"\{\{([^{}]*)\}\}")  # as the grader reads it; in time linear in the text
_PATH = r"(?:\.\w+|\[\d+\])"  # a key, or the number of an entry of a list
_KNOWN_PLACE = re.compile(
    rf"\s*(?:sample\.output_text|sample\.output_json{_PATH}*|item\.\w+{_PATH}*)\s*"
)
_MAX_CHARS = 100_000
_SHOWN_CHARS = 60  # of what is wrong


def _template(text: str) -> str:
    if len(text) > _MAX_CHARS:
        raise ValueError(f"holds {len(text)} characters; shorten it to {_MAX_CHARS}")
    for place in _PLACE.findall(text):
        if not _KNOWN_PLACE.fullmatch(place):
            shown = place[:_SHOWN_CHARS]
            raise ValueError(f"{{{{{shown}}}}} is not known here; {_instead_of(place)}")
    _, opened, behind = _PLACE.sub("…", text).partition("{{")
    if opened:
        raise ValueError(
            f"'{{{{{behind[:_SHOWN_CHARS]}' names no field; close it with }}}}, or write '{{ {{' "
            "for braces that are text"
        )
    return text


def _instead_of(place: str) -> str:
    if "output_tools" in place:
        return "a response is text: use {{sample.output_text}} or {{sample.output_json}}"
    return (
        "use {{sample.output_text}}, {{sample.output_json.NAME}}, or {{item.NAME}} with a column "
        "of the data set, such as {{item.prompt}}, {{item.answer}} or {{item.solution}}"
    )


Template = Annotated[str, AfterValidator(_template)]
