"""The bodies of requests for responses, and the calls that they come to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from protocol.calls import Call, CallSampling, Served
from pydantic import Field, model_validator

from services.gateway.errors import from_lines, wrong
from services.gateway.openai.body import Body, Part, unusable

_MOST_CALLS = 128  # of a request
_MOST_BYTES = 2**23  # each response has its prompt in Redis
_OWN = "the policy's own distribution is sampled; remove it"
_TEMPLATE = "set model.chat_template_options in the recipe of the job"
# Fields of other servers: the values that change nothing, and what to do instead of others.
_INSTEAD: Mapping[str, tuple[tuple[object, ...], str]] = {
    "response_format": (({"type": "text"},), "ask for the format in a message, and parse the text"),
    "tool_choice": (("auto",), "leave it out: the model chooses, and without tools it calls none"),
    "functions": ((), "use tools"),
    "function_call": ((), "use tools"),
    "frequency_penalty": ((0,), _OWN),
    "presence_penalty": ((0,), _OWN),
    "repetition_penalty": ((1,), _OWN),
    "logit_bias": (({},), _OWN),
    "best_of": ((1,), "use n"),
    "echo": ((False,), "return_token_ids gives the prompt's tokens"),
    "suffix": (("",), "put it into the prompt"),
    "prompt_logprobs": ((), "only sampled tokens have log-probs"),
    "reasoning_effort": ((), _TEMPLATE),
    "chat_template_kwargs": (({},), _TEMPLATE),
    "chat_template": ((), _TEMPLATE),
    "modalities": ((["text"],), "only text is sampled"),
    "include_stop_str_in_output": ((False,), "token_ids holds the stop text"),
    "priority": ((0,), "the oldest call is answered first; remove it"),
    "features": ((), "only text is read"),
    "content_parts": ((), "only text is read"),
}
# What clients send along that changes no response here.
_NOTES = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "verbosity", "parallel_tool_calls", "cache_salt", "request_id"),
    *("skip_special_tokens", "spaces_between_special_tokens", "detokenize"),
}
_ROLES = {"system", "developer", "user", "assistant", "tool"}
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
StopText = Annotated[str, Field(min_length=1)]


class Fields(Part):
    """A part of a body in which a null is the same as nothing, and notes are passed over."""

    PLACE: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _without_others(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        others = [name for name in given if name in _INSTEAD and name not in cls.model_fields]
        unlike = [name for name in others if given[name] not in _INSTEAD[name][0]]
        if lines := [f"{cls.PLACE}{name}: not supported; {_INSTEAD[name][1]}" for name in unlike]:
            raise from_lines(lines, code="not_supported")
        return {name: given[name] for name in given if name not in {*others, *_NOTES}}


class Sampled(Fields):
    """How responses are sampled."""

    n: int = Field(default=1, ge=1, le=_MOST_CALLS)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    stop: StopText | list[StopText] = Field(default_factory=list[str])
    stop_token_ids: list[TokenId] = Field(default_factory=list[int])
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    seed: int | None = None

    @property
    def num_likely(self) -> int | None:
        """How many of the most likely tokens are told at each place; None: no log-probs at all."""
        raise NotImplementedError

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def of_response(self, index: int) -> CallSampling:
        return CallSampling(
            max_tokens=self.most_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            seed=None if self.seed is None else (self.seed + index) % 2**63,
            top_logprobs=self.num_likely or 0,
        )


class StreamOptions(Part):
    include_usage: bool = False
    include_obfuscation: bool = False


class Request(Fields, Body):
    """A request for responses."""

    MOST_VALUES: ClassVar[int] = 200_000  # tokens among them
    PREFIX: ClassVar[str]  # of the answer's id

    model: str = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False

    @property
    def sampled(self) -> Sampled:
        raise NotImplementedError

    def prompts(self) -> list[dict[str, Any]]:
        """The part of each call that holds its prompt."""
        raise NotImplementedError

    def calls(self, answer_id: str, gateway: str, served: Served) -> list[Call]:
        """One for each response, those to the first prompt first."""
        prompts, num = self.prompts(), self.sampled.n
        if len(prompts) * num > _MOST_CALLS or num * len(self.model_dump_json()) > _MOST_BYTES:
            what = f"over {_MOST_CALLS} responses, or {_MOST_BYTES >> 20} MiB of prompts for them"
            raise wrong("n", f"asks for {what}; send several requests")
        return [
            Call(
                id=f"{answer_id}-{place * num + index}",
                gateway=gateway,
                served=served,
                sampling=self.sampled.of_response(index),
                streams=self.stream,
                **prompt,
            )
            for place, prompt in enumerate(prompts)
            for index in range(num)
        ]


class ChatRequest(Sampled, Request):
    """The body of ``POST /v1/chat/completions``."""

    PREFIX: ClassVar[str] = "chatcmpl"

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)

    @property
    def sampled(self) -> Sampled:
        return self

    @property
    def num_likely(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "needs logprobs = true")
        return self.top_logprobs if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def prompts(self) -> list[dict[str, Any]]:
        turns = (_turn(turn, f"messages.{place}") for place, turn in enumerate(self.messages))
        return [{"messages": tuple(turns), "tools": tuple(self.tools)}]


class CompletionRequest(Sampled, Request):
    """The body of ``POST /v1/completions``."""

    PREFIX: ClassVar[str] = "cmpl"

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: int | None = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def sampled(self) -> Sampled:
        return self

    @property
    def num_likely(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[dict[str, Any]]:
        is_one = isinstance(self.prompt, str) or all(type(part) is int for part in self.prompt)
        prompts: list[Any] = [self.prompt] if is_one else [*self.prompt]
        if not all(prompts):
            raise wrong("prompt", "is empty; give at least one token")
        return [
            {"text": each} if isinstance(each, str) else {"token_ids": tuple(each)}
            for each in prompts
        ]


class GenerateSampling(Sampled):
    """vLLM's sampling parameters."""

    PLACE: ClassVar[str] = "sampling_params."

    logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def num_likely(self) -> int | None:
        return self.logprobs


