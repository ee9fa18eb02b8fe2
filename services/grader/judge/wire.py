"""One call to the judge's server: what is sent, how much is read, and what each failure means."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client import Counter, Gauge, Histogram
from pydantic import BaseModel, Field, ValidationError

from services.chassis.metrics import born_at_zero
from services.grader.judge.form import NoVerdict, Verdict
from services.grader.judge.identity import Identity
from services.grader.judge.question import Question, as_json
from services.grader.judge.settings import API_KEY, MODEL, URL, JudgeSettings
from services.grader.notes import note_tokens

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
log = logging.getLogger(__name__)

_MAX_REPLY_BYTES = 8 * 2**20
_CONNECT_TIMEOUT_S = 10.0
_COUNT_TIMEOUT_S = 10.0  # to count tokens takes milliseconds
_LONGEST_RETRY_AFTER_S = 30.0
_SHOWN_CHARS = 300
_SPARE_CONNECTIONS = 8  # for the self-test: it must not wait behind the calls that it is about
_REFUSES_ONE = {400, 413, 414, 415, 422, 431}  # other refusals may be of every request
_PASSES = {408, 425, 429}
_UNKNOWN_HERE = 501  # what some servers say instead of 404
# What httpx owns up to, and what comes through it of sockets, addresses, headers and task groups.
_BREAKS = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ExceptionGroup)


class CutShort(NoVerdict):
    """The model's tokens were used up before it had ended."""

    def __init__(self) -> None:
        super().__init__("it ended by 'length'")


class Refused(RuntimeError):
    """The server takes calls, but not this one; it would refuse it again."""


class Trouble(RuntimeError):
    """The call says nothing about the question. ``reason`` is a response's, if it is its own."""

    def __init__(
        self, what: str, *, reason: str = "judge_failed", may_pass: bool = True, wait_s: float = 0
    ) -> None:
        super().__init__(what)
        self.reason = reason
        self.may_pass = may_pass
        self.wait_s = wait_s  # as the server asks


class Unreachable(Trouble):
    """Nobody listens there."""


class _Message(BaseModel):
    content: Any = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


@dataclass(frozen=True)
class _Reply:
    status: int
    retry_after: str
    body: bytes

    @property
    def shown(self) -> str:
        text = self.body[: 4 * _SHOWN_CHARS].decode(errors="replace")
        return f"{self.status}: {' '.join(text.split())[:_SHOWN_CHARS]}"


