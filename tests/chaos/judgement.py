"""The outcome of a run, and its comparison with that of an undisturbed run."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator, Mapping
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
_OF_TIME = (
    "second",
    "groups",
    "staleness",
    "parity",
    "bill",
)  # in the names of metrics that may differ
_SURPLUS = "surplus"  # asked for and not needed in the end
_MOST_DIFFERENCES = 12
Ledgers = Mapping[Purpose, Mapping[str, Any]]
Outcome = dict[str, Any]  # everything of a run that no fault of a machine may change, by name


def differences(outcome: Outcome, expected: Outcome) -> list[str]:
    """The first ones."""
    names = [name for name in outcome | expected if outcome.get(name) != expected.get(name)]
    return [
        f"{name}: {outcome.get(name)} instead of {expected.get(name)}"
        for name in names[:_MOST_DIFFERENCES]
    ]


async def read_outcome(stack: Stack) -> Outcome:
    """Look at everything that a run has left behind, and let its processes leave."""
    record = await stack.record()
    result = cast(Mapping[str, Any], record.result)
    ledgers = {p: _ledger(result[name]) for p, name in _LEDGERS.items() if name in result}
    data = stack.folder / "data"
    succeeded = record.state == "succeeded"
    # A process that is told to stop before it has begun is ended by the signal.
    exits = {name: s in {0, -signal.SIGTERM} for name, s in (await stack.stop()).items()}
    outcome: Outcome = {
        "state": f"{record.state} {record.error}",
        "hash of all that was learned": succeeded and exported_hash(data / "jobs" / JOB / "model"),
        "weights that are left": {path.name for path in (data / "weights").iterdir()},
        "weights were written over while they were loaded": (stack.folder / "torn").exists(),
    }
    parts = {
        "groups of": ledgers,
        "fate and digest of": _stored(stack, ledgers),
        "metric": await _metrics(stack),
        "entries of key": _keys(stack),
        "clean exit of": exits,
    }
    for kind, values in parts.items():
        outcome |= {f"{kind} {name}": value for name, value in values.items()}
    return outcome


def _ledger(account: Mapping[str, Any]) -> dict[str, Any]:
    dropped = account["dropped"]
    assert account["asked"] == account["trained"] + sum(dropped.values()) + account["under_way"]
    other_reasons = {reason: count for reason, count in dropped.items() if reason != _SURPLUS}
    return {"trained": account["trained"], "under_way": account["under_way"], **other_reasons}


def _stored(stack: Stack, ledgers: Ledgers) -> dict[str, str]:
    """Of every used group in the sample store, from all data folders."""
    used = {group_key(p, n) for p, ledger in ledgers.items() for n in range(sum(ledger.values()))}
    stored = dict.fromkeys(used, "not kept")
    for store in stack.folder.glob(f"*/jobs/{JOB}/samples"):
        for rows in all_samples(store):
            key = rows[0]["key"]
            if key in used:
                digest = f"{rows[0]['fate']} {_digest(parse_graded(rows))}"
                stored[key] = digest if stored[key] in {"not kept", digest} else "kept differently"
    return stored


def _digest(graded: GradedGroup) -> str:
    if graded.group is None:
        return str(graded.failure)
    group = graded.group
    parts = (graded.grades, group.request.seed, group.request.task.id)
    digest = hashlib.sha256(repr(parts).encode())
    for array in (group.prompt_ids, group.token_ids, group.behavior_logprobs, group.lengths):
        digest.update(array.tobytes())
    return digest.hexdigest()


async def _metrics(stack: Stack) -> dict[str, Any]:
    events: dict[str, Any] = {}
    for _, event in await stack.user.events(JOB, count=100_000):
        if event.type == "metrics":
            assert event.id not in events, f"{event.id} was told twice"
            events[event.id] = dict(_timeless(as_dict(event)))
    return events


def _timeless(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Without the names that may differ, on any level."""
    for name, value in values.items():
        if not any(part in name for part in _OF_TIME):
            yield name, dict(_timeless(value)) if isinstance(value, Mapping) else value


def _keys(stack: Stack) -> dict[str, int]:
    """The job's remaining keys in the server, and the lengths of streams."""
    with stack.server.client() as client:
        keys = [key.decode() for key in cast(list[bytes], client.keys("weir:*"))]
        return {
            key: cast(int, client.xlen(key)) if client.type(key) == b"stream" else 0
            for key in keys
            if JOB in key and not key.endswith(("events", "event_ids"))
        }
