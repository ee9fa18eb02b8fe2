"""Graded by a model: what a judge is asked about a response, and what its verdicts come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import AskedOfAJudge, LabelModel, ModelJudge, ScoreModel

from services.grader.judge.chat import OVER_CONTEXT
from services.grader.judge.judge import Answer
from services.grader.judge.prompt import (
    load_rubric,
    quoted,
    rubric_form,
    rubric_messages,
    shortened,
)
from services.grader.judge.question import (
    ANALYSIS,
    Form,
    Question,
    Turn,
    Verdict,
    number_within,
    one_of,
    words,
)
from services.grader.templates import NotGiven, fill, without_thinking
from services.grader.tools import Tools

_LOW = 0.5  # a score below has a reason
_MOST = 200_000  # characters: far above what a judge's context takes
# Characters told of the reference and the problem, one pair after the other while the judge's
# context is too short.
_TRIES = ((_MOST, _MOST), (4000, _MOST), (1000, _MOST), (1000, 2000))
_REASONS = words("your reasons, in at most 1500 characters")

Worth = Callable[[Verdict], tuple[float, Mapping[str, float]]]  # a value, and its breakdown


async def model_judge(task: Task, text: str, check: ModelJudge, tools: Tools) -> Score:
    rubric = load_rubric(check.rubric) if isinstance(check.rubric, str) else check.rubric
    if rubric.needs_solution and not (task.solution or "").strip():
        return Ungradable(reason="no_reference")

    def worth(verdict: Verdict) -> tuple[float, dict[str, float]]:
        levels = {each.name: str(verdict[each.name]) for each in rubric.criteria}
        parts = {each.name: each.score_of(levels[each.name]) for each in rubric.criteria}
        return rubric.score(levels), parts

    form, messages = rubric_form(rubric), partial(rubric_messages, rubric)
    return await _judged(task, text, check, tools, form, messages, worth)


async def score_model(task: Task, text: str, check: ScoreModel, tools: Tools) -> Score:
    """The mean of the numbers that the model gives, moved from the check's range to [0, 1]."""
    lowest, highest = check.range

    def worth(verdict: Verdict) -> tuple[float, dict[str, float]]:
        value = min(1.0, (float(verdict["result"]) - lowest) / (highest - lowest))
        return value, {"result": value}

    form = Form({ANALYSIS: _REASONS, "result": number_within(lowest, highest)})
    return await _judged(task, text, check, tools, form, partial(_filled, check, form), worth)


async def label_model(task: Task, text: str, check: LabelModel, tools: Tools) -> Score:
    """The share of samples whose label is one of those that pass."""

    def worth(verdict: Verdict) -> tuple[float, dict[str, float]]:
        found = {name: float(name == verdict["label"]) for name in check.labels}
        return float(verdict["label"] in check.passing_labels), found

    form = Form({ANALYSIS: _REASONS, "label": one_of(check.labels)})
    return await _judged(task, text, check, tools, form, partial(_filled, check, form), worth)


def _filled(
    check: ScoreModel | LabelModel, form: Form, task: Task, solution: str
) -> tuple[Turn, ...]:
    """The check's messages filled in; the first one, of the system, also says how to answer."""
    turns = [
        {"role": turn.role, "content": fill(turn.content, task, solution, quoted)}
        for turn in check.input
    ]
    if turns[0]["role"] not in {"system", "developer"}:
        return ({"role": "system", "content": form.instructions}, *turns)
    turns[0]["content"] += f"\n\n{form.instructions}"
    return tuple(turns)


async def _judged(
    task: Task,
    text: str,
    check: AskedOfAJudge,
    tools: Tools,
    form: Form,
    messages: Callable[[Task, str], tuple[Turn, ...]],
    worth: Worth,
) -> Score:
    """The mean of what a judge's verdicts on a response, without its thinking, are worth.

    What the judge's context does not hold of the task is left out, and told; the response is never
    cut.
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
        told, left_out = shortened(task, *kept_chars)
        try:
            turns = messages(told, solution)
        except NotGiven as missing:
            return missing.score
        question = Question(
            turns,
            form,
            reasoning_effort=check.reasoning_effort,
            template_options=check.chat_template_options,
            max_tokens=check.max_tokens,
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
    """At least half of the samples must have a verdict; the others are left out.

    Where most are without, what remains would be chance: ungradable for their commonest reason.
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
    several = len(analyses) > 1
    return {
        f"{ANALYSIS} {number}" if several else ANALYSIS: words.encode(errors="replace").decode()
        for number, words in enumerate(analyses, start=1)
        if words.strip()
    }
