"""Verifiers that ask a judge about a response, and combine its verdicts into a score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from protocol.messages import Graded, Score, Task, Ungradable
from protocol.rewards import JudgeCheck, LabelModel, ModelJudge, ScoreModel

from services.grader.judge.chat import OVER_CONTEXT
from services.grader.judge.judge import Answer
from services.grader.judge.prompt import (
    load_rubric,
    quote,
    rubric_form,
    rubric_messages,
    shorten,
)
from services.grader.judge.question import (
    ANALYSIS,
    Form,
    Question,
    Turn,
    Verdict,
    choice_field,
    number_field,
    text_field,
)
from services.grader.templates import MissingField, fill, remove_thinking
from services.grader.tools import Tools

_LOW = 0.5  # a score below has a reason
_MAX_CHARS = 200_000  # far beyond the context of a judge
# The characters of reference and problem: the next pair is tried if the judge's context is short.
_CHAR_LIMITS = ((_MAX_CHARS, _MAX_CHARS), (4000, _MAX_CHARS), (1000, _MAX_CHARS), (1000, 2000))
_REASONS = text_field("your reasons, in at most 1500 characters")

# Returns the value of a verdict, and its breakdown.
Evaluate = Callable[[Verdict], tuple[float, Mapping[str, float]]]


async def model_judge(task: Task, text: str, check: ModelJudge, tools: Tools) -> Score:
    rubric = check.rubric
    if isinstance(rubric, str):
        rubric = load_rubric(rubric)
    if rubric.needs_solution and not (task.solution or "").strip():
        return Ungradable(reason="no_reference")

    def evaluate(verdict: Verdict) -> tuple[float, dict[str, float]]:
        levels: dict[str, str] = {}
        breakdown: dict[str, float] = {}
        for criterion in rubric.criteria:
            level = str(verdict[criterion.name])
            levels[criterion.name] = level
            breakdown[criterion.name] = criterion.scores[level]
        return rubric.score(levels), breakdown

    form = rubric_form(rubric)
    messages = partial(rubric_messages, rubric)
    return await _judge(task, text, check, tools, form, messages, evaluate)


async def score_model(task: Task, text: str, check: ScoreModel, tools: Tools) -> Score:
    """Return the mean of the judge's numbers, scaled from the check's range to [0, 1]."""
    low, high = check.range

    def evaluate(verdict: Verdict) -> tuple[float, dict[str, float]]:
        value = min(1.0, (float(verdict["result"]) - low) / (high - low))
        return value, {"result": value}

    form = Form({ANALYSIS: _REASONS, "result": number_field(low, high)})
    messages = partial(_fill_messages, check, form)
    return await _judge(task, text, check, tools, form, messages, evaluate)


async def label_model(task: Task, text: str, check: LabelModel, tools: Tools) -> Score:
    """Return the share of samples with a passing label."""

    def evaluate(verdict: Verdict) -> tuple[float, dict[str, float]]:
        label = verdict["label"]
        breakdown = {name: float(name == label) for name in check.labels}
        return float(label in check.passing_labels), breakdown

    form = Form({ANALYSIS: _REASONS, "label": choice_field(check.labels)})
    messages = partial(_fill_messages, check, form)
    return await _judge(task, text, check, tools, form, messages, evaluate)


def _fill_messages(
    check: ScoreModel | LabelModel, form: Form, task: Task, solution: str
) -> tuple[Turn, ...]:
    """Fill in the check's messages; the system's message also says how to answer."""
    turns = [
        {"role": turn.role, "content": fill(turn.content, task, solution, quote)}
        for turn in check.input
    ]
    if turns[0]["role"] not in {"system", "developer"}:
        return ({"role": "system", "content": form.instructions}, *turns)
    turns[0]["content"] += f"\n\n{form.instructions}"
    return tuple(turns)


async def _judge(
    task: Task,
    text: str,
    check: JudgeCheck,
    tools: Tools,
    form: Form,
    messages: Callable[[Task, str], tuple[Turn, ...]],
    evaluate: Evaluate,
) -> Score:
    """Ask a judge about a response without its thinking, and combine the verdicts.

    Parts of the task that do not fit the judge's context are left out, and the breakdown says so.
    The response is never cut.
    """
    judge = tools.named_judges.get(check.model)
    if judge is None:
        return Ungradable(reason="no_judge")
    solution = remove_thinking(text).strip()
    if len(solution) > _MAX_CHARS:
        return Graded(value=0, reason="too_long")
    if not solution:
        return Graded(value=0, reason="no_solution")
    last_question = None
    for limits in _CHAR_LIMITS:
        short_task, left_out = shorten(task, *limits)
        try:
            turns = messages(short_task, solution)
        except MissingField as error:
            return error.score
        question = Question(
            turns,
            form,
            reasoning_effort=check.reasoning_effort,
            template_options=check.chat_template_options,
            max_tokens=check.max_tokens,
            temperature=check.temperature,
            seed=check.seed,
        )
        if question == last_question:
            continue
        last_question = question
        answers = await judge.ask(question, check.samples)
        score = combine_verdicts(answers, evaluate, left_out)
        if score.reason != OVER_CONTEXT:
            return score
    return Ungradable(reason=OVER_CONTEXT)


def combine_verdicts(
    answers: Sequence[Answer], evaluate: Evaluate, left_out: Mapping[str, int]
) -> Score:
    """Return the mean of the verdicts, if at least half of the samples have one.

    Fewer verdicts would be chance: the score is ungradable for the most common reason.
    """
    verdicts: list[Verdict] = []
    reasons = Counter[str]()
    for answer in answers:
        if isinstance(answer, Ungradable):
            reasons[answer.reason] += 1
        else:
            verdicts.append(answer)
    if not verdicts or 2 * len(verdicts) < len(answers):
        return Ungradable(reason=reasons.most_common(1)[0][0])
    values, breakdowns = zip(*map(evaluate, verdicts), strict=True)
    value = fmean(values)
    means = {name: fmean(part[name] for part in breakdowns) for name in breakdowns[0]}
    return Graded(
        value=value,
        reason="judged_low" if value < _LOW else None,
        breakdown={**means, "samples": len(verdicts), **left_out},
        comments=_comments([str(verdict.get(ANALYSIS, "")) for verdict in verdicts]),
    )


def _comments(analyses: Sequence[str]) -> dict[str, str]:
    comments: dict[str, str] = {}
    for number, analysis in enumerate(analyses, start=1):
        name = f"{ANALYSIS} {number}" if len(analyses) > 1 else ANALYSIS
        if analysis.strip():
            comments[name] = analysis.encode(errors="replace").decode()
    return comments
