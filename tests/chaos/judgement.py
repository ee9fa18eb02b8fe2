"""The outcome of a run, and its comparison with that of an undisturbed run."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from protocol.messages import GradedGroup, group_key
from protocol.recipe import Purpose

from services.learner.durable.sample_rows import parse_graded
from tests.builders import as_dict
from tests.chaos.hash_team import exported_hash
from tests.chaos.job import JOB
from tests.chaos.stack import Stack
from tests.kept_samples import all_samples

_LEDGERS = {  # in the result of a job
    Purpose.TRAIN: "groups",
    Purpose.EVAL: "evaluation_groups",
    Purpose.PRETRAIN: "pretraining_groups",
}
_OF_TIME = ("second", "groups", "staleness", "parity")  # in the names of metrics that may differ
_SURPLUS = "surplus"  # asked for and not needed in the end
_TOLD = 3
Ledgers = Mapping[Purpose, Mapping[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """Everything of a run that no fault of a machine may change."""

    state: str
    model: str  # the hash of everything that was learned
    ledgers: Ledgers  # trained and dropped, by purpose
    stored: Mapping[str, str]  # the fate and a digest of every used group, by key
    metrics: Mapping[str, Any]  # by event and name
    keys: Mapping[str, int]  # the job's remaining keys in the server, and lengths of streams
    files: frozenset[str]  # remaining folders
    torn: bool  # whether weights were written over while they were loaded
    exited_cleanly: Mapping[str, bool]  # by process, after a stop

    def differences(self, other: Outcome) -> Iterator[str]:
        """Return a few differences of each kind; only the state if that differs."""
        for part in fields(self) if self.state == other.state else fields(self)[:1]:
            mine = getattr(self, part.name)
            theirs = getattr(other, part.name)
            if isinstance(mine, Mapping):
                keys = [key for key in mine | theirs if mine.get(key) != theirs.get(key)]
                for key in keys[:_TOLD]:
                    yield f"{part.name} {key}: {mine.get(key)} instead of {theirs.get(key)}"
                if len(keys) > _TOLD:
                    yield f"{part.name}: {len(keys) - _TOLD} more"
            elif mine != theirs:
                yield f"{part.name}: {mine} instead of {theirs}"


async def read_outcome(stack: Stack) -> Outcome:
    """Look at everything that a run has left behind, and let its processes leave."""
    record = await stack.record()
    result = cast(Mapping[str, Any], record.result)
    ledgers = {p: _ledger(result[name]) for p, name in _LEDGERS.items() if name in result}
    data = stack.folder / "data"
    succeeded = record.state == "succeeded"
    exit_statuses = await stack.stop()
    return Outcome(
        state=f"{record.state} {record.error}",
        model=exported_hash(data / "jobs" / JOB / "model") if succeeded else "",
        ledgers=ledgers,
        stored=_kept(stack, ledgers),
        metrics=await _metrics(stack),
        keys=_keys(stack),
        files=frozenset(path.name for path in (data / "weights").iterdir()),
        torn=(stack.folder / "torn").exists(),
        # A process that is told to stop before it has begun is ended by the signal.
        exited_cleanly={
            replica: status in {0, -signal.SIGTERM} for replica, status in exit_statuses.items()
        },
    )


def _ledger(account: Mapping[str, Any]) -> dict[str, Any]:
    dropped = account["dropped"]
    assert account["asked"] == account["trained"] + sum(dropped.values()) + account["under_way"]
    other_jobs = {reason: count for reason, count in dropped.items() if reason != _SURPLUS}
    return {"trained": account["trained"], "under_way": account["under_way"], **other_jobs}


def _kept(stack: Stack, ledgers: Ledgers) -> dict[str, str]:
    """Return the sample store's content for every used number, from all data folders."""
    used = {group_key(p, n) for p, ledger in ledgers.items() for n in range(sum(ledger.values()))}
    stored = dict.fromkeys(used, "not kept")
    stores = stack.folder.glob(f"*/jobs/{JOB}/samples")
    for rows in (rows for store in stores for rows in all_samples(store)):
        key = rows[0]["key"]
        fate = rows[0]["fate"]
        if key in used:
            digest = f"{fate} {_digest(parse_graded(rows))}"
            stored[key] = digest if stored[key] in {"not kept", digest} else "kept differently"
    return stored


def _digest(graded: GradedGroup) -> str:
    if graded.group is None:
        return str(graded.failure)
    group = graded.group
    words = (graded.grades, group.request.seed, group.request.task.id)
    digest = hashlib.sha256(repr(words).encode())
    for array in (group.prompt_ids, group.token_ids, group.behavior_logprobs, group.lengths):
        digest.update(array.tobytes())
    return digest.hexdigest()


async def _metrics(stack: Stack) -> dict[str, Any]:
    events: dict[str, Any] = {}
    for _, event in await stack.user.events(JOB, count=100_000):
        if event.type == "metrics":
            assert event.id not in events, f"{event.id} was told twice"
            events[event.id] = "told"
            events |= {f"{event.id} {name}": value for name, value in as_dict(event).items()}
    return _timeless(events)


def _timeless(events: Mapping[str, Any]) -> dict[str, Any]:
    """Return the events without the names that may differ, on any level."""
    return {
        name: _timeless(value) if isinstance(value, Mapping) else value
        for name, value in events.items()
        if not any(part in name for part in _OF_TIME)
    }


def _keys(stack: Stack) -> dict[str, int]:
    with stack.server.client() as client:
        keys = [key.decode() for key in cast(list[bytes], client.keys("weir:*"))]
        return {
            key: cast(int, client.xlen(key)) if client.type(key) == b"stream" else 0
            for key in keys
            if JOB in key and not key.endswith(("events", "event_ids"))
        }
