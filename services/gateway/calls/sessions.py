"""Sessions: files in which the calls of a rollout are recorded, and the trace that they make."""

from __future__ import annotations

import errno
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

from protocol.messages import Message, VersionSpan

from services.gateway.calls.desk import Answer
from services.gateway.errors import conflict, not_found

Json = dict[str, Any]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
_KEPT_S = 7 * 24 * 3600.0
_MOST_BYTES = 2**26  # of a session, in which calls are asked
log = logging.getLogger(__name__)


class Recorded(Message):
    """A call of a session, answered or failed."""

    id: str
    created_at: float
    seconds: float
    model: str
    finish_reason: str | None
    error: dict[str, str] | None
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    spans: list[VersionSpan]

    @classmethod
    def of(cls, answer: Answer) -> Recorded:
        problem = answer.problem
        return cls(
            id=answer.call.id,
            created_at=answer.asked_at,
            seconds=round(time.time() - answer.asked_at, 3),
            model=answer.call.served.name,
            finish_reason=answer.finish_reason,
            error={"code": problem.code, "message": problem.detail} if problem else None,
            prompt_ids=[*answer.prompt_ids],
            token_ids=[token.id for token in answer.tokens],
            logprobs=[token.logprob for token in answer.tokens],
            spans=[*answer.spans],
        )


@dataclass
class Branch:
    """Tokens of turns that go on from each other."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)  # None: not sampled in this branch
    own: list[bool] = field(default_factory=list)  # sampled in this branch
    weight_versions: list[Json] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def add(self, call: Recorded) -> None:
        given = call.prompt_ids[len(self.token_ids) :]
        self.token_ids += given + call.token_ids
        self.logprobs += [None] * len(given) + call.logprobs
        self.own += [False] * len(given) + [True] * len(call.token_ids)
        before = len(self.token_ids) - len(call.token_ids)
        for span in call.spans:
            moved = {"start": span.start + before, "end": span.end + before}
            self.weight_versions.append(span.model_dump() | moved)
        self.calls.append(call.id)


def branches_of(calls: Iterable[Recorded]) -> list[Branch]:
    """Each call goes on from the longest branch that its prompt begins with, or is a new one."""
    branches, ending = list[Branch](), defaultdict[int, list[Branch]](list)  # ... in these tokens
    for call in calls:
        hashes = [*accumulate(call.prompt_ids, _chained, initial=0)]
        before = next((ending[each] for each in reversed(hashes) if ending.get(each)), None)
        if before is None:
            branches.append(Branch())
            before = branches[-1:]
        branch = before.pop(0)
        branch.add(call)
        ending[reduce(_chained, call.token_ids, hashes[-1])].append(branch)
    return branches


def _chained(before: int, token: int) -> int:
    return hash((before, token))


@dataclass(frozen=True)
class Sessions:
    folder: Path

    def record(self, session: str, answer: Answer) -> None:
        """Add a call, answered or failed. A line that a crash has cut stays a line by itself."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = f"\n{Recorded.of(answer).model_dump_json()}\n".encode()
        with self._path(session).open("ab", buffering=0) as file:
            if file.write(line) != len(line):  # several at once would mix with those of others
                raise OSError(errno.ENOSPC, "the line does not fit")

    def refuse_more(self, session: str) -> None:
        """409 if a session is full."""
        with suppress(FileNotFoundError):
            if self._path(session).stat().st_size > _MOST_BYTES:
                why = f"session {session} has over {_MOST_BYTES >> 20} MiB; begin another"
                raise conflict(why, param="session")

    def trace(self, session: str) -> Json:
        """All calls of a session and the tokens that they made; 404 if there is no such session."""
        in_branches = {"prompt_ids", "token_ids", "logprobs", "spans"}
        told: list[Json] = []

        def answered() -> Iterator[Recorded]:
            for call in self._read(session):
                told.append(call.model_dump(exclude=in_branches))
                if call.error is None:
                    yield call

        branches = [vars(branch) for branch in branches_of(answered())]
        own = {"id": session, "object": "rollout", "calls": told}
        return own | {"branches": branches, "num_branches": len(branches)}

    def delete(self, session: str) -> None:
        try:
            self._path(session).unlink()
        except FileNotFoundError as error:
            raise not_found("session", session) from error

    def expire(self) -> None:
        """Delete the sessions in which nothing has happened for a week."""
        for path in self.folder.glob("*.jsonl"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _KEPT_S:
                    path.unlink()

    def _path(self, session: str) -> Path:
        return self.folder / f"{session}.jsonl"

    def _read(self, session: str) -> Iterator[Recorded]:
        try:
            file = self._path(session).open("rb")
        except FileNotFoundError as error:
            raise not_found("session", session) from error
        with file:
            for line in filter(bytes.strip, file):
                try:
                    yield Recorded.model_validate_json(line)
                except ValueError:
                    log.warning("a call cannot be read", extra={"session": session})
