"""A response in, a score out: what a judge is asked about it, and what its verdicts come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import AskedOfAJudge

from services.grader.judge.chat import OVER_CONTEXT
from services.grader.judge.judge import Answer
from services.grader.judge.prompt import shortened
from services.grader.judge.question import ANALYSIS, Form, Question, Turn, Verdict
from services.grader.templates import without_thinking
from services.grader.tools import Tools

_LOW = 0.5  # a score below has a reason
_MOST = 200_000  # characters: far above what a judge's context takes
# Characters told of the reference and the problem, one pair after the other while the judge's
# context is too short. With the last it also has half of its tokens, and thinks less.
_TRIES = ((_MOST, _MOST), (4000, _MOST), (1000, _MOST), (1000, 2000))

Worth = Callable[[Verdict], tuple[float, Mapping[str, float]]]  # a value, and its breakdown


async def judged(
    task: Task,
    text: str,
    check: AskedOfAJudge,
    tools: Tools,
    form: Form,
    messages: Callable[[Task, str], tuple[Turn, ...]],
    worth: Worth,
) -> Score:
    """The mean of what a judge's verdicts on a response are worth.

    ``messages`` makes what the judge is told of a task, and of what the response says without its
    thinking: it is the response's own fault if that is nothing, or far too much for any judge. What
    the judge's context does not hold of the task is left out, and told; the response is never cut.
    """
    judge = tools.named_judges.get(check.model)
    if judge is None:
        return Ungradable(reason="no_judge")
    solution = without_thinking(text).strip()
    if len(solution) > _MOST:
        return Graded(value=0, reason="too_long")
    if not solution:
        return Graded(value=0, reason="no_solution")
    asked = None
    for kept_chars in _TRIES:
        is_last = kept_chars == _TRIES[-1]
        told, left_out = shortened(task, *kept_chars)
        question = Question(
            messages(told, solution),
            form,
            reasoning_effort="low" if is_last else check.reasoning_effort,
            max_tokens=check.max_tokens // (2 if is_last else 1),
            temperature=check.temperature,
            seed=check.seed,
        )
        if question != asked:
            asked = question
            score = mean_score(await judge.ask(question, check.samples), worth, left_out)
            if score.reason != OVER_CONTEXT:
                return score
    return Ungradable(reason=OVER_CONTEXT)


def mean_score(answers: Sequence[Answer], worth: Worth, left_out: Mapping[str, int]) -> Score:
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
        breakdown={**means, "samples": len(verdicts), **left_out},
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
