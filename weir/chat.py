"""A conversation with a model, in a terminal or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache

from weir.client import Json, WeirClient, WeirError
from weir.views import complain, say, visible

_HELP = "/reset begins again, /quit or Ctrl-D ends, Ctrl-C stops an answer"
_STANDALONE = "each question stands alone: the model was trained on texts, and knows no chats"
_CUT_OFF = "the answer is cut off at the limit of its tokens; see --max-tokens"


@dataclass
class Conversation:
    """The messages so far; ``settings`` are the other fields of each request.

    ``has_turns`` is False once the gateway reports that the model knows no chats.
    """

    weir: WeirClient
    settings: Json
    system: list[Json]
    messages: list[Json] = field(default_factory=list)
    has_turns: bool = True

    def ask(self, question: str) -> Generator[str]:
        """Yield the answer as it comes. A question without an answer is forgotten."""
        messages = [*self.messages, {"role": "user", "content": question}]
        body = {**self.settings, "messages": [*self.system, *messages]}
        answer = ""
        try:
            # `cache` prints each reason for waiting once.
            for chunk in self.weir.chat(body, cache(complain)):
                self._check_template(chunk.get("weir") or {})
                for choice in chunk["choices"]:
                    text = choice["delta"].get("content")
                    if text:
                        answer += text
                        yield text
                    if choice["finish_reason"] == "length":
                        complain(_CUT_OFF)
        finally:
            if answer and self.has_turns:
                self.messages = [*messages, {"role": "assistant", "content": answer}]

    def _check_template(self, details: Json) -> None:
        if details.get("prompt_template") is not None and self.has_turns:
            self.has_turns = False
            self.messages = []
            complain(_STANDALONE)


def answer_once(conversation: Conversation) -> None:
    """Answer the question on standard input."""
    _write(conversation.ask(sys.stdin.read().strip()))


def talk(conversation: Conversation) -> None:
    """Answer line by line until the person ends it."""
    import readline  # noqa: F401 - with it `input` edits lines

    say(f"{conversation.settings['model']} answers; {_HELP}")
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            say("")
            return
        if question == "/quit":
            return
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


def _write(answer: Generator[str]) -> None:
    text = ""
    # Closing a stopped answer cancels its sampling.
    with closing(answer):
        try:
            for text in answer:
                print(visible(text), end="", flush=True)
        finally:
            if text:
                say("")
