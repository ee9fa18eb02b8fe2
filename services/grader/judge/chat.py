"""Chat completions of an OpenAI-compatible server: one attempt each, read within limits."""

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
from services.grader.judge.question import CutShort, NoVerdict, Question, Verdict, as_json
from services.grader.judge.settings import API_KEY, MODEL, URL, JudgeSettings
from services.grader.trial_record import record_tokens

CALLS = start_at_zero(
    Counter("weir_judge_calls_total", "Calls to the judge's server by how they ended", ["outcome"]),
    *("verdict", "no_verdict", "verdict_cut", "over_context", "refused", "failed", "timeout"),
)
TOKENS = start_at_zero(
    Counter("weir_judge_tokens_total", "Tokens that the judge's server has counted", ["kind"]),
    *("prompt", "completion", "reasoning"),
)
SECONDS = Histogram(
    "weir_judge_call_seconds",
    "Time of one call to the judge's server",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320),
)
IN_FLIGHT = Gauge("weir_judge_in_flight", "Calls that the judge's server is working on")

FAILED, TIMEOUT, REFUSED = "judge_failed", "judge_timeout", "judge_refused"
OVER_CONTEXT = "over_judge_context"
_MAX_REPLY_BYTES = 8 * 2**20
_CONNECT_TIMEOUT_S = 10.0
_SHOWN_CHARS = 300
_MOST_TOKENS = 2**53  # of which a counter still counts one
_OF_THIS_REQUEST = {400, 413, 414, 415, 422, 431}  # other refusals may be of every request
_MAY_PASS = {408, 425, 429}
_TOO_LONG = re.compile(r"context.(length|size|window)|maximum model length", re.IGNORECASE)
_UNREACHABLE = httpx.ConnectError, httpx.ConnectTimeout
_NOT_AS_DESCRIBED = ValueError, LookupError, TypeError, AttributeError, RecursionError  # of JSON


class ChatError(RuntimeError):
    """There is no completion; the text says why. ``reason`` is what a response is ungradable for.

    ``is_of_request``: the server would refuse this request again, and perhaps no other.
    """

    def __init__(self, reason: str, text: str, *, is_of_request: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.may_pass = reason in {FAILED, TIMEOUT}
        self.is_of_request = is_of_request


class Chat:
    def __init__(self, server: JudgeSettings) -> None:
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
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.aclose()

    async def ask(self, question: Question) -> Verdict:
        """Ask once; `NoVerdict` if the form is not filled in, `ChatError` without an answer."""
        with IN_FLIGHT.track_inprogress(), SECONDS.time(), _counted():
            reply = await self._reply({"model": self.server.model, **question.request})
            try:
                completion = json.loads(reply)
                choice = completion["choices"][0]
                content, ended = choice["message"].get("content"), choice.get("finish_reason")
            except _NOT_AS_DESCRIBED as error:
                what = f"{self.server.url} sends no chat completion; check {URL}"
                raise ChatError(FAILED, what) from error
            written = _count_tokens(completion.get("usage"), self.server.model)
            if ended == "length" and 0 < written < question.max_tokens:
                raise ChatError(OVER_CONTEXT, f"it left {written} tokens", is_of_request=True)
            if ended != "stop":
                failure = CutShort if ended == "length" else NoVerdict
                raise failure(f"it ended by {str(ended)[:20]!r}")
            return question.form.read(content)

    async def _reply(self, request: object) -> bytes:
        url = self.server.url + "/chat/completions"
        try:
            async with (
                asyncio.timeout(self.server.timeout_s),
                self._http.stream("POST", url, content=as_json(request)) as response,
            ):
                reply = await _read(response)
        except TimeoutError as error:
            late = f"{url} did not answer within {self.server.timeout_s:g} s"
            raise ChatError(TIMEOUT, late) from error
        except _UNREACHABLE as error:
            what = f"{url} cannot be reached ({error!r}); start it or correct {URL}"
            raise ChatError(FAILED, what) from error
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise ChatError(FAILED, f"{url} broke off: {error!r}") from error
        if response.status_code != 200:
            raise self._refusal(response, reply)
        return reply

    def _refusal(self, response: httpx.Response, reply: bytes) -> ChatError:
        status, text = response.status_code, reply[: 4 * _SHOWN_CHARS].decode(errors="replace")
        what = f"{response.url} answers {status}: {' '.join(text.split())[:_SHOWN_CHARS]}"
        if status >= 500 or status in _MAY_PASS:
            return ChatError(FAILED, what)
        if status in _OF_THIS_REQUEST:
            reason = OVER_CONTEXT if _TOO_LONG.search(text) else REFUSED
            return ChatError(reason, what, is_of_request=True)
        remedy = f"check {MODEL}={self.server.model}, {URL} and {API_KEY}"
        return ChatError(REFUSED, f"{what}; {remedy}")


async def _read(response: httpx.Response) -> bytes:
    received = bytearray()
    async for chunk in response.aiter_raw():
        received += chunk
        if len(received) > _MAX_REPLY_BYTES:
            raise ChatError(FAILED, f"{response.url} sends more than {_MAX_REPLY_BYTES} bytes")
    return bytes(received)


@contextmanager
def _counted() -> Iterator[None]:
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
    """Count what the server says that it has counted, which may be anything; of the completion."""
    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("completion_tokens_details")
    found = {
        "prompt": counts.get("prompt_tokens"),
        "completion": counts.get("completion_tokens"),
        "reasoning": details.get("reasoning_tokens") if isinstance(details, dict) else None,
    }
    told = {kind: n for kind, n in found.items() if isinstance(n, int) and 0 < n < _MOST_TOKENS}
    for kind, count in told.items():
        TOKENS.labels(kind).inc(count)
        if kind != "reasoning":  # which are among the completion's
            record_tokens(model, count)
    return told.get("completion", 0)