@dataclass(frozen=True)
class Wire:
    """The judge's server. Every call is one attempt, with one deadline for all of it."""

    settings: JudgeSettings
    http: httpx.AsyncClient

    @classmethod
    def to(cls, settings: JudgeSettings) -> Wire:
        """With connections for all calls at once; the caller closes ``http``."""
        timeout = httpx.Timeout(None, connect=min(_CONNECT_TIMEOUT_S, settings.timeout_s))
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # so that what is read is what is counted
            "Connection": "close",
        }
        if settings.api_key:
            headers["Authorization"] = f"Bearer {settings.api_key}"
        # A call takes seconds, so its connection is its own: none is cut by a server that has
        # waited too long for the next call, and httpx compares every idle one with every other.
        limits = httpx.Limits(
            max_connections=settings.concurrency + _SPARE_CONNECTIONS, max_keepalive_connections=0
        )
        return cls(settings, httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits))

    async def complete(self, question: Question) -> Verdict:
        """Ask once.

        Raises:
            NoVerdict: if the model answered something else than a form filled in; if its tokens
                were used up, it is CutShort.
            Refused: if the server refuses this request.
            Trouble: if the server refuses all requests, fails, is late, or cannot be reached.
        """
        url = f"{self.settings.url}/chat/completions"
        with IN_FLIGHT.track_inprogress(), SECONDS.time(), _counted():
            completion = self._completion(await self._call("POST", url, question.body(self._model)))
            _count_tokens(completion.usage, self._model)
            choice = completion.choices[0]
            if choice.finish_reason == "length":
                raise CutShort
            if choice.finish_reason != "stop":
                raise NoVerdict(f"it ended by {str(choice.finish_reason)[:20]!r}")
            return question.form.read(choice.message.content)

    async def count_tokens(self, question: Question) -> int | None:
        """How many tokens the server makes of the messages; None if it does not tell.

        Whatever it answers, or not, says nothing about completions: what stands before a server may
        not know this path.

        Raises:
            Unreachable: if nobody listens.
        """
        url = f"{self.settings.url.removesuffix('/v1')}/tokenize"
        body = {"model": self._model, "messages": list(question.messages)}
        try:
            reply = await self._call("POST", url, body, _COUNT_TIMEOUT_S)
        except Unreachable:
            raise
        except Trouble:
            return None
        return _positive(_json(reply).get("count"))

    async def identity(self) -> Identity:
        """Which model answers, as the server says.

        Raises:
            Trouble: if the server is in such.
        """
        models = _json(await self._call("GET", f"{self.settings.url}/models")).get("data")
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and model.get("id") == self._model:
                return self._identity_of(model)
        return self._identity_of({})

    def _identity_of(self, model: Mapping[str, Any]) -> Identity:
        root = model.get("root")
        return Identity(
            self.settings.url,
            self._model,
            root=root if isinstance(root, str) else None,
            context_tokens=_positive(model.get("max_model_len")),
        )

    @property
    def _model(self) -> str:
        return self.settings.model

    def _completion(self, reply: _Reply) -> _Completion:
        if reply.status in _REFUSES_ONE:
            log.error("the judge refused a request", extra={"answer": reply.shown})
            raise Refused(f"{self.settings.url} answers {reply.shown}")
        if reply.status != 200:
            raise Trouble(
                f"{self.settings.url} answers {reply.shown}; check {MODEL}={self._model}, {URL} "
                f"and {API_KEY}",
                reason="judge_refused",
                may_pass=False,
            )
        try:
            return _Completion.model_validate_json(reply.body)
        except ValidationError as error:
            raise Trouble(f"{self.settings.url} sends no chat completion; check {URL}") from error

    async def _call(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        longest_s: float = math.inf,
    ) -> _Reply:
        timeout_s = min(longest_s, self.settings.timeout_s)
        content = None if body is None else as_json(body)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._exchange(method, url, content)
        except (TimeoutError, httpx.TimeoutException) as error:
            late = f"{url} did not answer within {timeout_s:g} s"
            raise Trouble(late, reason="judge_timeout") from error
        except httpx.ConnectError as error:
            raise Unreachable(
                f"{url} cannot be reached ({error}); start it or correct {URL}"
            ) from error
        except _BREAKS as error:
            raise Trouble(f"{url} broke off: {error!r}") from error
        if reply.status in _PASSES or (reply.status >= 500 and reply.status != _UNKNOWN_HERE):
            raise Trouble(f"{url} answers {reply.shown}", wait_s=_seconds(reply.retry_after))
        return reply

    async def _exchange(self, method: str, url: str, content: bytes | None) -> _Reply:
        async with self.http.stream(method, url, content=content) as response:
            received = bytearray()
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > _MAX_REPLY_BYTES:
                    raise Trouble(f"{url} sends more than {_MAX_REPLY_BYTES} bytes")
            retry_after = response.headers.get("Retry-After", "")
            return _Reply(response.status_code, retry_after, bytes(received))


@contextmanager
def _counted() -> Iterator[None]:
    try:
        yield
    except (NoVerdict, Refused, Trouble) as error:
        CALLS.labels(_outcome(error)).inc()
        raise
    CALLS.labels("verdict").inc()


def _outcome(error: NoVerdict | Refused | Trouble) -> str:
    if isinstance(error, Trouble):
        return error.reason.removeprefix("judge_")
    return "refused" if isinstance(error, Refused) else "no_verdict"


def _json(reply: _Reply) -> Mapping[str, Any]:
    """The object of a reply that may be anything; empty where it is none."""
    if reply.status != 200:
        return {}
    try:
        return _Object.model_validate_json(reply.body).model_extra or {}
    except ValidationError:
        return {}


def _positive(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if value > 0 else None


class _Object(BaseModel, extra="allow"):
    pass


def _count_tokens(usage: object, model: str) -> None:
    counts = usage if isinstance(usage, Mapping) else {}
    details = counts.get("completion_tokens_details")
    reasoning = details.get("reasoning_tokens") if isinstance(details, Mapping) else None
    for kind, count in (
        ("prompt", counts.get("prompt_tokens")),
        ("completion", counts.get("completion_tokens")),
        ("reasoning", reasoning),
    ):
        if isinstance(count, int) and count > 0:
            TOKENS.labels(kind).inc(count)
            if kind != "reasoning":  # which are among the completion's
                note_tokens(model, count)


def _seconds(retry_after: str) -> float:
    """How long to wait, of what the header may say; a date is not waited for."""
    if not (retry_after.isascii() and retry_after.isdigit()):
        return 0.0
    return min(float(retry_after), _LONGEST_RETRY_AFTER_S)
