"""Several verdicts on one response become one score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from protocol.messages import Graded, Score, Ungradable

from services.grader.judge.form import ANALYSIS, Verdict
from services.grader.judge.judge import Answer
from services.grader.judge.question import as_utf8

_LOW = 0.5  # a score below has a reason


def mean_score(
    answers: Sequence[Answer],
    worth: Callable[[Verdict], float],
    parts: Callable[[Verdict], Mapping[str, float]],
) -> Score:
    """The mean of what the verdicts are worth, if at least half of the samples have one.

    A sample without a verdict is left out, as if it had not been asked for. Where most are without,
    what remains would be chance, and the response is ungradable for their commonest reason.
    """
    verdicts = [answer for answer in answers if not isinstance(answer, Ungradable)]
    if not verdicts or 2 * len(verdicts) < len(answers):
        reasons = Counter(each.reason for each in answers if isinstance(each, Ungradable))
        return Ungradable(reason=reasons.most_common(1)[0][0])
    value = fmean(map(worth, verdicts))
    each_part = [parts(verdict) for verdict in verdicts]
    means = {name: fmean(part[name] for part in each_part) for name in each_part[0]}
    return Graded(
        value=value,
        reason="judged_low" if value < _LOW else None,
        breakdown={**means, "samples": len(verdicts)},
        comments=_comments([str(verdict.get(ANALYSIS, "")) for verdict in verdicts]),
    )


def _comments(analyses: Sequence[str]) -> dict[str, str]:
    """What the judge wrote before it decided; of several samples each has its number."""
    several = len(analyses) > 1
    return {
        f"{ANALYSIS} {number}" if several else ANALYSIS: as_utf8(words).decode()
        for number, words in enumerate(analyses, start=1)
        if words.strip()
    }
