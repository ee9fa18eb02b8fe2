"""Calls of the model door: one response that a client asks for, and its answer, piece by piece.

A rollout takes a call at most once. If it falls silent the gateway asks again, with the tokens that
have come as ``so_far``: another rollout goes on behind them, and what the first one may still send
is of an earlier try.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from protocol.messages import FinishReason, Measured, Message, VersionSpan
from protocol.names import StopText, TemplateOptions
from protocol.recipe import Model, Purpose, Sampling


class Served(Message):
    """The weights that answer: the newest of the active job, or those of a folder."""

    name: str  # by which clients ask for it
    job_id: str = ""  # of the newest weights, or of the job that has made the folder
    folder: str = ""  # on the shared disk; none: the newest weights of the job
    base: str = ""  # where the folder holds an adapter: the folder of the model that it is for
    version: int = 0  # the step that has made the folder's weights
    attempt: int = 0  # of the job that made its result; 0: a checkpoint does not say
    model: Model  # how to start an engine on it, and how messages become a prompt

    @property
    def key(self) -> str:
        """The same for calls that the same weights answer."""
        return f"folder:{self.folder}" if self.folder else f"job:{self.job_id}"


class Terms(Message):
    """What a learner's request asks of the calls of an episode: a session is opened under them."""

    job_id: str
    purpose: Purpose
    min_version: int = Field(default=0, ge=0)  # older weights must not answer
    version: int | None = None  # where no other may: that of an evaluation
    sampling: Sampling  # of each turn, whatever an agent asks for
    seed: int


class CallSampling(Message):
    """How a response is sampled. Log-probs are those after temperature and truncation, in nats."""

    max_tokens: int | None = Field(default=None, ge=1)  # None: what the context leaves
    temperature: float = Field(default=1.0, ge=0)  # 0: the most likely token
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)  # 0: all
    min_p: float = Field(default=0.0, ge=0, le=1)
    stop: tuple[StopText, ...] = Field(default=(), max_length=16)
    stop_token_ids: tuple[int, ...] = Field(default=(), max_length=64)  # vLLM dies of over 128
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    seed: int | None = None
    top_logprobs: int = Field(default=0, ge=0, le=20)  # of the most likely tokens, at each place
    prompt_logprobs: bool = False  # of the prompt's own tokens, at temperature 1 whatever is above


class Begun(Message):
    """The beginning of a chat whose tokens are known, so that they are not made anew."""

    num_messages: int = Field(ge=1)  # the last of them is a reply
    token_ids: tuple[int, ...]  # of the reply's prompt and of the reply, as they were sampled


class Call(Message):
    id: str = Field(min_length=1)
    gateway: str  # whose queue the answer goes to
    tries: int = 0  # made before
    served: Served
    text: str | None = None  # the prompt: either a text, ...
    messages: tuple[Mapping[str, Any], ...] | None = None  # ... or for the chat template, ...
    token_ids: tuple[Annotated[int, Field(ge=0)], ...] | None = None  # ... or as it is
    tools: tuple[Mapping[str, Any], ...] = ()  # for the chat template
    begun: Begun | None = None  # where the messages go on from an earlier call
    chat_template_options: TemplateOptions = Field(default_factory=dict)  # besides the model's own
    so_far: tuple[int, ...] = ()  # of the response, sampled in earlier tries
    sampling: CallSampling
    streams: bool = False  # else few pieces will do
    terms: Terms | None = None  # of an episode of the job's own

    @model_validator(mode="after")
    def _one_kind_of_prompt(self) -> Self:
        if sum(each is not None for each in (self.text, self.messages, self.token_ids)) != 1:
            raise ValueError("give exactly one of 'text', 'messages' and 'token_ids'")
        return self

    @property
    def key(self) -> str:
        """The same for calls that one rollout takes for the same reason."""
        if self.terms is None:
            return self.served.key
        kind = "eval" if self.terms.purpose is Purpose.EVAL else "work"
        return f"{kind}:{self.terms.job_id}"


class Token(Message):
    id: int
    text: str  # by itself; a part of a character shows as U+FFFD
    logprob: FiniteFloat
    top: tuple[tuple[int, str, float], ...] = ()  # id, text and log-prob, the most likely first


class Refusal(Message):
    """Why a call has no answer; ``again`` means that the gateway asks anew, perhaps elsewhere."""

    status: Literal[400, 409, 500, 503]
    code: str
    message: str
    again: bool = False


class Piece(Message):
    """The tokens since the last piece of a try."""

    call_id: str
    tries: int
    prompt_ids: tuple[int, ...] | None = None  # with the first piece
    # With it, if asked for: None for the first token, and where the model has no number.
    prompt_logprobs: tuple[Measured, ...] | None = None
    tokens: tuple[Token, ...] = ()
    text: str = ""  # of the tokens, as far as it is certain; not of a stop text
    spans: tuple[VersionSpan, ...] = ()  # of this try's tokens up to now
    finish_reason: FinishReason | None = None  # with the last
    stop_reason: int | str | None = None  # the stop text or token that ended it
    refusal: Refusal | None = None  # ends the try, too

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.refusal is not None


class Pieces(Message):
    """What a rollout sends to a gateway, at least once a second while it holds one of its calls."""

    rollout: str  # its name
    doing: str = ""  # what the calls wait for, as "loads step 200 of ftjob-…"
    held: tuple[str, ...] = ()  # the ids of all calls that it holds of this gateway
    pieces: tuple[Piece, ...] = ()
