"""The servers of judges, from the environment variables ``WEIR_JUDGE_*``."""

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

URL = "WEIR_JUDGE_URL"
MODEL = "WEIR_JUDGE_MODEL"
API_KEY = "WEIR_JUDGE_API_KEY"
NAMED_JUDGES = "WEIR_JUDGES"
_EXAMPLE_URL = "http://127.0.0.1:8000/v1"
_EXAMPLE = '{"strict": {"url": "http://127.0.0.1:8000/v1", "model": "gpt-oss-120b"}}'


@dataclass(frozen=True)
class JudgeSettings:
    """The server of a judge, its model, and how it is called."""

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 512  # the maximum of calls in flight, of this process
    timeout_s: float = 480.0  # of one attempt: a long answer of a reasoning model
    pauses_s: tuple[float, ...] = (1.0, 4.0)  # before the second and the third attempt
    retest_s: tuple[float, float] = (1.0, 30.0)  # the first and the longest pause of a self-test
    patient: bool = True  # whether questions wait for a judge that is down


def deployed_judges(environment: Mapping[str, str] = os.environ) -> dict[str, JudgeSettings]:
    """Return the judge of ``WEIR_JUDGE_URL`` as "", and those of ``WEIR_JUDGES`` by name.

    The latter have the limits of the first.
    """
    judges = {"": _read_judge(environment)} if environment.get(URL) else {}
    for name, server in _parse_servers(read_variable(environment, NAMED_JUDGES) or "{}").items():
        variables = {URL: server.url, MODEL: server.model or name, API_KEY: server.api_key}
        try:
            judges[name] = _read_judge({**environment, **variables, f"{API_KEY}_FILE": ""})
        except DeploymentError as error:
            raise DeploymentError(f"{NAMED_JUDGES}.{name}: {error}") from error
    return judges


class _Server(BaseModel, extra="forbid", hide_input_in_errors=True):
    url: str = Field(min_length=1)
    model: str = ""
    api_key: str = ""


def _parse_servers(text: str) -> dict[str, _Server]:
    try:
        servers = TypeAdapter(dict[str, _Server]).validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        place = ".".join(map(str, (NAMED_JUDGES, *problem["loc"])))
        raise DeploymentError(f"{place}: {problem['msg']}; give JSON such as {_EXAMPLE}") from None
    if {JUDGE, ""} & servers.keys():
        raise DeploymentError(
            f"{NAMED_JUDGES}: {JUDGE!r} is the judge of {URL}; choose another name"
        )
    return servers


def _read_judge(environment: Mapping[str, str]) -> JudgeSettings:
    read = Reader(environment)
    model = environment.get(MODEL)
    if not model:
        raise DeploymentError(f"{MODEL} is not set, but {URL} is; name the model it serves")
    key = read_variable(environment, API_KEY)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise DeploymentError(f"{API_KEY} has characters that are not ASCII; fix it")
    return JudgeSettings(
        _parse_url(environment[URL]),
        model,
        key,
        concurrency=read("WEIR_JUDGE_CONCURRENCY", parse_count, str(JudgeSettings.concurrency)),
        timeout_s=read("WEIR_JUDGE_TIMEOUT_S", parse_positive, str(JudgeSettings.timeout_s)),
    )


def _parse_url(text: str) -> str:
    remedy = f"give a base such as {_EXAMPLE_URL}"
    if "@" in text:
        raise DeploymentError(
            f"{URL} contains '@', and messages would show the password: {remedy}, and the "
            f"server's key as {API_KEY}"
        )
    try:
        parts = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise DeploymentError(f"{URL}={text!r}: {error}; {remedy}") from error
    has_host = parts.scheme in {"http", "https"} and bool(parts.host)
    has_valid_port = parts.port is None or 0 < parts.port < 2**16
    if not has_host or not has_valid_port or parts.query or parts.fragment:
        raise DeploymentError(f"{URL}={text!r}: {remedy}")
    return text.rstrip("/")
