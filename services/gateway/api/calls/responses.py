"""Responses as OpenAI's and vLLM's clients read them, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from protocol.calls import Token

from services.gateway.api.calls.requests import Request
from services.gateway.core.calls.pending import PendingCall

Json = dict[str, Any]
_PARTIAL_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class Delta:
    """The part of a response that one object has: all of it, or the news since the last chunk."""

    pending: PendingCall
    tokens: Sequence[Token]
    text: str
    is_first: bool = True

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.tokens]


@dataclass
class ChatResponse:
    """The response to one request, with the choices of a chat."""

    PREFIX: ClassVar[str] = "chatcmpl"  # of the id
    OBJECT: ClassVar[str] = "chat.completion"
    CHUNK: ClassVar[str] = "chat.completion.chunk"

    id: str
    request: Request
    calls: Sequence[PendingCall]
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        # The tokens and characters sent of each choice that is not complete.
        self._sent: dict[int, tuple[int, int]] = dict.fromkeys(range(len(self.calls)), (0, 0))

    def to_object(self) -> Json:
        deltas = [Delta(pending, pending.tokens, pending.text) for pending in self.calls]
        choices = [self.choice(index, delta) for index, delta in enumerate(deltas)]
        return {
            **self._envelope(self.OBJECT, choices),
            "usage": self.usage(),
            "weir": self.facts(),
        }

    def chunks(self) -> Iterator[Json]:
        """Yield one chunk for each choice with news."""
        for index, (num_tokens, num_chars) in list(self._sent.items()):
            pending = self.calls[index]
            tokens = pending.tokens[num_tokens:]
            text = pending.text[num_chars:]
            is_first = num_tokens + num_chars == 0
            self._sent[index] = (len(pending.tokens), len(pending.text))
            if not (tokens or text or pending.is_done):
                continue
            choice = self.choice(index, Delta(pending, tokens, text, is_first), "delta")
            chunk = self._envelope(self.CHUNK, [choice], with_prompt=is_first)
            if pending.is_done:
                del self._sent[index]
                chunk["weir"] = self.facts()
            yield chunk

    def usage_chunk(self) -> Json:
        return {**self._envelope(self.CHUNK, []), "usage": self.usage()}

    def _envelope(self, kind: str, choices: list[Json], *, with_prompt: bool = True) -> Json:
        envelope: Json = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }
        if self.request.return_token_ids and with_prompt and choices:
            envelope["prompt_token_ids"] = self.calls[choices[0]["index"]].prompt_ids
        return envelope

    def choice(self, index: int, delta: Delta, key: str = "message") -> Json:
        message = {"content": delta.text}
        if delta.is_first:
            message["role"] = "assistant"
        return {key: message, **self._common_fields(index, delta)}

    def _common_fields(self, index: int, delta: Delta) -> Json:
        """Return the fields of a choice that all kinds of responses have."""
        pending = delta.pending
        has_logprobs = self.request.sampling.num_top_logprobs is not None
        fields: Json = {
            "index": index,
            "logprobs": self.logprobs(delta) if has_logprobs else None,
            "finish_reason": pending.finish_reason if pending.is_done else None,
            "stop_reason": pending.stop_reason if pending.is_done else None,
        }
        if self.request.return_token_ids:
            fields["token_ids"] = delta.token_ids
        return fields

    def logprobs(self, delta: Delta) -> Json:
        entries: list[Json] = []
        for token in delta.tokens:
            entry = self.logprob(token.id, token.text, token.logprob)
            entry["top_logprobs"] = [self.logprob(*candidate) for candidate in token.top]
            entries.append(entry)
        return {"content": entries, "refusal": None}

    @staticmethod
    def logprob(token_id: int, text: str, logprob: float) -> Json:
        is_whole = _PARTIAL_CHARACTER not in text
        return {"token": text, "logprob": logprob, "bytes": [*text.encode()] if is_whole else None}

    def usage(self) -> Json:
        one_per_prompt = self.calls[:: self.request.sampling.n]
        num_prompt_tokens = sum(len(pending.prompt_ids) for pending in one_per_prompt)
        num_sampled = sum(len(pending.tokens) for pending in self.calls)
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_sampled,
            "total_tokens": num_prompt_tokens + num_sampled,
        }

    def facts(self) -> Json:
        """Return which weights and rollouts sampled the tokens of each choice."""
        served = self.calls[0].call.served
        return {
            "model": served.name,
            "prompt_template": served.model.prompt_template,
            "rollouts": sorted({name for pending in self.calls for name in pending.rollouts}),
            "weight_versions": [_dump_spans(pending) for pending in self.calls],
        }


class CompletionResponse(ChatResponse):
    PREFIX: ClassVar[str] = "cmpl"
    OBJECT: ClassVar[str] = "text_completion"
    CHUNK: ClassVar[str] = "text_completion"

    def choice(self, index: int, delta: Delta, key: str = "") -> Json:
        choice = {"text": delta.text, **self._common_fields(index, delta)}
        if self.request.return_token_ids and delta.is_first:
            choice["prompt_token_ids"] = delta.pending.prompt_ids
        return choice

    def logprobs(self, delta: Delta) -> Json:
        top = [{text: logprob for _, text, logprob in token.top} for token in delta.tokens]
        return {
            "tokens": [token.text for token in delta.tokens],
            "token_logprobs": [token.logprob for token in delta.tokens],
            "top_logprobs": top if self.request.sampling.num_top_logprobs else None,
            "text_offset": None,  # a character may have several tokens
        }


class GenerateResponse(ChatResponse):
    """vLLM's response in tokens; its log-probs name a token in both ways that clients read."""

    PREFIX: ClassVar[str] = "gen"

    def choice(self, index: int, delta: Delta, key: str = "") -> Json:
        return {
            **self._common_fields(index, delta),
            "token_ids": delta.token_ids,
            "weight_versions": _dump_spans(delta.pending),
        }

    @staticmethod
    def logprob(token_id: int, text: str, logprob: float) -> Json:
        return {"token": f"token_id:{token_id}", "token_id": token_id, "logprob": logprob}

    def _envelope(self, kind: str, choices: list[Json], *, with_prompt: bool = True) -> Json:
        envelope = super()._envelope(kind, choices, with_prompt=with_prompt)
        return {**envelope, "request_id": self.id}


def _dump_spans(pending: PendingCall) -> list[Json]:
    return [span.model_dump() for span in pending.spans]
