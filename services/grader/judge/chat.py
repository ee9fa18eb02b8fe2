"""Chat completions of an OpenAI-compatible server: one attempt each, read within limits.

A failure says whether it is of the request, of every request, or may pass. What it means, and
whether to ask again, is for whoever asks to decide.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

import httpx
from prometheus_client import Counter, Gauge, Histogram

from services.chassis.metrics import born_at_zero
from services.grader.judge.form import NoVerdict, Verdict
from services.grader.judge.question import Question, as_json
from services.grader.judge.settings import API_KEY, MODEL, URL, JudgeSettings
from services.grader.trial_record import record_tokens

CALLS = born_at_zero(
    Counter("weir_judge_calls_total", "Calls to the judge's server by how they ended", ["outcome"]),
    *("verdict", "no_verdict", "refused", "failed", "timeout"),
)
TOKENS = born_at_zero(
    Counter("weir_judge_tokens_total", "Tokens that the judge's server has counted", ["kind"]),
    *("prompt", "completion", "reasoning"),
)
SECONDS = Histogram(
    "weir_judge_call_seconds",
    "Time of one call to the judge's server",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320),
)
IN_FLIGHT = Gauge("weir_judge_in_flight", "Calls that the judge's server is working on")

_MAX_REPLY_BYTES = 8 * 2**20
_CONNECT_TIMEOUT_S = 10.0
_LONGEST_RETRY_AFTER_S = 30.0
_SHOWN_CHARS = 300
_MOST_TOKENS = 2**53  # of which a counter still counts one
_OF_THIS_REQUEST = {400, 413, 414, 415, 422, 431}  # other refusals may be of every request
_MAY_PASS = {408, 425, 429}
_UNREACHABLE = httpx.ConnectError, httpx.ConnectTimeout
_NOT_AS_DESCRIBED = ValueError, LookupError, TypeError, AttributeError, RecursionError  # of JSON


class ChatError(RuntimeError):
    """There is no completion; the text says why, and which variable to look at.

    ``kind`` is ``refused`` if the server would refuse this request again, ``denied`` if it may
    refuse every request, as one of an unknown model or key; ``failed`` and ``timeout`` may pass.
    ``retry_after_s`` is how long the server asks to wait.
    """

    def __init__(
        self,
        kind: Literal["refused", "denied", "failed", "timeout"],
        text: str,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.retry_after_s = retry_after_s

    @property
    def may_pass(self) -> bool:
        """Whether it is worth asking again."""
        return self.kind in {"failed", "timeout"}


class Chat:
    """Calls to one server, ``connections`` at once. Use it as ``async with``."""

    def __init__(self, server: JudgeSettings, *, connections: int) -> None:
        self.server = server
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # so that what is read is what is counted
            "Connection": "close",
        }
        if server.api_key:
            headers["Authorization"] = f"Bearer {server.api_key}"
        # A call takes seconds, so its connection is its own: none is cut by a server that has
        # waited too long for the next call, and httpx compares every idle one with every other.
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=0),
        )

    async def __aenter__(self) -> Self:
        """Nothing is sent yet."""
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(self, question: Question) -> Verdict:
        """Ask the server's model once.

        Raises:
            NoVerdict: if the model answered something else than a form filled in.
            ChatError: if there is no answer.
        """
        with IN_FLIGHT.track_inprogress(), SECONDS.time(), _counted():
            request = {"model": self.server.model, **question.request}
            reply = await self._call("POST", "/chat/completions", request)
            try:
                completion = json.loads(reply)
                choice = completion["choices"][0]
                content, ended = choice["message"].get("content"), choice.get("finish_reason")
            except _NOT_AS_DESCRIBED as error:
                what = f"{self.server.url} sends no chat completion; check {URL}"
                raise ChatError("failed", what) from error
            _count_tokens(completion.get("usage"), self.server.model)
            if ended != "stop":
                why = f"it ended by {str(ended)[:20]!r}"
                raise NoVerdict(why, is_cut_short=ended == "length")
            return question.form.read(content)

    async def identity(self) -> tuple[object, ...]:
        """Who answers: the server, the model, and what the server says of it on ``/models``.

        Raises:
            ChatError: if the server does not answer.
        """
        told: dict[str, Any] = {}
        try:
            models = json.loads(await self._call("GET", "/models"))["data"]
            told = next((each for each in models if each.get("id") == self.server.model), told)
        except ChatError as error:
            if error.may_pass:
                raise
        except _NOT_AS_DESCRIBED:
            pass
        return self.server.url, self.server.model, told.get("root"), told.get("max_model_len")

    async def _call(self, method: str, path: str, body: object = None) -> bytes:
        url = self.server.url + path
        content = None if body is None else as_json(body)
        try:
            async with asyncio.timeout(self.server.timeout_s):
                response, reply = await self._exchanged(method, url, content)
        except TimeoutError as error:
            late = f"{url} did not answer within {self.server.timeout_s:g} s"
            raise ChatError("timeout", late) from error
        except _UNREACHABLE as error:
            what = f"{url} cannot be reached ({error!r}); start it or correct {URL}"
            raise ChatError("failed", what) from error
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise ChatError("failed", f"{url} broke off: {error!r}") from error
        if response.status_code != 200:
            raise self._refusal(response, reply)
        return reply

    async def _exchanged(
        self, method: str, url: str, content: bytes | None
    ) -> tuple[httpx.Response, bytes]:
        async with self._http.stream(method, url, content=content) as response:
            received = bytearray()
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > _MAX_REPLY_BYTES:
                    raise ChatError("failed", f"{url} sends more than {_MAX_REPLY_BYTES} bytes")
            return response, bytes(received)

    def _refusal(self, response: httpx.Response, reply: bytes) -> ChatError:
        status, text = response.status_code, reply[: 4 * _SHOWN_CHARS].decode(errors="replace")
        what = f"{response.url} answers {status}: {' '.join(text.split())[:_SHOWN_CHARS]}"
        if status >= 500 or status in _MAY_PASS:
            return ChatError("failed", what, _seconds(response.headers.get("Retry-After", "")))
        if status in _OF_THIS_REQUEST:
            return ChatError("refused", what)
        remedy = f"check {MODEL}={self.server.model}, {URL} and {API_KEY}"
        return ChatError("denied", f"{what}; {remedy}")


def _seconds(retry_after: str) -> float:
    """How long to wait, of what the header may say; a date is not waited for."""
    if not (retry_after.isascii() and retry_after.isdigit()):
        return 0.0
    return min(float(retry_after), _LONGEST_RETRY_AFTER_S)


@contextmanager
def _counted() -> Iterator[None]:
    try:
        yield
    except NoVerdict:
        CALLS.labels("no_verdict").inc()
        raise
    except ChatError as error:
        CALLS.labels("refused" if error.kind == "denied" else error.kind).inc()
        raise
    CALLS.labels("verdict").inc()


def _count_tokens(usage: object, model: str) -> None:
    """Count what the server says that it has counted; it may say anything, or nothing."""
    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("completion_tokens_details")
    found = {
        "prompt": counts.get("prompt_tokens"),
        "completion": counts.get("completion_tokens"),
        "reasoning": details.get("reasoning_tokens") if isinstance(details, dict) else None,
    }
    for kind, count in found.items():
        if isinstance(count, int) and 0 < count < _MOST_TOKENS:
            TOKENS.labels(kind).inc(count)
            if kind != "reasoning":  # which are among the completion's
                record_tokens(model, count)
