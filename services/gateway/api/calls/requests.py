"""The bodies of requests for responses, and the calls that they become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from protocol.calls import Call, CallSampling, Served
from protocol.messages import as_text
from protocol.names import StopText, TemplateOptions
from pydantic import BeforeValidator, Field

from services.gateway.api.openai.body import Body, LenientPart, Part, find_problems
from services.gateway.core.calls.session import SAMPLING_FIELDS
from services.gateway.errors import wrong

MAX_CALLS = 128  # of one request
MAX_PROMPT_BYTES = 2**23  # of one request, since each response has its prompt in Redis
MAX_RESPONSE_TOKENS = 500_000  # of one request, those of top_logprobs included
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
# The values that change nothing, of fields that other servers have.
_NEUTRAL: Mapping[str, object] = {
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "modalities": ["text"],
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "best_of": 1,
    "logit_bias": {},
    "bad_words": [],
    "suffix": "",
    "priority": 0,
    "echo": False,
    "include_stop_str_in_output": False,
}
# Fields that never change a response here.
_IGNORED = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "verbosity",
    "parallel_tool_calls",
    "cache_salt",
    "request_id",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "detokenize",
}
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


def _to_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


StopTexts = Annotated[
    list[StopText], BeforeValidator(_to_list, json_schema_input_type=StopText | list[StopText])
]


class Fields(LenientPart):
    @classmethod
    def has_effect(cls, name: str, value: Any, fields: Mapping[str, Any]) -> bool:
        if name == "tool_choice" and value == "none" and not fields.get("tools"):
            return False
        return name not in _IGNORED and (name not in _NEUTRAL or value != _NEUTRAL[name])


class SamplingFields(Fields):
    n: int = Field(default=1, ge=1, le=MAX_CALLS)
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
    def num_top_logprobs(self) -> int | None:
        """The number of alternatives for each token; None: no log-probs at all."""
        return self.logprobs

    @property
    def requested_tokens(self) -> int | None:
        """The client's own limit."""
        return self.max_tokens

    @property
    def token_limit(self) -> int | None:
        return self.requested_tokens

    def build_sampling(self, index: int) -> CallSampling:
        """Return how the response at ``index`` is sampled."""
        return CallSampling(
            **self.model_dump(include=set(SAMPLING_FIELDS)),
            max_tokens=self.token_limit,
            top_k=max(0, self.top_k),
            seed=None if self.seed is None else (self.seed + index) % 2**63,
            top_logprobs=self.num_top_logprobs or 0,
        )


class StreamOptions(Part):
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Literal[False] = False


class Request(Fields, Body):
    """A request for responses."""

    MAX_VALUES: ClassVar[int] = 200_000  # tokens among them

    model: str = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False

    @property
    def sampling(self) -> SamplingFields:
        assert isinstance(self, SamplingFields)
        return self

    def build_prompts(self) -> list[dict[str, Any]]:
        """Return the fields of each call that hold its prompt."""
        raise NotImplementedError

    def build_calls(self, response_id: str, gateway: str, served: Served) -> list[Call]:
        """Return one call for each response, those to the first prompt first."""
        prompts = self.build_prompts()
        self._refuse_too_much(len(prompts), served.model.max_context)
        prompt_of_each = [prompt for prompt in prompts for _ in range(self.sampling.n)]
        return [
            Call(
                id=f"{response_id}-{index}",
                gateway=gateway,
                served=served,
                sampling=self.sampling.build_sampling(index % self.sampling.n),
                streams=self.stream,
                **prompt,
            )
            for index, prompt in enumerate(prompt_of_each)
        ]

    def _refuse_too_much(self, num_prompts: int, max_context: int) -> None:
        sampling = self.sampling
        num_calls = num_prompts * sampling.n
        num_bytes = sampling.n * len(self.model_dump_json())
        if num_calls > MAX_CALLS or num_bytes > MAX_PROMPT_BYTES:
            limits = f"{MAX_CALLS} responses, or {MAX_PROMPT_BYTES >> 20} MiB of prompts for them"
            raise wrong("n", f"asks for over {limits}; send several requests")
        num_tokens = num_calls * min(sampling.token_limit or max_context, max_context)
        if num_tokens * (1 + (sampling.num_top_logprobs or 0)) > MAX_RESPONSE_TOKENS:
            limit = f"{MAX_RESPONSE_TOKENS:,} tokens, those of top_logprobs included"
            raise wrong("max_tokens", f"allows over {limit}; lower it, n or logprobs")


def _parse_arguments(arguments: Any) -> Any:
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise ValueError("must be a JSON object, or its text") from error
    if lines := find_problems(parsed):
        raise ValueError(lines[0])
    return parsed


class Function(Part, extra="allow"):
    name: str
    arguments: Annotated[dict[str, Any], BeforeValidator(_parse_arguments)]


class ToolCall(Part, extra="allow"):
    function: Function


class ChatMessage(Fields, extra="allow"):
    """A message as chat templates read it: its content is one text, arguments are an object."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(as_text)] = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)


class ChatRequest(SamplingFields, Request):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    top_logprobs: int = Field(default=0, ge=0, le=20)

    @property
    def num_top_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "needs logprobs = true")
        return self.top_logprobs if self.logprobs else None

    @property
    def requested_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def build_prompts(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for index, message in enumerate(self.messages):
            if not message.model_fields_set & {"content", "tool_calls", "refusal"}:
                raise wrong(f"messages.{index}.content", "required, but missing")
            messages.append({"content": "", **message.model_dump(exclude_unset=True)})
        return [
            {
                "messages": tuple(messages),
                "tools": tuple(self.tools),
                "chat_template_options": self.chat_template_kwargs,
            }
        ]


class CompletionRequest(SamplingFields, Request):
    """The body of ``POST /v1/completions``."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS

    def build_prompts(self) -> list[dict[str, Any]]:
        prompts: Any = self.prompt
        if isinstance(prompts, str) or all(isinstance(token, int) for token in prompts):
            prompts = [prompts]
        if not all(prompts):
            raise wrong("prompt", "is empty; give at least one token")
        return [
            {"text": prompt} if isinstance(prompt, str) else {"token_ids": tuple(prompt)}
            for prompt in prompts
        ]


class GenerateRequest(Request):
    """The body of ``POST /inference/v1/generate``: vLLM's, from tokens to tokens."""

    token_ids: list[TokenId] = Field(min_length=1)
    sampling_params: SamplingFields = SamplingFields()

    @property
    def sampling(self) -> SamplingFields:
        return self.sampling_params

    def build_prompts(self) -> list[dict[str, Any]]:
        return [{"token_ids": tuple(self.token_ids)}]
