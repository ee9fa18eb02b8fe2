"""What a run has come to, and whether it is what an undisturbed one comes to."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from protocol.messages import GradedGroup, group_key
from protocol.recipe import Purpose

from services.learner.durable.sample_rows import graded_of
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
    kept: Mapping[str, str]  # the fate and a digest of every group that was used, by key
    metrics: Mapping[str, Any]  # that were told, by event and name
    keys: Mapping[str, int]  # what is left of the job in the server, and the length of streams
    files: frozenset[str]  # folders that are left
    torn: bool  # whether weights were written over while they were loaded
    left: Mapping[str, bool]  # whether each process left in good order when it was told to

    def differences(self, other: Outcome) -> Iterator[str]:
        """What is not as in the other one, a few of each kind; of a job that failed, only that."""
        for part in fields(self) if self.state == other.state else fields(self)[:1]:
            mine, theirs = getattr(self, part.name), getattr(other, part.name)
            if isinstance(mine, Mapping):
                keys = [key for key in mine | theirs if mine.get(key) != theirs.get(key)]
                for key in keys[:_TOLD]:
                    yield f"{part.name} {key}: {mine.get(key)} instead of {theirs.get(key)}"
                if len(keys) > _TOLD:
                    yield f"{part.name}: {len(keys) - _TOLD} more"
            elif mine != theirs:
                yield f"{part.name}: {mine} instead of {theirs}"


async def outcome_of(stack: Stack) -> Outcome:
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
        kept=_kept(stack, ledgers),
        metrics=await _metrics(stack),
        keys=_keys(stack),
        files=frozenset(path.name for path in (data / "weights").iterdir()),
        torn=(stack.folder / "torn").exists(),
        # A process that is told to stop before it has begun is ended by the signal.
        left={replica: status in {0, -signal.SIGTERM} for replica, status in exit_statuses.items()},
    )


def _ledger(account: Mapping[str, Any]) -> dict[str, Any]:
    dropped = account["dropped"]
    assert account["asked"] == account["trained"] + sum(dropped.values()) + account["under_way"]
    others = {reason: count for reason, count in dropped.items() if reason != _SURPLUS}
    return {"trained": account["trained"], "under_way": account["under_way"], **others}


def _kept(stack: Stack, ledgers: Ledgers) -> dict[str, str]:
    """What the sample store has of every number that was used, wherever the data's folder was."""
    used = {group_key(p, n) for p, ledger in ledgers.items() for n in range(sum(ledger.values()))}
    kept = dict.fromkeys(used, "not kept")
    stores = stack.folder.glob(f"*/jobs/{JOB}/samples")
    for rows in (rows for store in stores for rows in all_samples(store)):
        key, fate = rows[0]["key"], rows[0]["fate"]
        if key in used:
            digest = f"{fate} {_digest(graded_of(rows))}"
            kept[key] = digest if kept[key] in {"not kept", digest} else "kept differently"
    return kept


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
    told: dict[str, Any] = {}
    for _, event in await stack.user.events(JOB, count=100_000):
        if event.type == "metrics":
            assert event.id not in told, f"{event.id} was told twice"
            told[event.id] = "told"
            told |= {f"{event.id} {name}": value for name, value in as_dict(event).items()}
    return _timeless(told)


def _timeless(told: Mapping[str, Any]) -> dict[str, Any]:
    """What was told, without the names below any level that may differ."""
    return {
        name: _timeless(value) if isinstance(value, Mapping) else value
        for name, value in told.items()
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
