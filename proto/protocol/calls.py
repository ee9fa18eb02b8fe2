"""Calls: requests of clients for one response, which comes back in pieces.

A rollout takes a call at most once. If the rollout falls silent, the gateway queues the call again
with the tokens received as ``so_far``. Another rollout continues after them. Late pieces of the
first rollout belong to an earlier try.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from protocol.messages import FinishReason, Measured, Message, VersionSpan
from protocol.names import StopText, TemplateOptions
from protocol.recipe import Model, Purpose, Sampling


class Served(Message):
    """The weights for a call: the active job's newest, or those of a folder."""

    name: str  # the model name in requests
    job_id: str = ""  # the job that trains the weights, or that made the folder
    folder: str = ""  # on the shared disk; empty: the newest weights of the job
    base: str = ""  # the folder of the base model if ``folder`` holds an adapter
    version: int = 0  # the step that made the folder's weights
    attempt: int = 0  # the attempt whose result the folder is; 0: unknown, as for checkpoints
    model: Model  # settings of the engine and of the prompt

    @property
    def key(self) -> str:
        """The identity of the weights."""
        return f"folder:{self.folder}" if self.folder else f"job:{self.job_id}"


class Terms(Message):
    """The terms of an episode's calls, from the learner's request."""

    job_id: str
    purpose: Purpose
    min_version: int = Field(default=0, ge=0)  # the oldest weights version that may answer
    version: int | None = None  # the only version that may answer, in an evaluation
    sampling: Sampling  # of each turn; overrides the request of an agent
    seed: int


class CallSampling(Message):
    """Sampling of a response. Log-probs are in nats, after temperature and truncation."""

    max_tokens: int | None = Field(default=None, ge=1)  # None: the rest of the context
    temperature: float = Field(default=1.0, ge=0)  # 0: the most likely token
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)  # 0: all
    min_p: float = Field(default=0.0, ge=0, le=1)
    stop: tuple[StopText, ...] = Field(default=(), max_length=16)
    stop_token_ids: tuple[int, ...] = Field(default=(), max_length=64)  # over 128 crash vLLM
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    seed: int | None = None
    top_logprobs: int = Field(default=0, ge=0, le=20)  # the most likely tokens per position
    prompt_logprobs: bool = False  # always at temperature 1


class ChatPrefix(Message):
    """The first messages of a chat with their tokens, which need no tokenizer."""

    num_messages: int = Field(ge=1)  # the last of them is a reply
    token_ids: tuple[int, ...]  # the prompt and the reply, as sampled


class Call(Message):
    id: str = Field(min_length=1)
    gateway: str  # the gateway that receives the pieces
    tries: int = 0  # earlier tries
    served: Served
    # The prompt: a text, messages for the chat template, or tokens.
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    token_ids: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()  # for the chat template
    begun: ChatPrefix | None = None  # set if the messages continue an earlier call
    chat_template_options: TemplateOptions = Field(default_factory=dict)  # added to the model's
    so_far: tuple[int, ...] = ()  # tokens of the response from earlier tries
    sampling: CallSampling
    streams: bool = False  # if not, few large pieces are enough
    terms: Terms | None = None  # for calls of the job's episodes

    @model_validator(mode="after")
    def _one_kind_of_prompt(self) -> Self:
        if (self.text, self.messages, self.token_ids).count(None) != 2:
            raise ValueError("give exactly one of 'text', 'messages' and 'token_ids'")
        return self

    @property
    def key(self) -> str:
        """The identity of the queue from which rollouts take the call."""
        if self.terms is None:
            return self.served.key
        kind = "eval" if self.terms.purpose is Purpose.EVAL else "work"
        return f"{kind}:{self.terms.job_id}"


class Token(Message):
    id: int
    text: str  # a part of a character is U+FFFD
    logprob: FiniteFloat
    top: tuple[tuple[int, str, float], ...] = ()  # id, text and log-prob, the most likely first


class Refusal(Message):
    """The reason why a call fails; with ``again`` the gateway queues the call again."""

    status: Literal[400, 409, 500, 503]
    code: str
    message: str
    again: bool = False


class Piece(Message):
    """The tokens since the last piece of a try."""

    call_id: str
    tries: int
    prompt_ids: tuple[int, ...] | None = None  # in the first piece
    # In the first piece if requested; None for the first token and for log-probs that are NaN.
    prompt_logprobs: tuple[Measured, ...] | None = None
    tokens: tuple[Token, ...] = ()
    text: str = ""  # the tokens as text, without a stop text or incomplete characters
    spans: tuple[VersionSpan, ...] = ()  # of all tokens of this try
    finish_reason: FinishReason | None = None  # in the last piece
    stop_reason: int | str | None = None  # the stop text or token
    refusal: Refusal | None = None  # also ends the try

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.refusal is not None


class Pieces(Message):
    """A rollout's report to a gateway, at least once a second while it holds a call."""

    rollout: str
    doing: str = ""  # the reason why calls wait, such as "loads step 200 of ftjob-…"
    held: tuple[str, ...] = ()  # ids of all calls of this gateway that the rollout has
    pieces: tuple[Piece, ...] = ()
