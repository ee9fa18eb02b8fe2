"""``weir track``: write the events of jobs to trackers, each event once.

What a tracker has is noted in a file, so that a process that is started again goes on from there.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from typing import Any

from services.chassis.deployment import home_dir
from weir.client import WeirClient, WeirError
from weir.trackers import TRACKERS, Entry, Run, Tracker

_FINAL = {"succeeded", "failed", "cancelled"}
_PAUSE_S = 2.0
_BATCH = 500  # events
_MOST_AT_RISK = 2000  # events that a killed process may have to write again: they must be there
_NEWEST = 100  # jobs
_NOT_FOUND = 404
_GATEWAY_IS_AWAY = {None, 500, 502, 503, 504}
Json = dict[str, Any]


class BadTarget(Exception):
    """There is no such tracker, or its library is not installed; the text names the remedy."""


@dataclass(frozen=True)
class Target:
    """A tracker, and what it calls the place where runs are kept: a folder, a project."""

    kind: str
    where: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``tensorboard:DIR`` and the like.

        Raises:
            BadTarget: if it is none, or the tracker's library is missing.
        """
        kind, _, where = text.partition(":")
        if kind not in TRACKERS or not where:
            known = ", ".join(f"{name}:…" for name in TRACKERS)
            raise BadTarget(f"--to {text!r}: say where runs go, as one of {known}")
        module, package = TRACKERS[kind].needs
        if find_spec(module) is None:
            raise BadTarget(f"--to {text}: {module} is not installed; `pip install {package}`")
        return cls(kind, where)

    @property
    def notes(self) -> Path:
        if self.kind == "tensorboard":
            return Path(self.where)
        where = re.sub(r"(?<=://)[^/@]*@", "", self.where)  # a password is for nobody's eyes
        return home_dir(os.environ) / "trackers" / self.kind / re.sub(r"[^\w.-]+", "-", where)


class Track:
    """One job in one tracker, which is opened when there is something to write."""

    def __init__(self, target: Target, job: Json) -> None:
        self._target = target
        self._run = Run(job["id"], job["weir"]["recipe"], job["created_at"])
        self._note_path = target.notes / f"{self._run.file_name}.json"
        self._note: Json = {"after": None, "ended": False, "place": {}}
        if self._note_path.is_file():
            self._note = json.loads(self._note_path.read_text(encoding="utf-8"))
        self._after: str | None = self._note["after"]  # the last event that was written
        self._tracker: Tracker | None = None
        self._written = 0  # events, since it was opened

    def go_on(self, weir: WeirClient, status: str) -> None:
        """Write what is new of the job, which had this status before."""
        if self._note["ended"] and status in _FINAL:
            return
        events = weir.past_events(self._run.job_id, after=self._after)
        while batch := list(islice(events, _BATCH)):
            self._write(batch)
        if status in _FINAL and self._after is not None:
            self._opened().close(status)
            self._keep_note(after=self._after, ended=True)
            self._tracker = None

    def leave(self) -> None:
        if self._tracker is not None:
            self._tracker.close(None)
            self._keep_note(after=self._after)
            self._tracker = None

    def _write(self, batch: Sequence[Json]) -> None:
        tracker = self._opened()
        tracker.write([entry for event in batch if (entry := entry_of(event))])
        self._after = batch[-1]["id"]
        self._written += len(batch)
        if tracker.is_durable:
            self._keep_note(after=self._after)
        elif self._written >= _MOST_AT_RISK:
            self.leave()

    def _opened(self) -> Tracker:
        if self._tracker is None:
            opened = TRACKERS[self._target.kind]
            self._tracker = opened(self._target.where, self._run, self._note["place"])
            self._written = 0
            self._keep_note(ended=False)
        return self._tracker

    def _keep_note(self, **changes: Any) -> None:
        place = self._tracker.place() if self._tracker else {}
        self._note = {**self._note, **changes, "place": place}
        unfinished = self._note_path.with_suffix(".unfinished")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(self._note), encoding="utf-8")
        unfinished.replace(self._note_path)


