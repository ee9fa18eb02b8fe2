"""Where the judge's model is served: the ``WEIR_JUDGE_*`` variables of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
from protocol.rewards import JUDGE
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from services.chassis.deployment import (
    DeploymentError,
    Reader,
    parse_count,
    parse_positive,
    read_variable,
)

URL, MODEL, API_KEY = "WEIR_JUDGE_URL", "WEIR_JUDGE_MODEL", "WEIR_JUDGE_API_KEY"
OTHERS = "WEIR_JUDGES"
_EXAMPLE_URL = "http://127.0.0.1:8000/v1"
_EXAMPLE = '{"strict": {"url": "http://127.0.0.1:8000/v1", "model": "gpt-oss-120b"}}'


@dataclass(frozen=True)
class JudgeSettings:
    """The server, the model on it, and how it is called. Times are in seconds."""

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 512  # calls in flight at once, of this process, at most
    timeout_s: float = 480.0  # of one attempt, from the first byte sent to the last one read
    pauses_s: tuple[float, ...] = (1.0, 4.0)  # before the second attempt, and so on
    retest_s: tuple[float, float] = (1.0, 30.0)  # the first and the longest pause of a judge down
    patient: bool = True  # whether questions wait for a judge that is down


def deployed_judges(environment: Mapping[str, str] = os.environ) -> dict[str, JudgeSettings]:
    """The judge of ``WEIR_JUDGE_URL``, under "", and those of ``WEIR_JUDGES`` by their names.

    What is not given for one of these is as for the first.
    """
    found = {"": _first(environment)} if environment.get(URL) else {}
    for name, given in _others(read_variable(environment, OTHERS) or "{}").items():
        own = {URL: given.url, MODEL: given.model or name, API_KEY: given.api_key}
        try:
            found[name] = _first({**environment, **own, f"{API_KEY}_FILE": ""})
        except DeploymentError as error:
            raise DeploymentError(f"{OTHERS}.{name}: {error}") from error
    return found


class _Other(BaseModel, extra="forbid", hide_input_in_errors=True):
    url: str = Field(min_length=1)
    model: str = ""
    api_key: str = ""


def _others(text: str) -> dict[str, _Other]:
    try:
        given = TypeAdapter(dict[str, _Other]).validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        place = ".".join(map(str, (OTHERS, *problem["loc"])))
        raise DeploymentError(f"{place}: {problem['msg']}; give JSON such as {_EXAMPLE}") from None
    if {JUDGE, ""} & given.keys():
        raise DeploymentError(f"{OTHERS}: {JUDGE!r} is the one of {URL}; give each another name")
    return given


def _first(environment: Mapping[str, str]) -> JudgeSettings:
    read = Reader(environment)
    if not (model := environment.get(MODEL)):
        raise DeploymentError(f"{MODEL} is not set, but {URL} is; name the model it serves")
    key = read_variable(environment, API_KEY)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise DeploymentError(f"{API_KEY} holds more than ASCII characters; fix it")
    return JudgeSettings(
        _base(environment[URL]),
        model,
        key,
        concurrency=read("WEIR_JUDGE_CONCURRENCY", parse_count, str(JudgeSettings.concurrency)),
        timeout_s=read("WEIR_JUDGE_TIMEOUT_S", parse_positive, str(JudgeSettings.timeout_s)),
    )


def _base(text: str) -> str:
    remedy = f"give a base such as {_EXAMPLE_URL}"
    if "@" in text:
        raise DeploymentError(
            f"{URL} holds an '@', and messages would show the password: {remedy}, and "
            f"what the server asks for as {API_KEY}"
        )
    try:
        parts = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise DeploymentError(f"{URL}={text!r}: {error}; {remedy}") from error
    is_place = parts.scheme in {"http", "https"} and bool(parts.host)
    is_port = parts.port is None or 0 < parts.port < 2**16
    if not (is_place and is_port) or parts.query or parts.fragment:
        raise DeploymentError(f"{URL}={text!r}: {remedy}")
    return text.rstrip("/")
