"""What is known of a job's samples without reading their text: filtered, ordered, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from protocol.recipe import Purpose
from protocol.samples import SampleFacts
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.errors import Problem

_NUMBERS = ("accuracy", "process", "reward", "advantage", "surprise", "parity_gap")
_OF_FACTS = ("length", "truncated", *_NUMBERS)
_COLUMNS = ("index", *_OF_FACTS)
_ROW = np.dtype([(name, "<f8") for name in _COLUMNS])  # NaN: unknown, or there is no response
_RANK = {purpose: rank for rank, purpose in enumerate(Purpose)}


class Order(StrEnum):
    """What comes first in a list of samples."""

    OLDEST = "oldest"
    NEWEST = "newest"
    WRONG = "wrong"  # of wrong ones, the most confident
    REWARDED = "rewarded"
    SURPRISING = "surprising"
    PARITY = "parity"


class SampleFilter(BaseModel):
    """Which samples are wanted; one that a filter cannot be answered for is not."""

    model_config = ConfigDict(extra="forbid")

    step: int | None = Field(default=None, ge=0)
    purpose: Purpose | None = None
    task: str | None = None
    key: str | None = None
    fate: str | None = None
    correct: bool | None = None
    ungradable: bool | None = None
    truncated: bool | None = None
    zero_advantage: bool | None = None


class Group(NamedTuple):
    """A group of the catalog, and where its record begins."""

    key: str
    purpose: Purpose
    number: int
    step: int
    attempt: int
    fate: str
    task_id: str
    failure: str | None
    created_at: float
    rows: int
    segment: str
    begin: int


@dataclass(frozen=True)
class Catalog:
    """Groups, and one row per response; a group that failed has one row without numbers."""

    groups: Sequence[Group] = ()
    # [row], the groups' one after another
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, _ROW))

    @cached_property
    def by_key(self) -> dict[str, Group]:
        """Every group by its key."""
        return {group.key: group for group in self.groups}

    @cached_property
    def group_of(self) -> np.ndarray:
        """[row], the place of its group."""
        return np.repeat(np.arange(len(self.groups)), [group.rows for group in self.groups])

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Counts of the whole catalog."""
        steps = [group.step for group in self.groups]
        return {
            "groups": len(self.groups),
            "responses": int(np.count_nonzero(~np.isnan(self.rows["index"]))),
            "first_step": min(steps, default=None),
            "last_step": max(steps, default=None),
            "fates": Counter(group.fate for group in self.groups),
            "purposes": Counter(group.purpose for group in self.groups),
        }

    def select(self, wanted: SampleFilter, order: Order, after: str | None) -> np.ndarray:
        """The rows that are wanted, in order, from the first one after the cursor ``after``.

        Raises:
            Problem: 400 if the cursor is not one of this order.
        """
        ranks = self._ranks[order]
        chosen = self._wanted(wanted) & ~np.isnan(ranks[0])
        if after is not None:
            chosen &= _beyond(ranks, _place(after, order, len(ranks)))
        (rows,) = np.nonzero(chosen)
        return rows[np.lexsort([rank[rows] for rank in reversed(ranks)])]

    def cursor(self, row: int, order: Order) -> str:
        """The place of a row in an order, which stays true when others come and go."""
        return ",".join([order, *(f"{rank[row]:.17g}" for rank in self._ranks[order])])

    def response(self, row: int) -> dict[str, Any]:
        """A row as the list of samples shows it."""
        group, values = self.groups[self.group_of[row]], self.rows[row]
        index, length, truncated, *numbers = (
            None if np.isnan(value) else value for value in values.tolist()
        )
        return {
            "id": group.key if index is None else f"{group.key}/{index:.0f}",
            "object": "fine_tuning.job.sample",
            "key": group.key,
            "index": None if index is None else int(index),
            "purpose": group.purpose,
            "step": group.step,
            "attempt": group.attempt,
            "task_id": group.task_id,
            "fate": group.fate,
            "failure": group.failure,
            "created_at": group.created_at,
            **dict(zip(_NUMBERS, numbers, strict=True)),
            "length": None if length is None else int(length),
            "truncated": None if truncated is None else bool(truncated),
        }

    @cached_property
    def _ranks(self) -> dict[Order, list[np.ndarray]]:
        """What each order sorts by, most important first; NaN in the first one: not in it."""
        places = [(group.step, _RANK[group.purpose], group.number) for group in self.groups]
        by_group = np.array(places, dtype=float).reshape(-1, 3)[self.group_of]
        step, purpose, number = by_group.T
        rows = self.rows
        place = [step, purpose, number, np.nan_to_num(rows["index"])]
        surprise, advantage = rows["surprise"], np.nan_to_num(rows["advantage"], nan=-np.inf)
        return {
            Order.OLDEST: place,
            Order.NEWEST: [-step, -purpose, -number, place[-1]],
            Order.WRONG: [np.where(rows["accuracy"] < 1, surprise, np.nan), *place],
            Order.REWARDED: [-rows["reward"], -advantage, *place],
            Order.SURPRISING: [-surprise, *place],
            Order.PARITY: [-rows["parity_gap"], *place],
        }

    @cached_property
    def _answers(self) -> dict[str, np.ndarray]:
        """[row] for each filter of responses: 1, 0, or NaN where there is no answer."""
        accuracy, advantage = self.rows["accuracy"], self.rows["advantage"]
        no_response = np.isnan(self.rows["index"])
        return {
            "correct": np.where(np.isnan(accuracy), np.nan, accuracy == 1),
            "ungradable": np.where(no_response, np.nan, np.isnan(accuracy)),
            "truncated": self.rows["truncated"],
            "zero_advantage": np.where(np.isnan(advantage), np.nan, advantage == 0),
        }

    def _wanted(self, wanted: SampleFilter) -> np.ndarray:
        given = wanted.model_dump(include=set(SampleFilter.model_fields), exclude_none=True)
        answers = [(self._answers[name], given.pop(name)) for name in self._answers & given.keys()]
        if "task" in given:
            given["task_id"] = given.pop("task")
        of_groups = (
            all(getattr(group, name) == value for name, value in given.items())
            for group in self.groups
        )
        chosen = np.fromiter(of_groups, bool, len(self.groups))[self.group_of]
        for answer, value in answers:
            chosen &= answer == value
        return chosen