class GenerateRequest(Request):
    """The body of ``POST /inference/v1/generate``: vLLM's, from tokens to tokens."""

    PREFIX: ClassVar[str] = "gen"

    token_ids: list[TokenId] = Field(min_length=1)
    sampling_params: GenerateSampling = GenerateSampling()

    @property
    def sampled(self) -> Sampled:
        return self.sampling_params

    def prompts(self) -> list[dict[str, Any]]:
        return [{"token_ids": tuple(self.token_ids)}]


def _turn(turn: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A message as chat templates know it: its content is one text, arguments are an object."""
    if turn.get("role") not in _ROLES:
        raise wrong(f"{place}.role", f"must be one of {', '.join(sorted(_ROLES))}")
    content = turn.get("content")
    if isinstance(content, list):
        content = "".join(_texts(content, f"{place}.content"))
    if not isinstance(content, str | None) or (content is None and not turn.get("tool_calls")):
        raise wrong(f"{place}.content", "must be a text, or a list of parts of the type text")
    others = {name: value for name, value in turn.items() if value is not None}
    if "tool_calls" in others:
        others["tool_calls"] = [_tool_call(each, place) for each in others["tool_calls"]]
    return others | {"content": content or ""}


def _texts(parts: list[Any], place: str) -> Iterator[str]:
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise wrong(place, "only text is read; give parts of the type text")
        yield text


def _tool_call(call: Any, place: str) -> Any:
    try:
        function = call["function"]
        arguments = function["arguments"]
        told = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        what = "each needs function.name, and function.arguments as a JSON text"
        raise wrong(f"{place}.tool_calls", what) from error
    if lines := unusable(told):
        raise wrong(f"{place}.tool_calls", lines[0])
    return {**call, "function": {**function, "arguments": told}}
