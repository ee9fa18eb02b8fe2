"""Build a group from the traces of its episodes: one branch of each, after a shared prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from protocol.messages import (
    Episode,
    FinishReason,
    Response,
    RolloutGroup,
    RolloutRequest,
    Turn,
    VersionSpan,
)
from protocol.traces import Branch, EndedCall, Trace

from services.environment.gateway_client import is_full


@dataclass(frozen=True)
class FinishedEpisode:
    """An episode and its trace; a broken episode has no branch to train on."""

    episode: Episode
    trace: Trace

    @property
    def branch(self) -> Branch | None:
        return None if self.episode.problem else trained_branch(self.trace)


def trained_branch(trace: Trace) -> Branch | None:
    """Return the branch with the most tokens of the policy, the last one of several."""
    branches = [branch for branch in reversed(trace.branches) if branch.num_policy_tokens]
    return max(branches, key=lambda branch: branch.num_policy_tokens, default=None)


def select_calls(trace: Trace, branch: Branch | None) -> list[EndedCall]:
    """Return the calls of a branch; without one all that were answered."""
    if branch is None:
        return trace.answered
    return [call for call in trace.calls if call.id in branch.calls]


def build_conversation(calls: Sequence[EndedCall]) -> tuple[Turn, ...]:
    """Return the messages of the last call and its reply; the replies if it had no messages."""
    if not calls or calls[-1].messages is None:
        return tuple(Turn(role="assistant", content=call.text) for call in calls)
    turns: list[Turn] = []
    for message in calls[-1].messages:
        content = _message_text(message)
        turns.append(Turn(role=message["role"], content=content))
    reply = Turn(role="assistant", content=calls[-1].text)
    return (*turns, reply)


def _message_text(message: dict[str, Any]) -> str:
    lines = [str(message.get("content") or "")]
    for call in message.get("tool_calls") or ():
        lines.append(str(call.get("function", call)))
    return "\n".join(filter(None, lines))


def build_group(
    request: RolloutRequest, episodes: Sequence[FinishedEpisode], seconds: float
) -> RolloutGroup:
    branches = [episode.branch for episode in episodes]
    prompt = _shared_prompt(branches)
    start = len(prompt)
    token_ids: list[int] = []
    logprobs: list[float] = []
    policy_mask: list[bool] = []
    lengths: list[int] = []
    for branch in branches:
        if branch is None:
            lengths.append(0)
            continue
        token_ids += branch.token_ids[start:]
        for logprob in branch.logprobs[start:]:
            logprobs.append(logprob or 0.0)
        policy_mask += branch.policy_mask[start:]
        lengths.append(len(branch.token_ids) - start)
    return RolloutGroup(
        request=request,
        prompt_ids=np.array(prompt, dtype=np.int32),
        token_ids=np.array(token_ids, dtype=np.int32),
        behavior_logprobs=np.array(logprobs, dtype=np.float32),
        own=np.array(policy_mask, dtype=np.uint8),
        lengths=np.array(lengths, dtype=np.int32),
        responses=tuple(_build_response(episode, start) for episode in episodes),
        sampling_seconds=seconds,
    )


def _shared_prompt(branches: Sequence[Branch | None]) -> list[int]:
    """Return the tokens that all branches share before the policy's first."""
    prompts: list[list[int]] = []
    for branch in branches:
        if branch is not None:
            length = branch.policy_mask.index(True)
            prompts.append(branch.token_ids[:length])
    shared: list[int] = []
    for tokens in zip(*prompts, strict=False):
        if len(set(tokens)) > 1:
            break
        shared.append(tokens[0])
    return shared


def _build_response(finished: FinishedEpisode, start: int) -> Response:
    branch = finished.branch
    calls = select_calls(finished.trace, branch)
    is_cut = is_full(finished.trace)
    if calls and calls[-1].finish_reason == FinishReason.LENGTH:
        is_cut = True
    return Response(
        text="\n\n".join(call.text for call in calls),
        finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
        spans=() if branch is None else _build_spans(branch, start),
        episode=finished.episode,
    )


def _build_spans(branch: Branch, start: int) -> tuple[VersionSpan, ...]:
    """Return spans without gaps: each starts where the last one ended, to the branch's end.

    An empty span stays empty: its weights read a prompt, but sampled no token after it.
    """
    spans: list[VersionSpan] = []
    previous_end = 0
    for span in branch.weight_versions:
        end = span.end - start if span.end > span.start else previous_end
        bounds = {"start": previous_end, "end": end}
        spans.append(span.model_copy(update=bounds))
        previous_end = end
    last_end = len(branch.token_ids) - start
    spans[-1] = spans[-1].model_copy(update={"end": last_end})
    return tuple(spans)
