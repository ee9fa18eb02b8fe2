"""Sessions: files in which the calls of a rollout are recorded, and the trace that they make."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import os
import secrets
import threading
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
from pydantic import Field, ValidationError

from services.gateway.api.calls.requests import Sampled
from services.gateway.core.calls.desk import Answer
from services.gateway.errors import NO_RETRY, Problem, conflict, not_found

Json = dict[str, Any]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
DAMAGED = "session_damaged"
_KEPT_S = 7 * 24 * 3600.0
_MAX_TERMS_BYTES = 2**20
_MOST_KNOWN = 4096
_MOST_BYTES = 2**26  # of a session, in which calls are asked
log = logging.getLogger(__name__)


class Head(Message):
    """The first line of a session's file."""

    terms: Terms | None
    key: str = ""  # the SHA-256 of the session's key; sessions of earlier releases have none

    @classmethod
    def parse(cls, session: str, line: bytes) -> Head:
        """What the line says; 409 if it cannot be read, since then the terms are not known."""
        try:
            return cls.model_validate_json(line)
        except ValidationError as error:
            log.warning("the record of a session is damaged", extra={"session": session})
            why = f"the record of session {session} is damaged: its first line cannot be read, so "
            why += "its terms are not known; DELETE it with an admin's key, and open another"
            raise Problem(409, why, param="session", code=DAMAGED, headers=NO_RETRY) from error


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

    head: Head
    num_calls: int = 0
    known: dict[int, Known] = field(default_factory=dict)  # by what was said in them
    under_way: dict[str, Answer] = field(default_factory=dict)  # by the call's id

    @property
    def terms(self) -> Terms | None:
        return self.head.terms

    def begin(self, answers: Iterable[Answer]) -> None:
        all_answers = (*self.under_way.values(), *answers)
        self.under_way = {each.call.id: each for each in all_answers if not each.is_done}

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
    _lock: threading.Lock = field(default_factory=threading.Lock)  # nobody reads half a first line

    def open(self, name: str, terms: Terms | None) -> str:
        """Begin a session, under terms or none; returns its key. 409 if there is one already."""
        key = secrets.token_urlsafe(32)
        head = Head(terms=terms, key=_digest(key.encode()))
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with self._lock, self._path(name).open("xb", buffering=0) as file:
                self._write_head(file, name, head)
        except FileExistsError:
            why = f"there is a session {name} already; take another name"
            raise conflict(why, param="session") from None
        return key

    def _write_head(self, file: IO[bytes], name: str, head: Head) -> None:
        try:
            _write(file, json.dumps(head.model_dump(mode="json")))
        except OSError:
            self._path(name).unlink()  # half a head would be a damaged session
            raise

    async def has_key(self, name: str, digest: str) -> bool:
        """Whether there is a session whose key has this digest."""
        with suppress(Problem):
            return (await asyncio.to_thread(self._head, name))[0].key == digest
        return False

    def has_terms(self, name: str) -> bool:
        """404 if there is no such session, 409 if its record is damaged."""
        return self._head(name)[0].terms is not None

    def begin(self, name: str) -> Session:
        """A session without terms; 409 if there is one that has them."""
        with suppress(Problem):  # another call may have begun it
            self.open(name, None)
        session = self.enter(name)
        if session.terms is not None:
            raise conflict(f"session {name} was opened under terms meanwhile", param="session")
        return session

    def find(self, name: str) -> Session | None:
        return self.enter(name) if self._path(name).exists() else None

    def enter(self, name: str) -> Session:
        """What is known of a session; 404 if there is none, 409 if it is full or damaged."""
        head, size = self._head(name)
        if size > _MOST_BYTES:
            why = f"session {name} has over {_MOST_BYTES >> 20} MiB; begin another"
            raise conflict(why, param="session")
        return self._current(name, head) or self._remember(name, self._load(name, head))

    def _head(self, name: str) -> tuple[Head, int]:
        """What the first line of a session's file says, and the size in bytes."""
        with self._lock, self._file(name) as file:
            line, size = file.readline(_MAX_TERMS_BYTES), os.fstat(file.fileno()).st_size
        return Head.parse(name, line), size

    def _current(self, name: str, head: Head) -> Session | None:
        """A session, unless another was begun later under its name, which has another key."""
        known = self._known.get(name)
        return known if known is not None and known.head == head else None

    def _remember(self, name: str, session: Session) -> Session:
        with self._lock:
            for oldest in [*self._known][: max(0, len(self._known) - _MOST_KNOWN + 1)]:
                self._known.pop(oldest, None)
            if (known := self._current(name, session.head)) is None:  # entered meanwhile
                known = self._known[name] = session
            return known

    def _load(self, name: str, head: Head) -> Session:
        """From its file, as after a restart."""
        session = Session(head)
        for call in self._read(name):
            session.num_calls += 1
            session.learn(call, session.place(call)[0])
        return session

    def record(self, name: str, answer: Answer) -> None:
        """Add a call, answered or failed. A line that a crash has cut stays a line by itself.

        What comes of a session after its end is left out, also if another has its name now.
        """
        session = self._known.get(name)
        try:
            head, _ = self._head(name)
            if head.terms == answer.call.terms:
                self._append(name, self._current(name, head) or Session(head), answer)
        except Problem as problem:
            if problem.status_code != 404:
                raise
        finally:
            if session is not None:
                session.under_way.pop(answer.call.id, None)

    def _append(self, name: str, session: Session, answer: Answer) -> None:
        recorded = Recorded.of(answer)
        known, line = session.place(recorded)
        with self._file(name, "ab") as file:
            _write(file, line.model_dump_json())
        session.learn(recorded, known)

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
        answers = [] if known is None else [*known.under_way.values()]
        return [
            {
                "id": answer.call.id,
                "created_at": answer.asked_at,
                "seconds": round(now - answer.asked_at, 3),
                "quiet_seconds": round(time.monotonic() - answer.came_at, 3),
            }
            for answer in answers
            if not answer.is_done
        ]

    def delete(self, session: str) -> Json:
        """Its trace, of a damaged one nothing; 404 if there is no such session."""
        trace: Json = {"id": session, "object": "rollout"}
        try:
            trace |= self.trace(session)
        except Problem as problem:
            if problem.code != DAMAGED:
                raise
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

    def _file(self, session: str, mode: str = "rb") -> IO[bytes]:
        """404 if there is none: nothing but `open` begins a session."""
        try:
            buffering = -1 if mode == "rb" else 0
            return open(self._path(session), mode, buffering, opener=_open_existing)
        except FileNotFoundError as error:
            raise not_found("session", session) from error

    def _read(self, session: str) -> Iterator[Recorded]:
        """409 if the record is damaged; a call of it that cannot be read costs no others."""
        self._head(session)
        with self._file(session) as file:
            calls = dict[str | None, Recorded]()
            file.readline()
            for line in filter(bytes.strip, file):
                try:
                    call = Recorded.model_validate_json(line)
                    calls[call.id] = call.behind(calls[call.after]) if call.after else call
                    yield calls[call.id]
                except (ValueError, KeyError):
                    log.warning("a call cannot be read", extra={"session": session})


def _open_existing(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_CREAT)


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
