"""The trace of a session: its calls, and the branches of tokens that they make."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from typing import Any

from protocol.messages import Message, VersionSpan
from pydantic import Field

from services.gateway.core.calls.pending import PendingCall
from services.gateway.errors import Problem

Json = dict[str, Any]


class RecordedCall(Message):
    """A call of a session, answered or failed. A chat has its messages and their options."""

    id: str
    created_at: float
    seconds: float
    model: str
    finish_reason: str | None
    error: Json | None
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    spans: list[VersionSpan]
    messages: list[Json] | None = None
    tools: list[Json] = Field(default_factory=list)
    chat_template_options: Json = Field(default_factory=dict)
    text: str = ""
    # In the file, a call is stored without the messages and tokens of the call that it continues.
    after: str | None = None

    @classmethod
    def from_pending(cls, pending: PendingCall) -> RecordedCall:
        call = pending.call
        return cls(
            id=call.id,
            created_at=pending.created_at,
            seconds=round(time.time() - pending.created_at, 3),
            model=call.served.name,
            finish_reason=pending.finish_reason,
            error=pending.problem and _to_object(pending.problem),
            prompt_ids=[*pending.prompt_ids],
            token_ids=[token.id for token in pending.tokens],
            logprobs=[token.logprob for token in pending.tokens],
            spans=[*pending.spans],
            messages=None if call.messages is None else [*map(dict, call.messages)],
            tools=[*map(dict, call.tools)],
            chat_template_options=call.chat_template_options,
            text=pending.text,
        )

    def restore(self, earlier: RecordedCall) -> RecordedCall:
        """Return the whole call, from the earlier one that it continues."""
        prompt_ids = earlier.prompt_ids + earlier.token_ids + self.prompt_ids
        messages = self.messages and [*(earlier.messages or ()), *self.messages]
        return self.model_copy(update={"prompt_ids": prompt_ids, "messages": messages})


def _to_object(problem: Problem) -> Json:
    return {"code": problem.code, "message": problem.detail, "status": problem.status_code}


@dataclass
class Branch:
    """Tokens of turns that continue each other."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)  # None: not sampled in this branch
    own: list[bool] = field(default_factory=list)  # sampled in this branch
    weight_versions: list[Json] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def add(self, call: RecordedCall) -> None:
        prompt_ids = call.prompt_ids[len(self.token_ids) :]
        self.token_ids += prompt_ids + call.token_ids
        self.logprobs += [None] * len(prompt_ids) + call.logprobs
        self.own += [False] * len(prompt_ids) + [True] * len(call.token_ids)
        spans = (span.shift(len(call.prompt_ids)) for span in call.spans)
        self.weight_versions += (span.model_dump() for span in spans)
        self.calls.append(call.id)


def build_branches(calls: Iterable[RecordedCall]) -> list[Branch]:
    """Let each call continue the longest branch that its prompt begins with, or begin one."""
    branches: list[Branch] = []
    branches_by_tokens = defaultdict[int, list[Branch]](list)
    for call in calls:
        hashes = [*accumulate(call.prompt_ids, hash_next, initial=0)]
        candidates = (branches_by_tokens.get(prefix) for prefix in reversed(hashes))
        branch = next((same_tokens.pop(0) for same_tokens in candidates if same_tokens), None)
        if branch is None:
            branch = Branch()
            branches.append(branch)
        branch.add(call)
        branches_by_tokens[reduce(hash_next, call.token_ids, hashes[-1])].append(branch)
    return branches


def hash_next(prefix: int, token: Hashable) -> int:
    """Return the hash of a sequence from that of all but its last element."""
    return hash((prefix, token))
