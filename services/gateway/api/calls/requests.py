"""The bodies of requests for responses, and the calls that they come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from protocol.calls import Call, CallSampling, Served, Terms
from protocol.messages import as_text
from protocol.names import StopText, TemplateOptions
from pydantic import BeforeValidator, Field, model_validator

from services.gateway.api.openai.body import Body, Part, unusable
from services.gateway.errors import wrong

_MOST_CALLS = 128  # of a request
_MOST_BYTES = 2**23  # each response has its prompt in Redis
_MOST_TOKENS = 500_000  # of an answer, those of top_logprobs included
# Values that change nothing, of fields of other servers.
_IDLE: Mapping[str, object] = {
    **{"response_format": {"type": "text"}, "tool_choice": "auto", "modalities": ["text"]},
    **{"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "best_of": 1},
    **{"logit_bias": {}, "bad_words": [], "suffix": "", "priority": 0},
    **{"echo": False, "include_stop_str_in_output": False},
}
# What clients send along that changes no response here.
_NOTES = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "verbosity", "parallel_tool_calls", "cache_salt", "request_id"),
    *("skip_special_tokens", "spaces_between_special_tokens", "detokenize"),
}
_SAME = {"temperature", "top_p", "min_p", "stop", "stop_token_ids", "min_tokens", "ignore_eos"}
_MOST = {"max_tokens", "max_completion_tokens"}
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
StopTexts = Annotated[
    list[StopText],
    BeforeValidator(
        lambda given: [given] if isinstance(given, str) else given,
        json_schema_input_type=StopText | list[StopText],
    ),
]


class Fields(Part):
    """A part of a body in which a null is the same as nothing, and notes are passed over."""

    @model_validator(mode="before")
    @classmethod
    def _without_others(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        idle = _IDLE if given.get("tools") else {**_IDLE, "tool_choice": "none"}
        passed = {name for name in given if given[name] in (_IDLE.get(name), idle.get(name))}
        return {name: given[name] for name in given if name not in passed | _NOTES}


class Sampled(Fields):
    """How responses are sampled."""

    n: int = Field(default=1, ge=1, le=_MOST_CALLS)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    stop: StopTexts = Field(default_factory=list, max_length=16)
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=64)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def num_likely(self) -> int | None:
        """How many of the most likely tokens are told at each place; None: no log-probs at all."""
        return self.logprobs

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def under(self, terms: Terms, number: int) -> CallSampling:
        """How an episode's turn is sampled, of which a client may ask for fewer tokens alone."""
        most = [terms.sampling.max_tokens]
        if self.most_tokens is not None and self.model_fields_set & _MOST:
            most.append(self.most_tokens)
        return CallSampling(
            **terms.sampling.model_dump(include=_SAME),
            max_tokens=min(most),
            seed=(terms.seed + number) % 2**63,
            top_logprobs=self.num_likely or 0,
        )

    def of_response(self, index: int) -> CallSampling:
        return CallSampling(
            **self.model_dump(include=_SAME),
            max_tokens=self.most_tokens,
            top_k=max(0, self.top_k),
            seed=None if self.seed is None else (self.seed + index) % 2**63,
            top_logprobs=self.num_likely or 0,
        )


class StreamOptions(Part):
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Literal[False] = False


class Request(Fields, Body):
    """A request for responses."""

    MOST_VALUES: ClassVar[int] = 200_000  # tokens among them

    model: str = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False

    @property
    def sampled(self) -> Sampled:
        assert isinstance(self, Sampled)
        return self

    def prompts(self) -> list[dict[str, Any]]:
        """The part of each call that holds its prompt."""
        raise NotImplementedError

    def calls(self, answer_id: str, gateway: str, served: Served) -> list[Call]:
        """One for each response, those to the first prompt first."""
        prompts, num, context = self.prompts(), self.sampled.n, served.model.max_context
        if len(prompts) * num > _MOST_CALLS or num * len(self.model_dump_json()) > _MOST_BYTES:
            what = f"over {_MOST_CALLS} responses, or {_MOST_BYTES >> 20} MiB of prompts for them"
            raise wrong("n", f"asks for {what}; send several requests")
        most = min(self.sampled.most_tokens or context, context)
        if len(prompts) * num * most * (1 + (self.sampled.num_likely or 0)) > _MOST_TOKENS:
            what = f"{_MOST_TOKENS:,} tokens, those of top_logprobs included"
            raise wrong("max_tokens", f"the answer may have over {what}; lower it, n or logprobs")
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


def _as_object(arguments: Any) -> Any:
    try:
        told = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise ValueError("must be a JSON object, or its text") from error
    if lines := unusable(told):
        raise ValueError(lines[0])
    return told


class Function(Part, extra="allow"):
    name: str
    arguments: Annotated[dict[str, Any], BeforeValidator(_as_object)]


class ToolCall(Part, extra="allow"):
    function: Function


class Turn(Fields, extra="allow"):
    """A message as chat templates read it: its content is one text, arguments are an object."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(as_text)] = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)


class ChatRequest(Sampled, Request):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[Turn] = Field(min_length=1)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    top_logprobs: int = Field(default=0, ge=0, le=20)

    @property
    def num_likely(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "needs logprobs = true")
        return self.top_logprobs if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def prompts(self) -> list[dict[str, Any]]:
        for place, turn in enumerate(self.messages):
            if not turn.model_fields_set & {"content", "tool_calls", "refusal"}:
                raise wrong(f"messages.{place}.content", "required, but missing")
        told = (turn.model_dump(exclude_unset=True) for turn in self.messages)
        turns = ({"content": "", **turn} for turn in told)
        prompt = {"messages": tuple(turns), "tools": tuple(self.tools)}
        return [{**prompt, "chat_template_options": self.chat_template_kwargs}]


class CompletionRequest(Sampled, Request):
    """The body of ``POST /v1/completions``."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: int | None = Field(default=16, ge=1)

    def prompts(self) -> list[dict[str, Any]]:
        is_one = isinstance(self.prompt, str) or all(type(part) is int for part in self.prompt)
        prompts: list[Any] = [self.prompt] if is_one else [*self.prompt]
        if not all(prompts):
            raise wrong("prompt", "is empty; give at least one token")
        return [
            {"text": each} if isinstance(each, str) else {"token_ids": tuple(each)}
            for each in prompts
        ]


class GenerateRequest(Request):
    """The body of ``POST /inference/v1/generate``: vLLM's, from tokens to tokens."""

    token_ids: list[TokenId] = Field(min_length=1)
    sampling_params: Sampled = Sampled()

    @property
    def sampled(self) -> Sampled:
        return self.sampling_params

    def prompts(self) -> list[dict[str, Any]]:
        return [{"token_ids": tuple(self.token_ids)}]