def catalog_of(segment: str, found: Iterable[tuple[int, SampleFacts]]) -> Catalog:
    """A catalog of records: the facts of each, and the byte of the segment where it begins."""
    groups: list[Group] = []
    numbers: list[float | None] = []
    values = attrgetter(*_OF_FACTS)
    for begin, facts in found:
        groups.append(_group(segment, begin, facts))
        for index, response in enumerate(facts.responses):
            numbers += [index, *values(response)]
        if not facts.responses:
            numbers += [None] * len(_COLUMNS)
    return Catalog(groups, np.array(numbers, dtype="<f8").view(_ROW))


def joined(catalogs: Sequence[Catalog]) -> Catalog:
    """One catalog of all; where a key comes twice the last one counts."""
    groups = [group for catalog in catalogs for group in catalog.groups]
    whole = Catalog(groups, np.concatenate([Catalog().rows, *(each.rows for each in catalogs)]))
    last = {group.key: place for place, group in enumerate(groups)}
    if len(last) == len(groups):
        return whole
    stays = np.zeros(len(groups), bool)
    stays[list(last.values())] = True
    kept = [group for group, stay in zip(groups, stays, strict=True) if stay]
    return Catalog(kept, whole.rows[stays[whole.group_of]])


def _group(segment: str, begin: int, facts: SampleFacts) -> Group:
    return Group(
        key=facts.key,
        purpose=facts.purpose,
        number=facts.number,
        step=facts.step,
        attempt=facts.attempt,
        fate=facts.fate,
        task_id=facts.task_id,
        failure=facts.failure,
        created_at=facts.created_at,
        rows=max(1, len(facts.responses)),
        segment=segment,
        begin=begin,
    )


def _place(cursor: str, order: Order, ranks: int) -> list[float]:
    name, *numbers = cursor.split(",")
    try:
        place = [float(number) for number in numbers]
    except ValueError:
        place = []
    if name != order or len(place) != ranks:
        message = f"after: {cursor!r} is not the last_id of a list of samples in the order {order}"
        raise Problem(400, message, param="after")
    return place


def _beyond(ranks: Sequence[np.ndarray], place: Sequence[float]) -> np.ndarray:
    """[row], whether it comes after a place: as tuples are compared."""
    beyond, equal = np.zeros(len(ranks[0]), bool), np.ones(len(ranks[0]), bool)
    for rank, number in zip(ranks, place, strict=True):
        beyond |= equal & (rank > number)
        equal &= rank == number
    return beyond
