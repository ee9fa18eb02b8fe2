"""Whether a question fits the judge's context, found out before it is sent."""

from __future__ import annotations

import logging

from services.grader.judge.question import Question, as_utf8
from services.grader.judge.settings import CONTEXT
from services.grader.judge.wire import Wire

log = logging.getLogger(__name__)

_BYTES_PER_TOKEN = 2.5  # of mathematical text, cautiously, for a server that does not count
_TEMPLATE_TOKENS = 256  # what a chat template adds, generously


class OverContext(ValueError):
    """The question and its answer do not fit."""


class Context:
    """What fits. ``tokens`` is for question and answer together; None if nobody knows."""

    def __init__(self, wire: Wire, tokens: int | None) -> None:
        self.tokens = tokens
        self._wire = wire
        self._is_given = tokens is not None
        self._has_told = False

    def learn(self, tokens: int | None) -> None:
        """Believe the server, unless the deployment says otherwise."""
        if self._is_given:
            return
        self.tokens = tokens
        if self.tokens is None:
            log.warning(
                "the judge's server does not tell its context, so nothing is checked; "
                f"set {CONTEXT}"
            )

    async def admit(self, question: Question) -> None:
        """Return if the question fits.

        Raises:
            OverContext: if it does not.
            Trouble: if the server was asked to count, and nobody listens.
        """
        num_bytes = sum(len(as_utf8(turn["content"])) for turn in question.messages)
        room = None if self.tokens is None else self.tokens - question.max_tokens
        if room is None or num_bytes + _TEMPLATE_TOKENS <= room:  # no token is shorter than a byte
            return
        counted = await self._wire.count_tokens(question)
        tokens = int(num_bytes / _BYTES_PER_TOKEN) if counted is None else counted
        if tokens > room:
            self._tell_once(question, tokens, was_counted=counted is not None)
            raise OverContext

    def _tell_once(self, question: Question, tokens: int, *, was_counted: bool) -> None:
        if self._has_told:
            return
        self._has_told = True
        log.warning(
            "a question is longer than the judge's context: serve it with more (vLLM: "
            "--max-model-len), or lower the check's max_tokens",
            extra={
                "tokens": tokens,
                "was_counted": was_counted,
                "max_tokens": question.max_tokens,
                "context": self.tokens,
            },
        )
