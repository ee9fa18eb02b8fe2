"""``weir data import``: turn the rows of a dataset into checked tasks, each problem once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from services.data.check import check_lines, find_answer_faults
from services.data.mapping import RefusedError, Row, RowSkipped, build_fields, find_columns, flatten
from services.data.presets import Preset

# Each row may lack a column, so the columns are those of this many rows.
_NUM_SCHEMA_ROWS = 1000


@dataclass
class Draft:
    """The fields of a task and its row; equal problems have the same ``key``."""

    row: int
    key: str
    fields: dict[str, Any]

    @property
    def answer(self) -> str:
        return self.fields["answer"]

    @property
    def text(self) -> str:
        return json.dumps(self.fields, ensure_ascii=False)


@dataclass
class Imported:
    """The tasks of a dataset, and the rows left out by reason."""

    num_rows: int = 0
    drafts: list[Draft] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, list[int]] = field(default_factory=dict)

    def leave_out(self, reason: str, row: int) -> None:
        self.left_out.setdefault(reason, []).append(row)

    def report(self) -> Iterator[str]:
        """Yield the notes, and the rows left out, the most frequent reason first."""
        yield from self.notes
        reasons = sorted(self.left_out, key=lambda reason: -len(self.left_out[reason]))
        for reason in reasons:
            rows = self.left_out[reason]
            yield f"left out: {len(rows)}, {reason} (first in row {min(rows)})"


async def import_tasks(rows: Iterable[Row], preset: Preset, limit: int | None) -> Imported:
    """Return the tasks of a dataset that a job accepts, with answers that the grader can read.

    Args:
        limit: stop after this number of problems.

    Raises:
        RefusedError: if the rows lack a column, or there is no row.
    """
    imported = Imported()
    all_drafts = _read_drafts(rows, preset, imported)
    drafts = _deduplicate(all_drafts, imported, limit)
    _assign_ids(drafts, imported)
    valid: list[Draft] = []
    answers: dict[int, str] = {}
    for draft in drafts:
        text = draft.text.encode(errors="backslashreplace")
        (line,) = check_lines([text])
        if line.problems:
            imported.leave_out(line.problems[0], draft.row)
        else:
            valid.append(draft)
            answers[draft.row] = draft.answer
    faults = await find_answer_faults(answers)
    for row, fault in faults.items():
        imported.leave_out(f"answer: {fault}", row)
    imported.drafts = [draft for draft in valid if draft.row not in faults]
    return imported


def choose_held_out(drafts: Sequence[Draft], size: float, seed: int) -> set[str]:
    """Return the keys of ``size`` held-out tasks; a size below 1 is a share.

    The choice depends on the problems and the seed, not on the order of rows.
    """
    num_tasks = len(drafts)
    num_held_out = 0
    if 0 < size < 1:
        num_held_out = round(size * num_tasks)
    elif 1 <= size < num_tasks:
        num_held_out = int(size)
    if not 0 < num_held_out < num_tasks:
        raise RefusedError(f"{size:g} of {num_tasks} tasks cannot be held out")
    keys = [draft.key for draft in drafts]
    keys.sort(key=lambda key: _digest(f"{seed}:{key}"))
    return set(keys[:num_held_out])


def _read_drafts(rows: Iterable[Row], preset: Preset, imported: Imported) -> Iterator[Draft]:
    flat_rows = map(flatten, rows)
    first_rows = list(islice(flat_rows, _NUM_SCHEMA_ROWS))
    if not first_rows:
        raise RefusedError("the dataset has no row")
    columns = find_columns(preset, set().union(*first_rows))
    for number, row in enumerate(chain(first_rows, flat_rows), start=1):
        imported.num_rows = number
        try:
            fields = build_fields(columns, row)
        except RowSkipped as error:
            reason = str(error)
            imported.leave_out(reason, number)
        except RefusedError as error:
            raise RefusedError(f"row {number}, {error}") from error
        else:
            problem = fields.get("prompt") or json.dumps(fields["messages"])
            key = _digest(" ".join(problem.split()))
            yield Draft(number, key, fields)


def _deduplicate(drafts: Iterable[Draft], imported: Imported, limit: int | None) -> list[Draft]:
    """Return the first draft of each problem; none if its answers differ."""
    first_drafts: dict[str, Draft] = {}
    ambiguous: set[str] = set()
    for draft in drafts:
        first = first_drafts.setdefault(draft.key, draft)
        if first is not draft:
            imported.leave_out("the same problem again", draft.row)
            if first.answer != draft.answer:
                ambiguous.add(draft.key)
        if len(first_drafts) == limit:
            imported.notes.append(f"stopped at row {draft.row}, after {limit} problems")
            break
    for key in ambiguous:
        draft = first_drafts.pop(key)
        imported.leave_out("repeated with another answer", draft.row)
    return list(first_drafts.values())


def _assign_ids(drafts: Sequence[Draft], imported: Imported) -> None:
    """Keep the dataset's ids if every problem has its own; otherwise derive them from problems."""
    ids = {draft.fields.get("id") for draft in drafts}
    has_all_ids = None not in ids
    if has_all_ids and len(ids) == len(drafts):
        return
    if ids != {None}:
        imported.notes.append("ids made from the problems: the dataset's own are not unique")
    for draft in drafts:
        draft.fields = {"id": "", **draft.fields}
        draft.fields["id"] = draft.key[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
