"""A session in memory: its terms, and the answered calls that the next call may continue."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

from protocol.calls import Call, CallSampling, ChatPrefix, Terms
from protocol.messages import Message
from protocol.traces import Json
from pydantic import ValidationError

from services.gateway.core.calls.pending import PendingCall
from services.gateway.core.calls.trace import RecordedCall, hash_next
from services.gateway.errors import NO_RETRY, Problem

DAMAGED = "session_damaged"
# The fields that have the same name in requests, recipes and calls.
SAMPLING_FIELDS = frozenset(
    ["temperature", "top_p", "min_p", "stop", "stop_token_ids", "min_tokens", "ignore_eos"]
)
log = logging.getLogger(__name__)


class Head(Message):
    """The first line of a session's file."""

    terms: Terms | None
    key: str  # the SHA-256 of the session's key

    @classmethod
    def parse(cls, session: str, line: bytes) -> Head:
        """Parse the line; 409 if it is damaged, since the terms are then unknown."""
        try:
            return cls.model_validate_json(line)
        except ValidationError as error:
            log.warning("the record of a session is damaged", extra={"session": session})
            raise Problem(
                409,
                f"the record of session {session} is damaged: its first line cannot be read, so "
                "its terms are unknown; DELETE it with an admin's key, and open another",
                param="session",
                code=DAMAGED,
                headers=NO_RETRY,
            ) from error


@dataclass(frozen=True, eq=False)
class AnsweredCall:
    """A call that others may continue; its tokens are those of ``earlier``, then ``new_ids``."""

    call_id: str
    turns_hash: int  # of its turns or prompt tokens, and its reply
    messages_hash: int
    earlier: AnsweredCall | None
    new_ids: array[int]

    def remove_beginning(self, call: RecordedCall, num_messages: int) -> RecordedCall | None:
        """Return a call without its beginning, if that is this call, else None."""
        token_ids = self.token_ids()
        messages = call.messages or []
        if call.prompt_ids[: len(token_ids)] != token_ids:
            return None
        if _hash(messages[:num_messages]) != self.messages_hash:
            return None
        changes = {
            "after": self.call_id,
            "prompt_ids": call.prompt_ids[len(token_ids) :],
            "messages": messages[num_messages:] or None,
        }
        return call.model_copy(update=changes)

    def token_ids(self) -> list[int]:
        parts: list[array[int]] = []
        call: AnsweredCall | None = self
        while call is not None:
            parts.append(call.new_ids)
            call = call.earlier
        return [*chain.from_iterable(reversed(parts))]


@dataclass
class Session:
    head: Head
    num_calls: int = 0
    answered: dict[int, AnsweredCall] = field(default_factory=dict)  # by the hash of their turns
    pending: dict[str, PendingCall] = field(default_factory=dict)  # by the call's id

    @property
    def terms(self) -> Terms | None:
        return self.head.terms

    def track(self, calls: Iterable[PendingCall]) -> None:
        all_calls = (*self.pending.values(), *calls)
        self.pending = {pending.call.id: pending for pending in all_calls if not pending.is_done}

    def admit(self, call: Call, max_tokens: int | None) -> Call:
        """Return a call under the session's terms, with the tokens that its chat begins with.

        ``max_tokens`` is the client's own limit.
        """
        self.num_calls += 1
        changes: Json = {"begun": self._find_beginning(call)}
        if self.terms is not None:
            changes["terms"] = self.terms
            changes["sampling"] = self._sampling(self.terms, call, max_tokens)
        return call.model_copy(update=changes)

    def _sampling(self, terms: Terms, call: Call, max_tokens: int | None) -> CallSampling:
        """Sample as the terms say; a client may only ask for fewer tokens."""
        limit = terms.sampling.max_tokens
        return CallSampling(
            **terms.sampling.model_dump(include=set(SAMPLING_FIELDS)),
            max_tokens=min(max_tokens or limit, limit),
            seed=(terms.seed + self.num_calls) % 2**63,
            top_logprobs=call.sampling.top_logprobs,
        )

    def _find_beginning(self, call: Call) -> ChatPrefix | None:
        hashes = _hash_turns(call.served.name, call, map(_normalize, call.messages or ()))
        num_messages, earlier = self._find_longest(hashes)
        if earlier is None:
            return None
        return ChatPrefix(num_messages=num_messages, token_ids=tuple(earlier.token_ids()))

    def _find_longest(self, hashes: Sequence[int]) -> tuple[int, AnsweredCall | None]:
        """Find the answered call with the longest of some beginnings, and its number of turns."""
        for num_turns in range(len(hashes) - 1, 0, -1):
            if earlier := self.answered.get(hashes[num_turns]):
                return num_turns, earlier
        return 0, None

    def split(self, call: RecordedCall) -> tuple[AnsweredCall, RecordedCall]:
        """Return a call as others may continue it, and without its part that is stored already."""
        turns: list[Hashable] = [*call.prompt_ids]
        reply: list[Hashable] = [*call.token_ids]
        if call.messages is not None:
            turns = [*map(_normalize, call.messages)]
            reply = [call.text.strip()]
        hashes = _hash_turns(call.model, call, [*turns, *reply])
        num_turns, earlier = self._find_longest(hashes[: len(turns) + 1])
        new_part = earlier and earlier.remove_beginning(call, num_turns - 1)
        if new_part is None:
            earlier = None
            new_part = call
        new_ids = array("i", new_part.prompt_ids + call.token_ids)
        messages_hash = _hash(call.messages or [])
        return AnsweredCall(call.id, hashes[-1], messages_hash, earlier, new_ids), new_part

    def remember(self, call: RecordedCall, answered: AnsweredCall) -> None:
        """Let others continue a call, if it did not fail."""
        if call.error is None:
            self.answered[answered.turns_hash] = answered


def _hash_turns(model: str, call: Call | RecordedCall, turns: Iterable[Hashable]) -> list[int]:
    """Return the hash of each beginning of a call, from no turns or tokens to all of them."""
    options_hash = _hash([*call.tools, call.chat_template_options])
    return [*accumulate(turns, hash_next, initial=hash((model, options_hash)))]


def _hash(values: list[Any]) -> int:
    return hash(json.dumps(values))


def _normalize(message: Mapping[str, Any]) -> str:
    """Return the same text for a reply and for the message that a client makes of it."""
    if message["role"] == "assistant" and not message.get("tool_calls"):
        return message["content"].strip()
    return json.dumps(message, sort_keys=True)
