"""Chat completions of an OpenAI-compatible server: one attempt a call, with limits."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import httpx
from prometheus_client import Counter, Gauge, Histogram

from services.chassis.metrics import start_at_zero
from services.grader.judge.question import CutShort, NoVerdict, Question, Verdict, encode_json
from services.grader.judge.settings import API_KEY, MODEL, URL, JudgeSettings
from services.grader.timeouts import CONNECT_TIMEOUT_S
from services.grader.trial_record import record_tokens

CALLS = start_at_zero(
    Counter("weir_judge_calls_total", "Calls to the judge's server by how they ended", ["outcome"]),
    *("verdict", "no_verdict", "verdict_cut", "over_context", "refused", "failed", "timeout"),
)
TOKENS = start_at_zero(
    Counter("weir_judge_tokens_total", "Tokens that the judge's server reports", ["kind"]),
    *("prompt", "completion", "reasoning"),
)
SECONDS = Histogram(
    "weir_judge_call_seconds",
    "Time of one call to the judge's server",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320),
)
IN_FLIGHT = Gauge("weir_judge_in_flight", "Calls that the judge's server is working on")

FAILED = "judge_failed"
TIMEOUT = "judge_timeout"
REFUSED = "judge_refused"
OVER_CONTEXT = "over_judge_context"
_MAX_REPLY_BYTES = 8 * 2**20
_MAX_ERROR_CHARS = 300
_MAX_TOKENS = 2**53  # floats count up to here
# Other refusals may apply to every request.
_STATUSES_OF_REQUEST = {400, 413, 414, 415, 422, 431}
_TEMPORARY_STATUSES = {408, 425, 429}
_TOO_LONG = re.compile(r"context.(length|size|window)|maximum model length", re.IGNORECASE)
_UNREACHABLE = httpx.ConnectError, httpx.ConnectTimeout
# A reply of another form raises one of these.
_MALFORMED = ValueError, LookupError, TypeError, AttributeError, RecursionError


class ChatError(RuntimeError):
    """There is no completion; the text says why. ``reason`` is that of the ungradable score.

    ``is_of_request``: the server would refuse this request again, but perhaps no other.
    """

    def __init__(self, reason: str, text: str, *, is_of_request: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.is_temporary = reason in {FAILED, TIMEOUT}
        self.is_of_request = is_of_request


class Chat:
    def __init__(self, server: JudgeSettings) -> None:
        self.server = server
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # the limit of bytes is for the decoded reply
            "Connection": "close",
        }
        if server.api_key:
            headers["Authorization"] = f"Bearer {server.api_key}"
        # A call takes seconds, so each has a new connection: a server closes idle ones at any time,
        # and httpx's time is quadratic in their number.
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.aclose()

    async def ask(self, question: Question) -> Verdict:
        """Ask once; raise `NoVerdict` if the form is not filled in, `ChatError` without a reply."""
        with IN_FLIGHT.track_inprogress(), SECONDS.time(), _count_call():
            reply = await self._reply({"model": self.server.model, **question.request})
            try:
                completion = json.loads(reply)
                choice = completion["choices"][0]
                content = choice["message"].get("content")
                finish_reason = choice.get("finish_reason")
            except _MALFORMED as error:
                problem = f"{self.server.url} sends no chat completion; check {URL}"
                raise ChatError(FAILED, problem) from error
            num_tokens = _count_tokens(completion.get("usage"), self.server.model)
            if finish_reason == "length" and 0 < num_tokens < question.max_tokens:
                raise ChatError(OVER_CONTEXT, f"it left {num_tokens} tokens", is_of_request=True)
            if finish_reason == "length":
                raise CutShort("it ended by 'length'")
            if finish_reason != "stop":
                raise NoVerdict(f"it ended by {str(finish_reason)[:20]!r}")
            return question.form.read(content)

    async def _reply(self, request: object) -> bytes:
        url = self.server.url + "/chat/completions"
        try:
            async with (
                asyncio.timeout(self.server.timeout_s),
                self._http.stream("POST", url, content=encode_json(request)) as response,
            ):
                reply = await _read(response)
        except TimeoutError as error:
            problem = f"{url} did not answer within {self.server.timeout_s:g} s"
            raise ChatError(TIMEOUT, problem) from error
        except _UNREACHABLE as error:
            problem = f"{url} cannot be reached ({error!r}); start it or correct {URL}"
            raise ChatError(FAILED, problem) from error
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise ChatError(FAILED, f"{url} broke off: {error!r}") from error
        if response.status_code != 200:
            raise self._refusal(response, reply)
        return reply

    def _refusal(self, response: httpx.Response, reply: bytes) -> ChatError:
        status = response.status_code
        text = reply[: 4 * _MAX_ERROR_CHARS].decode(errors="replace")
        problem = f"{response.url} answers {status}: {' '.join(text.split())[:_MAX_ERROR_CHARS]}"
        if status >= 500 or status in _TEMPORARY_STATUSES:
            return ChatError(FAILED, problem)
        if status in _STATUSES_OF_REQUEST:
            reason = OVER_CONTEXT if _TOO_LONG.search(text) else REFUSED
            return ChatError(reason, problem, is_of_request=True)
        remedy = f"check {MODEL}={self.server.model}, {URL} and {API_KEY}"
        return ChatError(REFUSED, f"{problem}; {remedy}")


async def _read(response: httpx.Response) -> bytes:
    received = bytearray()
    async for chunk in response.aiter_raw():
        received += chunk
        if len(received) > _MAX_REPLY_BYTES:
            raise ChatError(FAILED, f"{response.url} sends more than {_MAX_REPLY_BYTES} bytes")
    return bytes(received)


@contextmanager
def _count_call() -> Iterator[None]:
    try:
        yield
    except NoVerdict as failure:
        CALLS.labels(failure.reason).inc()
        raise
    except ChatError as error:
        CALLS.labels(error.reason.replace("judge_", "")).inc()
        raise
    CALLS.labels("verdict").inc()


def _count_tokens(usage: object, model: str) -> int:
    """Count the tokens that a server reports, in any form; return those of the completion."""
    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("completion_tokens_details")
    reported = {
        "prompt": counts.get("prompt_tokens"),
        "completion": counts.get("completion_tokens"),
        "reasoning": details.get("reasoning_tokens") if isinstance(details, dict) else None,
    }
    valid: dict[str, int] = {}
    for kind, count in reported.items():
        if isinstance(count, int) and 0 < count < _MAX_TOKENS:
            valid[kind] = count
            TOKENS.labels(kind).inc(count)
            if kind != "reasoning":  # the completion includes it
                record_tokens(model, count)
    return valid.get("completion", 0)
