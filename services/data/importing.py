"""``weir data import``: rows of a dataset become tasks, each problem once, all of them checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from services.data.check import examined, faults_of
from services.data.mapping import (
    Dropped,
    RefusedError,
    Row,
    flat,
    resolved,
    task_fields,
)
from services.data.presets import Preset

_FIRST = 1000  # rows, of which each may lack a column


@dataclass
class Draft:
    """A task to be, and the row that it comes from."""

    row: int
    key: str  # the same for equal problems
    fields: dict[str, Any]

    @property
    def text(self) -> str:
        return json.dumps(self.fields, ensure_ascii=False)


@dataclass
class Imported:
    """The tasks of a dataset, and what became of every other row."""

    num_rows: int = 0
    drafts: list[Draft] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, list[int]] = field(default_factory=dict)  # rows by reason

    def leave_out(self, reason: str, row: int) -> None:
        self.left_out.setdefault(reason, []).append(row)

    def report(self) -> Iterator[str]:
        """What was left out, and why, the most frequent reason first."""
        yield from self.notes
        by_size = sorted(self.left_out.items(), key=lambda item: -len(item[1]))
        for reason, rows in by_size:
            yield f"left out: {len(rows)}, {reason} (first in row {min(rows)})"


async def import_tasks(rows: Iterable[Row], preset: Preset, limit: int | None) -> Imported:
    """All tasks of a dataset that a job would take and whose answers the grader can read.

    Args:
        limit: the number of problems after which no more rows are read.

    Raises:
        RefusedError: if the rows have no such columns, or there is no row.
    """
    imported = Imported()
    drafts = _distinct(_drafts(rows, preset, imported), imported, limit)
    _name(drafts, imported)
    sound: list[Draft] = []
    for draft in drafts:
        (line,) = examined([draft.text.encode(errors="backslashreplace")])
        if line.problems:
            imported.leave_out(line.problems[0], draft.row)
        else:
            sound.append(draft)
    faults = await faults_of({draft.row: draft.fields["answer"] for draft in sound})
    for row, fault in faults.items():
        imported.leave_out(f"answer: {fault}", row)
    imported.drafts = [draft for draft in sound if draft.row not in faults]
    return imported


def held_out(drafts: Sequence[Draft], size: float, seed: int) -> set[str]:
    """The keys of ``size`` tasks (below 1: that share), chosen by their problems and a seed.

    So a task stays where it is when rows change their order, and mostly when others come or go.
    """
    count = 0
    if 0 < size < len(drafts):
        count = round(size * len(drafts)) if size < 1 else int(size)
    if not 0 < count < len(drafts):
        raise RefusedError(f"{size:g} of {len(drafts)} tasks cannot be held out")
    return set(
        sorted((draft.key for draft in drafts), key=lambda key: _digest(f"{seed}:{key}"))[:count]
    )


def _drafts(rows: Iterable[Row], preset: Preset, imported: Imported) -> Iterator[Draft]:
    flat_rows = map(flat, rows)
    first = list(islice(flat_rows, _FIRST))
    if not first:
        raise RefusedError("the dataset has no row")
    found = resolved(preset, set().union(*first))
    for number, row in enumerate(chain(first, flat_rows), start=1):
        imported.num_rows = number
        try:
            fields = task_fields(found, row)
        except Dropped as reason:
            imported.leave_out(str(reason), number)
        except RefusedError as error:
            raise RefusedError(f"row {number}, {error}") from error
        else:
            problem = fields.get("prompt") or json.dumps(fields["messages"])
            yield Draft(number, _digest(" ".join(problem.split())), fields)


def _distinct(drafts: Iterable[Draft], imported: Imported, limit: int | None) -> list[Draft]:
    """Each problem once, as it comes first; none at all if its answers differ."""
    first: dict[str, Draft] = {}
    ambiguous: set[str] = set()
    for draft in drafts:
        earlier = first.setdefault(draft.key, draft)
        if earlier is not draft:
            imported.leave_out("the same problem again", draft.row)
            if earlier.fields["answer"] != draft.fields["answer"]:
                ambiguous.add(draft.key)
        if len(first) == limit:
            imported.notes.append(f"stopped at row {draft.row}, after {limit} problems")
            break
    for key in ambiguous:
        imported.leave_out("repeated with another answer", first.pop(key).row)
    return list(first.values())


def _name(drafts: Sequence[Draft], imported: Imported) -> None:
    """Ids of the dataset's own if all problems have one each, else made from the problems."""
    own = {draft.fields.get("id") for draft in drafts}
    if len(own) == len(drafts) and None not in own:
        return
    if own != {None}:
        imported.notes.append("ids made from the problems: the dataset's own are not unique")
    for draft in drafts:
        draft.fields = {"id": "", **draft.fields} | {"id": draft.key[:16]}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
