"""Whether any grader that runs can do what a reward asks for."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.exchange import Exchange
from protocol.messages import Offers
from protocol.offers import lacking
from protocol.rewards import Check, Reward

from services.gateway.errors import from_lines, in_time


async def refuse_what_graders_lack(exchange: Exchange, reward: Reward, grader: str | None) -> None:
    """Refuse a reward that no grader that runs could give; while none runs, nothing is refused.

    ``grader`` is the place in the body of the grader that became the outcome, if there is one.

    Raises:
        Problem: 400 naming the field, what the graders lack, and the remedy; 503 without Redis.
    """
    statuses = await in_time(exchange.statuses())
    told = [status.offers for status in statuses.values() if status.offers is not None]
    if not told:
        return
    offers = Offers(
        verifiers=tuple(_union(each.verifiers for each in told)),
        judges=tuple(_union(each.judges for each in told)),
    )
    fields = _fields(reward, grader)
    lines = [f"{field}: {why}" for field, check in fields if (why := lacking(offers, check))]
    if lines:
        raise from_lines(lines, code="invalid_grader")


def _fields(reward: Reward, grader: str | None) -> Iterable[tuple[str, Check]]:
    for number, check in enumerate(reward.outcome):
        yield grader or f"recipe.reward.outcome.{number}", check
    for number, check in enumerate(reward.process):
        yield f"recipe.reward.process.{number}", check


def _union(parts: Iterable[Iterable[str]]) -> dict[str, None]:
    return {name: None for part in parts for name in part}
