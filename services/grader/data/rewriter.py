"""A model that proposes forms for answers that no rule covers, over an OpenAI-compatible endpoint.

Nothing that it writes reaches a task: only the form, whose parts are examined and printed anew.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.chassis.deployment import DeploymentError

URL, MODEL, API_KEY = "WEIR_REWRITER_URL", "WEIR_REWRITER_MODEL", "WEIR_REWRITER_API_KEY"
_MAX_REPLY_CHARS = 50_000
_OBJECT = re.compile(r"\{[^{}]*\{[^{}]*\}[^{}]*\}")
_INSTRUCTIONS = """\
You turn the answer of a problem into named integers, so that the problem can ask for one integer.
1. Find the form of the answer, as an expression of integers named by single small letters.
2. Give the integers. All are nonzero. Integers below a root are above 1 and reduced as far as
   possible, denominators are positive, fractions are in lowest terms. No other integers may give
   the same number.
3. Say what to ask for: an expression of the same letters, usually their sum.
Use only letters, integers, + - * / ^ ( ), sqrt( ) and pi; write every product with *; roots other
than square roots are powers such as m^(1/3). Think briefly, then end with one JSON object.
Examples. \\frac{11-2\\sqrt{6}}{5} gives {"form": "(a+b*sqrt(c))/d",
"values": {"a": 11, "b": -2, "c": 6, "d": 5}, "ask": "a+b+c+d", "answer": 20}
3\\sqrt[3]{4} gives {"form": "k*m^(1/3)", "values": {"k": 3, "m": 4}, "ask": "k+m", "answer": 7}"""


class RewriterError(RuntimeError):
    """The endpoint cannot be used at all; the text names the variable to look at."""


class NoProposal(ValueError):
    """The model gave nothing usable for one task; the text says why."""


_Letter = Annotated[str, Field(pattern="^[a-z]$")]
_Integer = Annotated[int, Field(ge=-(10**12), le=10**12)]


class Proposal(BaseModel):
    """What a model answers: ``form`` with ``values`` is the old answer, ``ask`` is the new one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    form: str = Field(min_length=1, max_length=200)
    values: dict[_Letter, _Integer] = Field(min_length=1, max_length=6)
    ask: str = Field(min_length=1, max_length=100)
    answer: int


@dataclass(frozen=True)
class Rewriter:
    """Where the model is. ``url`` is a base such as ``http://host:8000/v1``; times in seconds."""

    url: str
    model: str
    api_key: str | None = None
    timeout_s: float = 120.0
    retry_pause_s: float = 1.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Rewriter | None:
        """Read the ``WEIR_REWRITER_*`` variables; None if neither URL nor model is set.

        Raises:
            DeploymentError: if only one of them is set, or the URL is no URL.
        """
        url, model = environment.get(URL, ""), environment.get(MODEL, "")
        if not url and not model:
            return None
        if not (url and model):
            missing, given = (MODEL, URL) if url else (URL, MODEL)
            raise DeploymentError(f"{missing} is not set, but {given} is; set both or neither")
        if not url.startswith(("http://", "https://")):
            raise DeploymentError(f"{URL}={url!r}: give a base such as http://127.0.0.1:8000/v1")
        return cls(url.rstrip("/"), model, environment.get(API_KEY) or None)

    async def propose(self, http: httpx.AsyncClient, problem: str, answer: str) -> Proposal:
        """Ask for a form; what fails is asked once more.

        Raises:
            NoProposal: if both tries gave no valid proposal in time.
            RewriterError: if the endpoint refuses the request or cannot be reached.
        """
        try:
            return await self._ask(http, problem, answer)
        except NoProposal:
            await asyncio.sleep(self.retry_pause_s)
            return await self._ask(http, problem, answer)

    async def _ask(self, http: httpx.AsyncClient, problem: str, answer: str) -> Proposal:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        body = {"model": self.model, "messages": _messages(problem, answer), "temperature": 0}
        try:
            reply = await http.post(
                f"{self.url}/chat/completions", json=body, headers=headers, timeout=self.timeout_s
            )
        except httpx.TimeoutException as error:
            if isinstance(error, httpx.ConnectTimeout):
                raise _unreachable(self.url, error) from error
            raise NoProposal(f"the model did not answer within {self.timeout_s:g} s") from error
        except httpx.ConnectError as error:
            raise _unreachable(self.url, error) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoProposal(f"the model's endpoint failed: {error!r}") from error
        return _read(self, reply)


def _messages(problem: str, answer: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": _INSTRUCTIONS},
        {"role": "user", "content": f"Problem:\n{problem}\n\nAnswer:\n{answer}"},
    ]


def _unreachable(url: str, error: Exception) -> RewriterError:
    return RewriterError(f"{URL}={url} cannot be reached ({error!r}); start it or correct {URL}")


def _read(rewriter: Rewriter, reply: httpx.Response) -> Proposal:
    if reply.is_client_error and reply.status_code != httpx.codes.TOO_MANY_REQUESTS:
        raise RewriterError(
            f"{URL}={rewriter.url} refuses model {rewriter.model!r} with {reply.status_code}: "
            f"{reply.text[:500]}; check {URL}, {MODEL} and {API_KEY}"
        )
    if not reply.is_success:
        raise NoProposal(f"the model's endpoint answered {reply.status_code}")
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
