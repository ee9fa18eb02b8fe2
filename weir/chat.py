"""A conversation with a model, in a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache

from weir.client import Json, WeirClient, WeirError
from weir.views import complain, say, visible

_HOW = "/reset begins again, /quit or Ctrl-D ends, Ctrl-C stops an answer"
_ALONE = "each question stands alone: the model has learned from texts, and knows no chats"
_CUT_OFF = "the answer is cut off at the limit of its tokens; see --max-tokens"


@dataclass
class Conversation:
    """What was said so far; ``settings`` are the fields of each request beside the messages."""

    weir: WeirClient
    settings: Json
    begins_with: list[Json]
    messages: list[Json] = field(default_factory=list)
    has_turns: bool = True  # until an answer says that the model knows none

    def ask(self, question: str) -> Generator[str]:
        """The answer as it comes. A question that gets none is forgotten, so it can be repeated."""
        asked = [*self.messages, {"role": "user", "content": question}]
        body, answer = {**self.settings, "messages": [*self.begins_with, *asked]}, ""
        try:
            for chunk in self.weir.chat(body, cache(complain)):  # each thing once
                self._learn(chunk.get("weir") or {})
                for choice in chunk["choices"]:
                    if text := choice["delta"].get("content"):
                        answer += text
                        yield text
                    if choice["finish_reason"] == "length":
                        complain(_CUT_OFF)
        finally:
            if answer and self.has_turns:
                self.messages = [*asked, {"role": "assistant", "content": answer}]

    def _learn(self, facts: Json) -> None:
        if facts.get("prompt_template") is not None and self.has_turns:
            self.has_turns, self.messages = False, []
            complain(_ALONE)


def answer_once(conversation: Conversation) -> None:
    """Answer the question that standard input holds."""
    _write(conversation.ask(sys.stdin.read().strip()))


def talk(conversation: Conversation) -> None:
    """Answer line by line, until the person has had enough."""
    import readline  # noqa: F401 - with it `input` edits lines

    say(f"{conversation.settings['model']} answers; {_HOW}")
    while (question := _asked()) is not None:
        if question == "/reset":
            conversation.messages = []
        elif question:
            _answer(conversation, question)


def _answer(conversation: Conversation, question: str) -> None:
    try:
        _write(conversation.ask(question))
    except WeirError as error:
        complain(error)
    except KeyboardInterrupt:
        say("")


def _asked() -> str | None:
    """The next line; None at the end."""
    try:
        question = input("> ").strip()
    except EOFError:
        say("")
        return None
    return None if question == "/quit" else question


def _write(answer: Generator[str]) -> None:
    text = ""
    with closing(answer):  # one that is stopped is not sampled to its end
        try:
            for text in answer:
                print(visible(text), end="", flush=True)
        finally:
            if text:
                say("")
