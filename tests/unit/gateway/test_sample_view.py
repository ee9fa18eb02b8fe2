from __future__ import annotations

import io
import json
from typing import Any

from protocol.messages import Grade, Graded, Mark, Ungradable
from rich.console import Console

from services.gateway.samples.catalog import catalog_of
from services.gateway.samples.group import group_json
from services.gateway.samples.view import group_view
from tests.builders import a_graded_group, a_group, a_request, a_task
from tests.sample_stores import failed_facts, sample_facts, sampled_group


def printed(*parts: Any, color: bool = False) -> str:
    out = io.StringIO()
    system = "standard" if color else None
    Console(file=out, width=200, force_terminal=color, color_system=system).print(*parts)
    return out.getvalue()


def group_of(texts: list[str], grades: list[Grade], **task: Any) -> dict[str, Any]:
    group = a_group(a_request(task=a_task(**task)), texts=texts)
    facts = sample_facts(0)
    sampled = sampled_group(facts, graded=a_graded_group(group, grades=grades))
    return json.loads(group_json(catalog_of("", [(0, facts)]).groups[0], sampled, None))


def test_a_group_is_shown_with_its_task_grades_marks_and_comments() -> None:
    mark = Mark(start=4, end=9, verdict="wrong", note="it is 4")
    judged = Graded(value=0.25, marks=(mark,), comments={"rigour": "skips a step"})
    grades = [
        Grade(outcome=Graded(value=1.0), process=judged),
        Grade(outcome=Ungradable(reason="no gold answer")),
    ]
    answer = group_of(["say 2+2=5 then", "nothing"], grades, prompt="What is it?", answer="4")
    assert printed(group_view(answer)).splitlines() == [
        "train:0, step 0: used",
        "task sum-1, answer 4",
        "What is it?",
        "",
        "response 0: outcome 1.00, process 0.25, reward 1.000, advantage +0.500, 2 tokens, stop",
        "say 2+2=5 then",
        "process: wrong: 2+2=5 (it is 4)",
        "process: rigour: skips a step",
        "",
        "response 1: outcome -, reward 1.000, advantage +0.500, 2 tokens, stop",
        "nothing",
        "outcome: no gold answer",
    ]
    assert "say \x1b[31m2+2=5\x1b[0m then" in printed(group_view(answer), color=True)


def test_a_group_that_failed_is_shown_with_the_reason() -> None:
    facts = failed_facts(0, "it failed in \x1b[31mthree\x1b[0m seats")
    group = catalog_of("", [(0, facts)]).groups[0]
    answer = json.loads(group_json(group, sampled_group(facts), None))
    assert printed(group_view(answer)) == "train:0, step 0: it failed in ␛[31mthree␛[0m seats\n"


def test_nothing_that_a_model_wrote_steers_the_terminal() -> None:
    hostile = "\x1b]0;owned\x07\r\x9b31m\x7f\u202ereversed [bold]tag[/bold]\ttab\nnew line"
    remark = Graded(value=0.0, reason=hostile, comments={hostile: hostile})
    answer = group_of([hostile, hostile], [Grade(outcome=remark)] * 2, id=hostile, answer=hostile)
    plain = printed(group_view(answer))
    assert not {"\x1b", "\x07", "\r", "\x9b", "\x7f", "\u202e"} & set(plain)
    assert "[bold]tag[/bold]" in plain
    assert "new line" in plain.splitlines()
