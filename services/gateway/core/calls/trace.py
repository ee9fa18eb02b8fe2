"""The trace of a session: its calls, and the branches of tokens that they make."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Iterable
from functools import reduce
from itertools import accumulate

from protocol.messages import VersionSpan
from protocol.traces import Branch, CallError, EndedCall

from services.gateway.core.calls.pending import PendingCall


class RecordedCall(EndedCall):
    """A call with its tokens, as it is stored."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    spans: list[VersionSpan]
    # A call is stored without the messages and tokens of the call that it continues.
    after: str | None = None

    @classmethod
    def from_pending(cls, pending: PendingCall) -> RecordedCall:
        call = pending.call
        problem = pending.problem
        error = None
        if problem is not None:
            error = CallError(
                code=problem.code,
                message=problem.detail,
                status=problem.status_code,
            )
        return cls(
            id=call.id,
            created_at=pending.created_at,
            seconds=round(time.time() - pending.created_at, 3),
            model=call.served.name,
            finish_reason=pending.finish_reason,
            error=error,
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


def extend_branch(branch: Branch, call: RecordedCall) -> None:
    prompt_ids = call.prompt_ids[len(branch.token_ids) :]
    branch.token_ids.extend(prompt_ids + call.token_ids)
    branch.logprobs.extend([None] * len(prompt_ids) + call.logprobs)
    branch.policy_mask.extend([False] * len(prompt_ids) + [True] * len(call.token_ids))
    branch.weight_versions.extend(span.shift(len(call.prompt_ids)) for span in call.spans)
    branch.calls.append(call.id)


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
        extend_branch(branch, call)
        branches_by_tokens[reduce(hash_next, call.token_ids, hashes[-1])].append(branch)
    return branches


def hash_next(prefix: int, token: Hashable) -> int:
    """Return the hash of a sequence from that of all but its last element."""
    return hash((prefix, token))
