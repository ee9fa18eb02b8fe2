"""Episodes become a group: one branch of each trace, behind the prompt that all share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
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

from services.environment.door import Branch, RecordedCall, Trace


@dataclass(frozen=True)
class Played:
    """An episode that has ended, and what it left; broken, it left no branch."""

    episode: Episode
    trace: Trace

    @property
    def branch(self) -> Branch | None:
        return None if self.episode.problem else trained_branch(self.trace)


def trained_branch(trace: Trace) -> Branch | None:
    """The branch with the most tokens of the policy's own, of several the last."""
    branches = [branch for branch in reversed(trace.branches) if any(branch.own)]
    return max(branches, key=lambda branch: sum(branch.own), default=None)


def calls_of(trace: Trace, branch: Branch | None) -> list[RecordedCall]:
    """The calls of a branch, or all that were answered."""
    ids = set(branch.calls) if branch else {call.id for call in trace.answered}
    return [call for call in trace.calls if call.id in ids]


def conversation_of(calls: Sequence[RecordedCall]) -> tuple[Turn, ...]:
    """What the last call was told, and its reply; of calls without messages the replies."""
    if not calls or calls[-1].messages is None:
        return tuple(Turn(role="assistant", content=call.text) for call in calls)
    told = [Turn(role=turn["role"], content=_said(turn)) for turn in calls[-1].messages]
    return (*told, Turn(role="assistant", content=calls[-1].text))


def _said(turn: dict[str, Any]) -> str:
    asked = [str(call.get("function", call)) for call in turn.get("tool_calls") or ()]
    return "\n".join(filter(None, [str(turn.get("content") or ""), *asked]))


def group_of(request: RolloutRequest, played: Sequence[Played], seconds: float) -> RolloutGroup:
    branches = [each.branch for each in played]
    kept = [branch for branch in branches if branch is not None]
    prompt = _common_prefix([branch.token_ids[: branch.own.index(True)] for branch in kept])
    start = len(prompt)
    lengths = [0 if branch is None else len(branch.token_ids) - start for branch in branches]
    logprobs = [logprob or 0.0 for branch in kept for logprob in branch.logprobs[start:]]
    return RolloutGroup(
        request=request,
        prompt_ids=np.array(prompt, dtype=np.int32),
        token_ids=np.array([t for b in kept for t in b.token_ids[start:]], dtype=np.int32),
        behavior_logprobs=np.array(logprobs, dtype=np.float32),
        own=np.array([own for b in kept for own in b.own[start:]], dtype=np.uint8),
        lengths=np.array(lengths, dtype=np.int32),
        responses=tuple(_response(each, start) for each in played),
        sampling_seconds=seconds,
    )


def _common_prefix(rows: Sequence[list[int]]) -> list[int]:
    equal = takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False))
    return [column[0] for column in equal]


def _response(played: Played, start: int) -> Response:
    branch = played.branch
    calls = calls_of(played.trace, branch)
    ended = calls[-1].finish_reason if calls else None
    is_cut = ended == FinishReason.LENGTH or played.trace.is_full
    return Response(
        text="\n\n".join(call.text for call in calls),
        finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
        spans=_spans(branch, start) if branch is not None else (),
        episode=played.episode,
    )


def _spans(branch: Branch, start: int) -> tuple[VersionSpan, ...]:
    """Without gaps: each span begins where the last one ended, and the last goes to the end.

    An empty one stays so: it is of weights that have read a prompt, but sampled nothing behind it.
    """
    spans, edge = list[VersionSpan](), 0
    for span in branch.weight_versions:
        end = span.end - start if span.end > span.start else edge
        spans.append(span.model_copy(update={"start": edge, "end": end}))
        edge = end
    whole = {"end": len(branch.token_ids) - start}
    return (*spans[:-1], spans[-1].model_copy(update=whole))
