"""A model that proposes forms for answers that no rule covers, over an OpenAI-compatible endpoint.

Nothing that it writes reaches a task: only the form, whose parts are examined and printed anew.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

URL, MODEL, API_KEY = "WEIR_REWRITER_URL", "WEIR_REWRITER_MODEL", "WEIR_REWRITER_API_KEY"
_BASE = "http://127.0.0.1:8000/v1"
_REFUSES_ALL = {401, 403, 404}  # other refusals are of one request, such as one that is too long
_RETRY_TEMPERATURE = 0.7
_MAX_REPLY_CHARS = 50_000
_OBJECT = re.compile(r"\{[^{}]*\{[^{}]*\}[^{}]*\}")
_INSTRUCTIONS = """\
You turn the answer of a problem into named integers, so that the problem can ask for one integer.
1. Find the form of the answer, as an expression of integers named by single small letters.
2. Give the integers. All are nonzero. Integers below a root are above 1 and reduced as far as
   possible, denominators are positive, fractions are in lowest terms. No other integers may give
   the same number.
3. Say what to ask for: an expression of the same letters, usually their sum.
Use only letters, + - * / ^ ( ), sqrt( ) and pi; write every product with *; roots other than
square roots are powers such as m^(1/3). Integers stand in exponents alone; name all others by
letters, without a letter to spare. Think briefly, then end with one JSON object.
Examples. \\frac{11-2\\sqrt{6}}{5} gives {"form": "(a+b*sqrt(c))/d",
"values": {"a": 11, "b": -2, "c": 6, "d": 5}, "ask": "a+b+c+d", "answer": 20}
3\\sqrt[3]{4} gives {"form": "k*m^(1/3)", "values": {"k": 3, "m": 4}, "ask": "k+m", "answer": 7}"""


class RewriterError(RuntimeError):
    """The endpoint cannot be used at all; the text names the variable to look at."""


class NoProposal(ValueError):
    """The model gave nothing usable for one task, this time; the text says why."""


class NoReply(ValueError):
    """The endpoint answers nothing for one task, whatever is tried; the text says why."""


class _PassingError(ValueError):
    """A failure that may be over soon."""


class _UnreachableError(_PassingError):
    """Nobody answers; if that stays so, there is no use in asking for other tasks."""


_Letter = Annotated[str, Field(pattern="^[a-z]$")]
_Integer = Annotated[int, Field(ge=-(10**12), le=10**12)]


class Proposal(BaseModel):
    """What a model answers: ``form`` with ``values`` is the old answer, ``ask`` is the new one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    form: str = Field(min_length=1, max_length=200)
    values: dict[_Letter, _Integer] = Field(min_length=1, max_length=6)
    ask: str = Field(min_length=1, max_length=100)
    answer: int


@dataclass
class Rewriter:
    """Where the model is. ``url`` is a base such as ``http://host:8000/v1``; times in seconds.

    ``pauses_s`` are those before a request is sent again that failed in passing. ``was_reached``
    says whether the endpoint has ever taken a request: until then a failure is one of settings.
    """

    url: str
    model: str
    api_key: str | None = None
    timeout_s: float = 120.0
    pauses_s: tuple[float, ...] = (1.0, 4.0, 16.0)
    was_reached: bool = field(default=False, init=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Rewriter | None:
        """Read the ``WEIR_REWRITER_*`` variables; None if neither URL nor model is set.

        Raises:
            RewriterError: if only one of them is set, or one cannot be sent.
        """
        url, model, key = (environment.get(name, "") for name in (URL, MODEL, API_KEY))
        if not url and not model:
            return None
        if not (url and model):
            missing, given = (MODEL, URL) if url else (URL, MODEL)
            raise RewriterError(f"{missing} is not set, but {given} is; set both or neither")
        _examine_url(url)
        if not (key.isascii() and key.isprintable()):
            raise RewriterError(f"{API_KEY} holds more than ASCII letters, digits and signs")
        return cls(url.rstrip("/"), model, key or None)

    async def propose(
        self, http: httpx.AsyncClient, problem: str, answer: str, attempt: int = 0
    ) -> Proposal:
        """Ask for a form: the likeliest reply, or from the second attempt on a random one.

        Raises:
            NoProposal: if the reply is of no use, or late; another attempt may help.
            NoReply: if the endpoint refuses this request, or fails again and again.
            RewriterError: if the endpoint refuses any request, or cannot be reached.
        """
        sampling = {"temperature": _RETRY_TEMPERATURE if attempt else 0, "seed": attempt}
        body = {"model": self.model, "messages": _messages(problem, answer), **sampling}
        failures: list[_PassingError] = []
        for pause_s in (0.0, *self.pauses_s):
            await asyncio.sleep(pause_s)
            try:
                return _read(await self._post(http, body))
            except _PassingError as error:
                failures.append(error)
        if all(isinstance(failure, _UnreachableError) for failure in failures):
            raise RewriterError(f"{failures[-1]} any more; start it again")
        raise NoReply(f"{failures[-1]}, {len(failures)} times")

    async def _post(self, http: httpx.AsyncClient, body: Mapping[str, Any]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            reply = await http.post(
                f"{self.url}/chat/completions", json=body, headers=headers, timeout=self.timeout_s
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            where = f"{URL}={self.url} cannot be reached ({error!r})"
            if self.was_reached:
                raise _UnreachableError(where) from error
            raise RewriterError(f"{where}; start it or correct {URL}") from error
        except httpx.TimeoutException as error:
            raise NoProposal(f"the model did not answer within {self.timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise _PassingError(f"the model's endpoint failed: {error!r}") from error
        if reply.status_code in _REFUSES_ALL:
            raise RewriterError(
                f"{URL}={self.url} refuses model {self.model!r} with {_shown(reply)}; "
                f"check {URL}, {MODEL} and {API_KEY}"
            )
        self.was_reached = True
        return reply


def _examine_url(url: str) -> None:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise RewriterError(f"{URL}={url!r}: {error}; give a base such as {_BASE}") from error
    if parts.scheme not in {"http", "https"} or not parts.host:
        raise RewriterError(f"{URL}={url!r}: give a base such as {_BASE}")


def _messages(problem: str, answer: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": _INSTRUCTIONS},
        {"role": "user", "content": f"Problem:\n{problem}\n\nAnswer:\n{answer}"},
    ]


def _shown(reply: httpx.Response) -> str:
    return f"{reply.status_code}: {' '.join(reply.text[:500].split())}"


def _read(reply: httpx.Response) -> Proposal:
    if reply.is_server_error or reply.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise _PassingError(f"the model's endpoint answered {_shown(reply)}")
    if not reply.is_success:
        raise NoReply(f"the model's endpoint answered {_shown(reply)}")
    try:
        content = reply.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise NoProposal("the model's endpoint sent no chat completion") from error
    return read_proposal(content)


def read_proposal(content: object) -> Proposal:
    """The last JSON object of a reply.

    Raises:
        NoProposal: if there is none, or it is no `Proposal`.
    """
    if not isinstance(content, str) or len(content) > _MAX_REPLY_CHARS:
        raise NoProposal("the model's reply holds no text, or too much")
    objects = _OBJECT.findall(content.rpartition("</think>")[2])
    if not objects:
        raise NoProposal("the model's reply holds no JSON object")
    try:
        return Proposal.model_validate_json(objects[-1])
    except ValidationError as error:
        fields = sorted({".".join(map(str, problem["loc"])) for problem in error.errors()})
        raise NoProposal(f"the model's reply is wrong in: {', '.join(fields) or 'JSON'}") from error
