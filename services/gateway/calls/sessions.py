"""Sessions: files in which the calls of a rollout are recorded, and the trace that they make."""

from __future__ import annotations

import errno
import json
import logging
import time
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any

from protocol.calls import Begun, Call, Terms
from protocol.messages import Message, VersionSpan
from pydantic import Field

from services.gateway.calls.desk import Answer
from services.gateway.calls.requests import Sampled
from services.gateway.errors import Problem, conflict, not_found

Json = dict[str, Any]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
_KEPT_S = 7 * 24 * 3600.0
_TERMS = b'{"terms": '
_MOST_KNOWN = 4096
_MOST_BYTES = 2**26  # of a session, in which calls are asked
log = logging.getLogger(__name__)


class Recorded(Message):
    """A call of a session, answered or failed."""

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
    messages: list[Json] | None = None  # of a chat, and ...
    tools: list[Json] = Field(default_factory=list)  # ... its tools, and ...
    chat_template_options: Json = Field(default_factory=dict)  # ... what else its template was told
    text: str = ""
    after: str | None = None  # in the file: a call whose messages and tokens come before these

    @classmethod
    def of(cls, answer: Answer) -> Recorded:
        problem = answer.problem
        return cls(
            id=answer.call.id,
            created_at=answer.asked_at,
            seconds=round(time.time() - answer.asked_at, 3),
            model=answer.call.served.name,
            finish_reason=answer.finish_reason,
            error=problem and _told(problem),
            prompt_ids=[*answer.prompt_ids],
            token_ids=[token.id for token in answer.tokens],
            logprobs=[token.logprob for token in answer.tokens],
            spans=[*answer.spans],
            messages=None if answer.call.messages is None else [*map(dict, answer.call.messages)],
            tools=[*map(dict, answer.call.tools)],
            chat_template_options=answer.call.chat_template_options,
            text=answer.text,
        )

    def behind(self, before: Recorded) -> Recorded:
        """As it was asked: behind the call that it names."""
        prompt_ids = before.prompt_ids + before.token_ids + self.prompt_ids
        messages = self.messages and [*(before.messages or ()), *self.messages]
        return self.model_copy(update={"prompt_ids": prompt_ids, "messages": messages})


def _told(problem: Problem) -> Json:
    return {"code": problem.code, "message": problem.detail, "status": problem.status_code}


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


def _write(file: IO[bytes], line: str) -> None:
    text = f"\n{line}\n".encode() if file.tell() else f"{line}\n".encode()
    if file.write(text) != len(text):  # several at once would mix with those of others
        raise OSError(errno.ENOSPC, "the line does not fit")


def _chained(before: int, token: Hashable) -> int:
    return hash((before, token))


@dataclass(frozen=True, eq=False)
class Known:
    """An answered call, as others go on from it: its tokens are those of one before, and more."""

    call_id: str
    said: int  # the hash of its turns, or of its tokens, with its reply
    given: int  # the hash of its messages
    before: Known | None
    more: array[int]

    def rest_of(self, call: Recorded, num_messages: int) -> Recorded | None:
        """What a call has behind this one; None unless it begins with exactly this one."""
        tokens, messages = self.tokens(), call.messages or []
        given, more = messages[:num_messages], messages[num_messages:]
        if call.prompt_ids[: len(tokens)] != tokens or _hash(given) != self.given:
            return None
        rest = {"prompt_ids": call.prompt_ids[len(tokens) :], "messages": more or None}
        return call.model_copy(update={"after": self.call_id, **rest})

    def tokens(self) -> list[int]:
        parts: list[array[int]] = []
        known: Known | None = self
        while known is not None:
            parts.append(known.more)
            known = known.before
        return [*chain.from_iterable(reversed(parts))]


@dataclass
class Session:
    """What is to be known of a session for its next call."""

    terms: Terms | None = None
    num_calls: int = 0
    known: dict[int, Known] = field(default_factory=dict)  # by what was said in them
    under_way: dict[str, Answer] = field(default_factory=dict)  # by the call's id

    def asked(self, call: Call, sampled: Sampled) -> Call:
        """A call as the session has it."""
        self.num_calls += 1
        changes: Json = {"begun": self._begun(call)}
        if self.terms is not None:
            changes |= {"sampling": sampled.under(self.terms, self.num_calls), "terms": self.terms}
        return call.model_copy(update=changes)

    def _begun(self, call: Call) -> Begun | None:
        hashes = _said(call.served.name, call, map(_turn, call.messages or ()))
        num, known = self._longest(hashes)
        return known and Begun(num_messages=num, token_ids=tuple(known.tokens()))

    def _longest(self, hashes: Sequence[int]) -> tuple[int, Known | None]:
        """The longest beginning that an earlier call and its reply have made, and that call."""
        for num in range(len(hashes) - 1, 0, -1):
            if (known := self.known.get(hashes[num])) is not None:
                return num, known
        return 0, None

    def place(self, call: Recorded) -> tuple[Known, Recorded]:
        """What others may go on from, and the call without what its file has of it already."""
        asked, reply = call.prompt_ids, call.token_ids
        if call.messages is not None:
            asked, reply = [*map(_turn, call.messages)], [call.text.strip()]
        hashes = _said(call.model, call, [*asked, *reply])
        num, before = self._longest(hashes[: len(asked) + 1])
        rest = before and before.rest_of(call, num - 1)
        more = array("i", (rest or call).prompt_ids + call.token_ids)
        given = _hash(call.messages or [])
        return Known(call.id, hashes[-1], given, before if rest else None, more), rest or call

    def learn(self, call: Recorded, known: Known) -> None:
        """Have others go on from a call, if it was answered."""
        if call.error is None:
            self.known[known.said] = known


