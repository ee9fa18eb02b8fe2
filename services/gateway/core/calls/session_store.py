"""Sessions as files in which the calls of a rollout are recorded."""

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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from protocol.calls import Terms
from protocol.traces import OpenCall, Trace

from services.gateway.core.calls.pending import PendingCall
from services.gateway.core.calls.session import DAMAGED, Head, Session
from services.gateway.core.calls.trace import RecordedCall, build_branches
from services.gateway.errors import Problem, conflict, not_found

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
RETENTION_S = 7 * 24 * 3600.0  # after the last call of a session
MAX_HEAD_BYTES = 2**20
MAX_SESSION_BYTES = 2**26  # a larger session takes no more calls
MAX_SESSIONS_IN_MEMORY = 4096
log = logging.getLogger(__name__)


@dataclass
class SessionStore:
    folder: Path
    _sessions: dict[str, Session] = field(default_factory=dict)  # the last ones entered
    _lock: threading.Lock = field(default_factory=threading.Lock)  # no half first line is read

    def open(self, name: str, terms: Terms | None) -> str:
        """Begin a session and return its key; 409 if the name is taken."""
        key = secrets.token_urlsafe(32)
        head = Head(terms=terms, key=hashlib.sha256(key.encode()).hexdigest())
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with self._lock, self._path(name).open("xb", buffering=0) as file:
                self._write_head(file, name, head)
        except FileExistsError:
            reason = f"there is a session {name} already; take another name"
            raise conflict(reason, param="session") from None
        return key

    def _write_head(self, file: IO[bytes], name: str, head: Head) -> None:
        try:
            _write_line(file, json.dumps(head.model_dump(mode="json")))
        except OSError:
            self._path(name).unlink()  # half a head would be a damaged session
            raise

    async def has_key(self, name: str, digest: str) -> bool:
        """Whether there is a session with a key of this digest."""
        with suppress(Problem):
            head, _ = await asyncio.to_thread(self._read_head, name)
            return head.key == digest
        return False

    def has_terms(self, name: str) -> bool:
        """Whether a session has terms; 404 if there is none, 409 if its record is damaged."""
        head, _ = self._read_head(name)
        return head.terms is not None

    def begin(self, name: str) -> Session:
        """Return a session without terms, a new one if needed; 409 if it has terms."""
        with suppress(Problem):  # another call may have begun it
            self.open(name, None)
        session = self.enter(name)
        if session.terms is not None:
            raise conflict(f"session {name} was opened under terms meanwhile", param="session")
        return session

    def find(self, name: str) -> Session | None:
        return self.enter(name) if self._path(name).exists() else None

    def enter(self, name: str) -> Session:
        """Return a session; 404 if there is none, 409 if it is full or damaged."""
        head, num_bytes = self._read_head(name)
        if num_bytes > MAX_SESSION_BYTES:
            reason = f"session {name} has over {MAX_SESSION_BYTES >> 20} MiB; begin another"
            raise conflict(reason, param="session")
        return self._find_in_memory(name, head) or self._remember(name, self._load(name, head))

    def _read_head(self, name: str) -> tuple[Head, int]:
        """Return the first line of a session's file, and the size of the file in bytes."""
        with self._lock, self._open_file(name) as file:
            line = file.readline(MAX_HEAD_BYTES)
            num_bytes = os.fstat(file.fileno()).st_size
        return Head.parse(name, line), num_bytes

    def _find_in_memory(self, name: str, head: Head) -> Session | None:
        """Return a session, unless its name was given to another one, which has another key."""
        session = self._sessions.get(name)
        return session if session is not None and session.head == head else None

    def _remember(self, name: str, session: Session) -> Session:
        with self._lock:
            surplus = max(0, len(self._sessions) - MAX_SESSIONS_IN_MEMORY + 1)
            for oldest in [*self._sessions][:surplus]:
                self._sessions.pop(oldest, None)
            # Another thread may have entered it meanwhile.
            session = self._find_in_memory(name, session.head) or session
            self._sessions[name] = session
            return session

    def _load(self, name: str, head: Head) -> Session:
        session = Session(head)
        for call in self._read_calls(name):
            session.num_calls += 1
            answered, _ = session.split(call)
            session.remember(call, answered)
        return session

    def record(self, name: str, pending: PendingCall) -> None:
        """Add a call, answered or failed, unless its session has ended.

        A later session of the same name has other terms.
        """
        session = self._sessions.get(name)
        try:
            head, _ = self._read_head(name)
            if head.terms == pending.call.terms:
                self._append(name, self._find_in_memory(name, head) or Session(head), pending)
        except Problem as problem:
            if problem.status_code != 404:
                raise
        finally:
            if session is not None:
                session.pending.pop(pending.call.id, None)

    def _append(self, name: str, session: Session, pending: PendingCall) -> None:
        call = RecordedCall.from_pending(pending)
        answered, new_part = session.split(call)
        with self._open_file(name, "ab") as file:
            _write_line(file, new_part.model_dump_json())
        session.remember(call, answered)

    def trace(self, name: str) -> Trace:
        """Return all calls of a session and their tokens; 404 if there is no such session."""
        # Before the calls are read: a call that ends meanwhile is listed twice, else never.
        under_way = self._list_pending(name)
        calls = [*self._read_calls(name)]
        branches = build_branches(call for call in calls if call.error is None)
        return Trace(
            id=name,
            calls=tuple(calls),
            under_way=under_way,
            branches=tuple(branches),
            num_branches=len(branches),
        )

    def _list_pending(self, name: str) -> tuple[OpenCall, ...]:
        session = self._sessions.get(name)
        if session is None:
            return ()
        return tuple(
            OpenCall(
                id=pending.call.id,
                created_at=pending.created_at,
                seconds=round(time.time() - pending.created_at, 3),
                quiet_seconds=round(time.monotonic() - pending.received_at, 3),
            )
            for pending in [*session.pending.values()]
            if not pending.is_done
        )

    def delete(self, name: str) -> Trace:
        """Delete a session and return its trace, if it is readable; 404 if there is none."""
        trace = Trace(id=name)
        try:
            trace = self.trace(name)
        except Problem as problem:
            if problem.code != DAMAGED:
                raise
        self._path(name).unlink(missing_ok=True)
        self._sessions.pop(name, None)
        return trace.model_copy(update={"deleted": True})

    def expire(self) -> None:
        """Delete the sessions that have had no call for a week."""
        for path in self.folder.glob("*.jsonl"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > RETENTION_S:
                    path.unlink()
                    self._sessions.pop(path.stem, None)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _open_file(self, name: str, mode: str = "rb") -> IO[bytes]:
        """Open a session's file; 404 if there is none, since only `open` begins a session."""
        buffering = -1 if mode == "rb" else 0
        try:
            return open(self._path(name), mode, buffering, opener=_open_existing)
        except FileNotFoundError as error:
            raise not_found("session", name) from error

    def _read_calls(self, name: str) -> Iterator[RecordedCall]:
        """Read the calls of a session, but for damaged lines; 409 if its head is damaged."""
        self._read_head(name)
        with self._open_file(name) as file:
            calls: dict[str | None, RecordedCall] = {}
            file.readline()
            for line in filter(bytes.strip, file):
                try:
                    call = RecordedCall.model_validate_json(line)
                    calls[call.id] = call.restore(calls[call.after]) if call.after else call
                    yield calls[call.id]
                except (ValueError, KeyError):
                    log.warning("a call cannot be read", extra={"session": name})


def _write_line(file: IO[bytes], line: str) -> None:
    """Write a line at once, behind a line that a crash may have cut."""
    text = f"\n{line}\n" if file.tell() else f"{line}\n"
    content = text.encode()
    if file.write(content) != len(content):  # a second write could mix with another gateway's
        raise OSError(errno.ENOSPC, "the line does not fit")


def _open_existing(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_CREAT)
