"""A response in, a score out: what a judge is asked about it, and what its verdicts come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from protocol.messages import Graded, Score, Ungradable
from protocol.rewards import AskedOfAJudge

from services.grader.judge.form import ANALYSIS, Form, Verdict
from services.grader.judge.judge import Answer
from services.grader.judge.question import Question, Turn
from services.grader.templates import without_thinking
from services.grader.tools import Tools

_LOW = 0.5  # a score below has a reason
_MAX_CHARS = 200_000  # far above what a judge's context takes

Worth = Callable[[Verdict], tuple[float, Mapping[str, float]]]  # a value, and its breakdown


async def judged(
    text: str,
    check: AskedOfAJudge,
    tools: Tools,
    form: Form,
    messages: Callable[[str], tuple[Turn, ...]],
    worth: Worth,
) -> Score:
    """The mean of what a judge's verdicts on a response are worth.

    ``messages`` makes what the judge is told of what the response says without its thinking: it is
    the response's own fault if that is nothing, or far too much for any judge.
    """
    judge = tools.named_judges.get(check.model)
    if judge is None:
        return Ungradable(reason="no_judge")
    solution = without_thinking(text).strip()
    if len(solution) > _MAX_CHARS:
        return Graded(value=0, reason="too_long")
    if not solution:
        return Graded(value=0, reason="no_solution")
    question = Question(
        messages(solution),
        form,
        reasoning_effort=check.reasoning_effort,
        max_tokens=check.max_tokens,
        temperature=check.temperature,
        seed=check.seed,
    )
    return mean_score(await judge.ask(question, check.samples), worth)


def mean_score(answers: Sequence[Answer], worth: Worth) -> Score:
    """The mean of what the verdicts are worth, if at least half of the samples have one.

    A sample without a verdict is left out, as if it had not been asked for. Where most are without,
    what remains would be chance, and the response is ungradable for their commonest reason.
    """
    verdicts = [answer for answer in answers if not isinstance(answer, Ungradable)]
    if not verdicts or 2 * len(verdicts) < len(answers):
        reasons = Counter(each.reason for each in answers if isinstance(each, Ungradable))
        return Ungradable(reason=reasons.most_common(1)[0][0])
    values, parts = zip(*map(worth, verdicts), strict=True)
    value = fmean(values)
    means = {name: fmean(part[name] for part in parts) for name in parts[0]}
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
        f"{ANALYSIS} {number}" if several else ANALYSIS: words.encode(errors="replace").decode()
        for number, words in enumerate(analyses, start=1)
        if words.strip()
    }