def _said(model: str, call: Call | Recorded, parts: Iterable[Hashable]) -> list[int]:
    """The hash of what is said in a call before each turn or token, and behind the last."""
    told = _hash([*call.tools, call.chat_template_options])
    return [*accumulate(parts, _chained, initial=hash((model, told)))]


def _hash(told: list[Any]) -> int:
    return hash(json.dumps(told))


def _turn(turn: Mapping[str, Any]) -> str:
    """What is the same for a reply and for what a client makes of it."""
    if turn["role"] == "assistant" and not turn.get("tool_calls"):
        return turn["content"].strip()
    return json.dumps(turn, sort_keys=True)


@dataclass
class Sessions:
    folder: Path
    _known: dict[str, Session] = field(default_factory=dict)  # those that were entered last

    def open(self, name: str, terms: Terms) -> None:
        """Begin a session under terms; 409 if it has begun otherwise."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"terms": terms.model_dump(mode="json")})
        try:
            with self._path(name).open("xb", buffering=0) as file:
                _write(file, line)
            self._make_room()
            self._known[name] = Session(terms)
        except FileExistsError:
            if self.enter(name).terms != terms:
                why = f"session {name} has begun, and not under these terms; take another name"
                raise conflict(why, param="session") from None

    def enter(self, name: str) -> Session:
        """What is known of a session, which a call begins if need be; 409 if it is full."""
        try:
            if self._path(name).stat().st_size > _MOST_BYTES:
                why = f"session {name} has over {_MOST_BYTES >> 20} MiB; begin another"
                raise conflict(why, param="session")
        except FileNotFoundError:  # another gateway may have deleted it
            self._known.pop(name, None)
        if (known := self._known.get(name)) is not None:
            return known
        self._make_room()
        return self._known.setdefault(name, self._found(name))

    def _make_room(self) -> None:
        for oldest in [*self._known][: max(0, len(self._known) - _MOST_KNOWN + 1)]:
            self._known.pop(oldest, None)

    def _found(self, name: str) -> Session:
        """From its file, as after a restart."""
        found = Session()
        with suppress(FileNotFoundError), self._path(name).open("rb") as file:
            if (first := file.readline()).startswith(_TERMS):
                found.terms = Terms.model_validate(json.loads(first)["terms"])
            for call in self._read(name):
                found.num_calls += 1
                found.learn(call, found.place(call)[0])
        return found

    def record(self, name: str, answer: Answer) -> None:
        """Add a call, answered or failed. A line that a crash has cut stays a line by itself.

        What comes of an episode after its end is left out.
        """
        path = self._path(name)
        if answer.call.terms is not None and not path.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        recorded = Recorded.of(answer)
        session = self._known.get(name) or Session()
        known, line = session.place(recorded)
        with path.open("ab", buffering=0) as file:
            _write(file, line.model_dump_json())
        session.learn(recorded, known)
        session.under_way.pop(recorded.id, None)

    def trace(self, session: str) -> Json:
        """All calls of a session and the tokens that they made; 404 if there is no such session."""
        in_branches = {"prompt_ids", "token_ids", "logprobs", "spans", "after"}
        told: list[Json] = []
        under_way = self._under_way(session)  # first: what ends meanwhile is told twice, else not

        def answered() -> Iterator[Recorded]:
            for call in self._read(session):
                told.append(call.model_dump(exclude=in_branches))
                if call.error is None:
                    yield call

        branches = [vars(branch) for branch in branches_of(answered())]
        own = {"id": session, "object": "rollout", "calls": told, "under_way": under_way}
        return own | {"branches": branches, "num_branches": len(branches)}

    def _under_way(self, session: str) -> list[Json]:
        """The calls that wait, and how long nothing has come of each."""
        known, now = self._known.get(session), time.time()
        return [
            {
                "id": answer.call.id,
                "created_at": answer.asked_at,
                "seconds": round(now - answer.asked_at, 3),
                "quiet_seconds": round(time.monotonic() - answer.came_at, 3),
            }
            for answer in ([] if known is None else [*known.under_way.values()])
        ]

    def delete(self, session: str) -> Json:
        """Its trace; 404 if there is no such session."""
        trace = self.trace(session)
        self._path(session).unlink(missing_ok=True)
        self._known.pop(session, None)
        return trace | {"deleted": True}

    def expire(self) -> None:
        """Delete the sessions in which nothing has happened for a week."""
        for path in self.folder.glob("*.jsonl"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _KEPT_S:
                    path.unlink()
                    self._known.pop(path.stem, None)

    def _path(self, session: str) -> Path:
        return self.folder / f"{session}.jsonl"

    def _read(self, session: str) -> Iterator[Recorded]:
        try:
            file = self._path(session).open("rb")
        except FileNotFoundError as error:
            raise not_found("session", session) from error
        with file:
            calls = dict[str | None, Recorded]()
            for line in filter(bytes.strip, file):
                if line.startswith(_TERMS):
                    continue
                try:
                    call = Recorded.model_validate_json(line)
                    calls[call.id] = call.behind(calls[call.after]) if call.after else call
                    yield calls[call.id]
                except (ValueError, KeyError):
                    log.warning("a call cannot be read", extra={"session": session})
