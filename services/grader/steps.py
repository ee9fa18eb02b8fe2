"""The steps of a text, each with its verdict: plain sums that are right at once, else in the pool.

A step that hangs or crashes a worker is searched for by halves, so that it costs only itself as
long as the search may go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from services.grader.equations import right_sums
from services.grader.pool import Cause, Failed, Value
from services.grader.tools import Tools

MAX_STEPS = 5_000
WARM_UP = "services.grader.relations.judging:warm_up"

_JUDGE = "services.grader.relations.judging:judge"
_CHOSEN = "services.grader.relations.judging:chosen"
_PLACES = "services.grader.relations.judging:places"
_PLAIN_CHARS = 5_000  # longer texts are read in the pool: the service must show life meanwhile
_DEADLINE_S = 20.0
_MAX_SEARCHES = 24

Verdict = Literal["right", "wrong", "open", "too_hard"]
_Judged = tuple[str, Verdict, str, int, int, str]


class Step(NamedTuple):
    """An equation or inequality; equal ones have the same identity, however they are written.

    It stands from ``start`` to before ``end`` in its text; where that is not known, both are 0.
    """

    text: str
    verdict: Verdict
    identity: str
    start: int = 0
    end: int = 0
    note: str = ""


class NotRead(Exception):
    """The system could not read a text; nothing is known about it."""


async def steps(text: str, tools: Tools, problem: str = "") -> list[Step]:
    """The steps of a text, in order; past `MAX_STEPS` it is not read further.

    The ``problem`` may define what ``*`` is.

    Raises:
        NotRead: if the pool failed, through no fault of the text.
    """
    if len(text) <= _PLAIN_CHARS and (sums := right_sums(text)) is not None:
        return [Step(each.group(), "right", each.group(), *each.span()) for each in sums]
    arguments = (text, 0, MAX_STEPS + 1, problem)
    outcome = await tools.pool.run(_JUDGE, *arguments, deadline_s=_DEADLINE_S)
    if isinstance(outcome, Value):
        return _made(outcome)
    return await _Search(text, problem, tools).all_steps(outcome)


def distinct(found: Iterable[Step]) -> list[Step]:
    """The first of all that are the same."""
    by_identity: dict[str, Step] = {}
    for step in found:
        by_identity.setdefault(step.identity, step)
    return list(by_identity.values())


def _made(outcome: Value) -> list[Step]:
    return [Step(*judged) for judged in cast(list[_Judged], outcome.value)]


@dataclass
class _Search:
    """Finds what hangs or crashes: every half that fails is halved, until it is one relation."""

    text: str
    problem: str
    tools: Tools
    calls: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)

    async def all_steps(self, failed: Failed) -> list[Step]:
        """The steps of a text that could not be judged in one call."""
        _raise_if_starved(failed, _DEADLINE_S)
        chosen = await self._call(_CHOSEN, self.text, self.problem)
        notation = cast(int, chosen.value) if isinstance(chosen, Value) else 0
        located = await self._call(_PLACES, self.text, self.problem, notation)
        if isinstance(located, Failed):
            return [_too_hard(0, 0)]
        self.places = cast(list[tuple[int, int]], located.value)[: MAX_STEPS + 1]
        return await self._between(0, len(self.places), notation)

    async def _between(self, start: int, stop: int, notation: int) -> list[Step]:
        if start >= stop:
            return []
        if self.calls >= _MAX_SEARCHES:
            return [_too_hard(start, stop)]
        outcome = await self._call(_JUDGE, self.text, start, stop, self.problem, notation)
        if isinstance(outcome, Value):
            return _made(outcome)
        if stop - start == 1:
            hard = _too_hard(start, stop, self.places[start])
            return [] if outcome.cause is Cause.ERROR else [hard]
        middle = (start + stop) // 2
        return [
            *await self._between(start, middle, notation),
            *await self._between(middle, stop, notation),
        ]

    async def _call(self, function: str, *arguments: str | int) -> Value | Failed:
        self.calls += 1
        deadline_s = self.tools.compare_deadline_s
        run = self.tools.pool.run
        outcome = await run(function, *arguments, deadline_s=deadline_s, suspect=True)
        _raise_if_starved(outcome, deadline_s)
        return outcome


def _too_hard(start: int, stop: int, place: tuple[int, int] = (0, 0)) -> Step:
    text = f"too hard: {start} to {stop}"
    return Step(text, "too_hard", text, *place)


def _raise_if_starved(outcome: Value | Failed, deadline_s: float) -> None:
    if isinstance(outcome, Failed) and outcome.is_machines_fault(deadline_s):
        raise NotRead(outcome.detail)
