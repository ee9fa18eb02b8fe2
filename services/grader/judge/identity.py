"""Which model answers, as far as anybody can tell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """The server, the name that it gives its model, and what vLLM tells about it on /v1/models.

    What a server does not tell is None. When the model was started is no part of it.
    """

    url: str
    name: str
    root: str | None = None  # the folder or hub id that is served under the name
    context_tokens: int | None = None
