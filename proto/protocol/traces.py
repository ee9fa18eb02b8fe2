"""The trace of a session: the gateway records it, and environment workers read it over REST."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from protocol.messages import Message, VersionSpan

Json = dict[str, Any]


class CallError(Message):
    code: str
    message: str
    status: int


class TimedCall(Message):
    id: str
    created_at: float
    seconds: float


class OpenCall(TimedCall):
    """A call without a reply; ``quiet_seconds`` have passed since its last token."""

    quiet_seconds: float


class EndedCall(TimedCall):
    """A call with a reply or an error. A chat has its messages and their options."""

    model: str
    finish_reason: str | None
    error: CallError | None
    messages: list[Json] | None = None
    tools: list[Json] = Field(default_factory=list)
    chat_template_options: Json = Field(default_factory=dict)
    text: str = ""


class Branch(Message):
    """Tokens of calls that continue each other."""

    token_ids: list[int] = Field(default_factory=list)
    logprobs: list[float | None] = Field(default_factory=list)  # None: not sampled in this branch
    policy_mask: list[bool] = Field(default_factory=list, alias="own")  # sampled in this branch
    weight_versions: list[VersionSpan] = Field(default_factory=list)
    calls: list[str] = Field(default_factory=list)

    @property
    def num_policy_tokens(self) -> int:
        return sum(self.policy_mask)


class Trace(Message):
    id: str
    object: Literal["rollout"] = "rollout"
    calls: tuple[EndedCall, ...] = ()
    under_way: tuple[OpenCall, ...] = ()
    branches: tuple[Branch, ...] = ()
    num_branches: int = 0
    deleted: bool = False

    @property
    def answered(self) -> list[EndedCall]:
        return [call for call in self.calls if call.error is None]

    @property
    def seconds(self) -> float:
        """The time during which at least one call was under way."""
        total = 0.0
        busy_until = 0.0
        for call in sorted([*self.calls, *self.under_way], key=lambda call: call.created_at):
            end = call.created_at + call.seconds
            total += max(0.0, end - max(call.created_at, busy_until))
            busy_until = max(busy_until, end)
        return total