def track(
    weir: WeirClient,
    targets: Sequence[Target],
    find_jobs: Callable[[], Iterable[Json]],
    *,
    until_all_ended: bool,
    pause_s: float = _PAUSE_S,
) -> None:
    """Write what jobs tell to every target, for ever or until they have ended.

    Waits for: new events. Unblocked by: the gateway, which it asks every two seconds, however long
    that is away; or an interrupt, after which another call goes on where this one was.

    Raises:
        WeirError: if the gateway refuses.
    """
    tracks: dict[tuple[Target, str], Track] = {}
    unwritten: dict[str, Json] = {}  # also of a round that the gateway's absence broke off
    is_away = False
    try:
        while True:
            try:
                unwritten |= {job["id"]: job for job in find_jobs()}
                for job, target in product(unwritten.values(), targets):
                    key = target, job["id"]
                    tracks[key] = tracks.get(key) or Track(target, job)
                    _go_on_if_there(tracks[key], weir, job["status"])
                if until_all_ended and all(job["status"] in _FINAL for job in unwritten.values()):
                    return
                unwritten, is_away = {}, False
            except WeirError as error:
                if error.status not in _GATEWAY_IS_AWAY:
                    raise
                if not is_away:
                    print(f"weir: {error}; this goes on when it answers", file=sys.stderr)
                is_away = True
            time.sleep(pause_s)
    finally:
        for one in tracks.values():
            one.leave()


def _go_on_if_there(one: Track, weir: WeirClient, status: str) -> None:
    try:
        one.go_on(weir, status)
    except WeirError as error:
        if error.status != _NOT_FOUND:
            raise
        one.leave()  # the job was deleted after it had been listed


@dataclass
class BegunJobs:
    """Finds every job that has begun and not ended, and the newest of those that have ended.

    The first call looks at all jobs, the later ones at the newest and at those that had not ended.
    """

    weir: WeirClient
    newest: int = _NEWEST
    _unfinished: set[str] | None = None
    _seen: set[str] = field(default_factory=set)

    def __call__(self) -> list[Json]:
        """The jobs.

        Raises:
            WeirError: if the gateway refuses, or does not answer.
        """
        found: dict[str, Json] = {}
        is_first, seen = self._unfinished is None, set[str]()
        for place, job in enumerate(self.weir.all_jobs()):
            is_new = job["id"] not in self._seen
            if not (is_first or is_new or place < self.newest):
                break
            seen.add(job["id"])
            if place < self.newest or (is_new and not is_first) or job["status"] not in _FINAL:
                found[job["id"]] = job
        self._seen |= seen
        for job_id in (self._unfinished or set()) - found.keys():
            try:
                found[job_id] = self.weir.job(job_id)
            except WeirError as error:
                if error.status != _NOT_FOUND:
                    raise
        self._unfinished = {job_id for job_id, job in found.items() if job["status"] not in _FINAL}
        return [job for job in found.values() if job["status"] != "queued"]


def entry_of(event: Mapping[str, Any]) -> Entry | None:
    """What an event says to a tracker; None if that is nothing."""
    data, created_at = event["data"], event["created_at"]
    other = data.get("other_evaluation")
    if event["type"] == "message" and other is None:
        if event["level"] == "info":
            return None
        return Entry(created_at, "step", 0, {}, event["level"], event["message"])
    if other is not None:
        numbers, axis, prefix = other, "step", f"evaluation/{other['name']}/"
    elif "evaluation" in data:
        numbers, axis, prefix = data["evaluation"], "step", "evaluation/"
    elif "pretrain_step" in data:
        numbers, axis, prefix = data, "pretrain/step", "pretrain/"
    else:
        numbers, axis, prefix = data, "step", ""
    step = data.get("pretrain_step", data.get("step", 0))
    found = dict(_numbers(numbers, prefix))
    for name in ("step", f"{prefix}step", "pretrain/pretrain_step"):
        found.pop(name, None)
    return Entry(created_at, axis, step, found)


def _numbers(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Every number below ``data`` by its path; no tracker refuses the characters of these."""
    for name, value in data.items():
        path = prefix + re.sub(r"[^\w.-]", "_", name.replace("@", "_at_"))
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, float(value)
