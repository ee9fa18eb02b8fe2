"""Where the judge's model is served: the ``WEIR_JUDGE_*`` variables of the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from protocol.rewards import JUDGE
from pydantic import BaseModel, TypeAdapter, ValidationError

from services.chassis.deployment import DeploymentError, variable

URL, MODEL, API_KEY = "WEIR_JUDGE_URL", "WEIR_JUDGE_MODEL", "WEIR_JUDGE_API_KEY"
CONTEXT, OTHERS = "WEIR_JUDGE_CONTEXT", "WEIR_JUDGES"
_BASE = "http://127.0.0.1:8000/v1"
_EXAMPLE = f'{{"strict": {{"url": "{_BASE}", "model": "gpt-oss-120b"}}}}'


@dataclass(frozen=True)
class JudgeSettings:
    """The server, the model on it, and how it is called. Times are in seconds."""

    url: str
    model: str
    api_key: str | None = None
    concurrency: int = 128  # calls in flight at once, of this process
    timeout_s: float = 120.0  # of one attempt, from the first byte sent to the last one read
    context_tokens: int | None = None  # None: what the server says
    cache_bytes: int = 64 * 2**20  # of remembered verdicts, in all; 0: none
    pauses_s: tuple[float, ...] = (1.0, 4.0)  # before the second attempt, and so on
    retest_s: tuple[float, float] = (1.0, 30.0)  # the first and the longest pause of a judge down

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> JudgeSettings | None:
        """Read the variables; None if there is no judge, which is if ``WEIR_JUDGE_URL`` is unset.

        Raises:
            DeploymentError: naming the variable that is missing or wrong, and the remedy.
        """
        given = {name: value for name, value in environment.items() if value}
        if URL not in given:
            return None
        if MODEL not in given:
            raise DeploymentError(f"{MODEL} is not set, but {URL} is; name the model it serves")
        return cls(
            url=_url(given[URL]),
            model=given[MODEL],
            api_key=_key(variable(environment, API_KEY)),
            concurrency=_whole(given, "WEIR_JUDGE_CONCURRENCY", 128),
            timeout_s=_seconds(given, "WEIR_JUDGE_TIMEOUT_S", 120),
            context_tokens=_whole(given, CONTEXT, 32768) if CONTEXT in given else None,
            cache_bytes=_whole(given, "WEIR_JUDGE_CACHE_BYTES", 64 * 2**20, least=0),
        )


class _Other(BaseModel, extra="forbid", hide_input_in_errors=True):
    url: str
    model: str = ""
    api_key: str = ""
    context: str = ""


def other_judges(environment: Mapping[str, str] = os.environ) -> dict[str, JudgeSettings]:
    """The judges of ``WEIR_JUDGES`` by their names; all else is as for that of ``WEIR_JUDGE_URL``.

    Raises:
        DeploymentError: naming what is wrong in it.
    """
    text = variable(environment, OTHERS)
    try:
        given = TypeAdapter(dict[str, _Other]).validate_json(text or "{}")
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        place = ".".join(map(str, (OTHERS, *problem["loc"])))
        raise DeploymentError(f"{place}: {problem['msg']}; give JSON such as {_EXAMPLE}") from None
    if {JUDGE, ""} & given.keys():
        raise DeploymentError(f"{OTHERS}: {JUDGE!r} is the one of {URL}; give each another name")
    return {name: _as_another(name, other, environment) for name, other in given.items()}


def _as_another(name: str, other: _Other, environment: Mapping[str, str]) -> JudgeSettings:
    own = {URL: other.url, MODEL: other.model or name, API_KEY: other.api_key}
    own |= {CONTEXT: other.context, f"{API_KEY}_FILE": ""}
    try:
        settings = JudgeSettings.from_environment({**environment, **own})
    except DeploymentError as error:
        raise DeploymentError(f"{OTHERS}.{name}: {error}") from error
    if settings is None:
        raise DeploymentError(f"{OTHERS}.{name}.url: empty; give JSON such as {_EXAMPLE}")
    return settings


def _url(text: str) -> str:
    if "@" in text:
        raise DeploymentError(
            f"{URL} holds an '@', and messages would show the password: give a base such as "
            f"{_BASE}, and what the server asks for as {API_KEY}"
        )
    try:
        parts = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise DeploymentError(f"{URL}={text!r}: {error}; give a base such as {_BASE}") from error
    if not _is_base(parts):
        raise DeploymentError(f"{URL}={text!r}: give a base such as {_BASE}")
    return text.rstrip("/")


def _is_base(parts: httpx.URL) -> bool:
    """Whether paths can be appended to it and called."""
    is_place = parts.scheme in {"http", "https"} and bool(parts.host)
    is_port = parts.port is None or 0 < parts.port < 2**16
    return is_place and is_port and not (parts.query or parts.fragment)


def _key(text: str | None) -> str | None:
    if text is not None and not (text.isascii() and text.isprintable()):
        raise DeploymentError(f"{API_KEY} holds more than ASCII letters, digits and signs; fix it")
    return text


def _whole(given: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise DeploymentError(
            f"{name}={text!r}: give a whole number, at least {least}, such as {default}"
        )
    return int(text)


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise DeploymentError(f"{name}={text!r}: give seconds above 0, such as {default:g}")
    return seconds
