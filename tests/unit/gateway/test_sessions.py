"""What calls of a session come to: branches of tokens, linked by exact prefixes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest
from protocol.calls import Call, CallSampling, Served, Terms, Token
from protocol.messages import VersionSpan
from protocol.recipe import Model

from services.gateway.calls import sessions
from services.gateway.calls.desk import Answer
from services.gateway.calls.requests import Sampled
from services.gateway.calls.sessions import Recorded, Sessions, branches_of
from services.gateway.errors import Problem


def a_call(name: str, prompt: list[int], sampled: list[int], version: int = 1) -> Recorded:
    return Recorded(
        id=name,
        created_at=0,
        seconds=1,
        model="m",
        finish_reason="stop",
        error=None,
        prompt_ids=prompt,
        token_ids=sampled,
        logprobs=[-token / 10 for token in sampled],
        spans=[VersionSpan(attempt=1, version=version, start=0, end=len(sampled))],
    )


def test_turns_that_go_on_from_each_other_are_one_branch() -> None:
    turns = [a_call("a", [1, 2], [3]), a_call("b", [1, 2, 3, 4], [5, 6], version=2)]
    (branch,) = branches_of(turns)
    assert branch.token_ids == [1, 2, 3, 4, 5, 6]
    assert branch.own == [False, False, True, False, True, True]
    assert branch.logprobs == [None, None, -0.3, None, -0.5, -0.6]
    spans = [(span["version"], span["start"], span["end"]) for span in branch.weight_versions]
    assert spans == [(1, 2, 3), (2, 4, 6)]
    assert branch.calls == ["a", "b"]


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ([1, 2], "the same prompt again"),
        ([1, 2, 9, 4], "a prefix that differs in one token"),
        ([1, 2, 3], "a prompt that ends within what came before"),
    ],
)
def test_a_call_that_goes_on_from_no_other_begins_a_branch(prompt: list[int], told: str) -> None:
    first, second = branches_of([a_call("a", [1, 2], [3, 4]), a_call("b", prompt, [7])])
    assert (first.calls, second.calls) == (["a"], ["b"]), told
    assert second.token_ids == [*prompt, 7]
    assert second.own == [*[False] * len(prompt), True]  # what the first sampled is not told twice


def test_the_longest_branch_is_gone_on_from() -> None:
    calls = [a_call("a", [1], [2]), a_call("b", [1], [2, 3]), a_call("c", [1, 2, 3, 4], [5])]
    assert [branch.calls for branch in branches_of(calls)] == [["a"], ["b", "c"]]


def test_branches_that_end_in_the_same_tokens_are_gone_on_from_one_by_one() -> None:
    same = [a_call(name, [1], [2]) for name in "ab"]
    calls = [*same, *(a_call(name, [1, 2, 3], [4]) for name in "cde")]
    assert [branch.calls for branch in branches_of(calls)] == [["a", "c"], ["b", "d"], ["e"]]


def record(kept: Sessions, turn: int, **prompt: Any) -> Call:
    """Have a call recorded in the session ``s``, whose reply is a token of its own."""
    served = Served(name="m", model=Model(path="m"))
    asked = {"id": f"c-{turn}", "gateway": "g", "served": served, "sampling": CallSampling()}
    call = kept.enter("s").asked(Call.model_validate(asked | prompt), Sampled())
    prompt_ids = call.token_ids or (*(call.begun.token_ids if call.begun else ()), turn)
    reply = [Token(id=turn, text=f"{turn} ", logprob=-1)]
    answer = Answer(call, cast(Any, None), prompt_ids=prompt_ids, tokens=reply, text=f"{turn} ")
    kept.record("s", answer)
    return call


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_session_grows_by_what_is_new_and_its_trace_tells_all(
    tmp_path: Path, is_chat: bool
) -> None:
    kept, messages, token_ids = Sessions(tmp_path), list[dict[str, str]](), list[int]()
    given = list[Any]()
    for turn in range(40):
        messages = [*messages, {"role": "user", "content": f"turn {turn}"}]
        token_ids = [*token_ids, turn]
        record(kept, turn, **({"messages": messages} if is_chat else {"token_ids": token_ids}))
        given.append(messages if is_chat else None)
        messages = [*messages, {"role": "assistant", "content": f"{turn}"}]
        token_ids = [*token_ids, turn]
    trace = kept.trace("s")
    assert [call["messages"] for call in trace["calls"]] == given
    assert [branch["token_ids"] for branch in trace["branches"]] == [token_ids]
    text = (tmp_path / "s.jsonl").read_text()
    lines = [json.loads(line) for line in filter(None, text.splitlines())]
    assert sum(len(line["prompt_ids"]) for line in lines) == 40
    assert text.count('"turn ') == (40 if is_chat else 0)
    for each in kept, Sessions(tmp_path):
        assert sum(len(known.more) for known in each.enter("s").known.values()) == 80
    named = [{**turn, "name": "me"} if turn["role"] == "assistant" else turn for turn in messages]
    record(kept, 40, messages=named)
    assert kept.trace("s")["calls"][-1]["messages"] == named


def test_lines_that_cannot_be_read_cost_no_others(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    line = a_call("a", [1], [2]).model_dump_json()
    file.write_text(f"{line}\n{line[:40]}\n17\n\n{line}\n")
    assert [call["id"] for call in Sessions(tmp_path).trace("s")["calls"]] == ["a", "a"]


def test_no_more_is_asked_in_a_session_that_is_full(tmp_path: Path) -> None:
    kept = Sessions(tmp_path)
    kept.enter("s")
    with (tmp_path / "s.jsonl").open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(Problem, match="begin another"):
        kept.enter("s")


def test_of_many_sessions_the_newest_stay_in_memory_and_all_have_their_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MOST_KNOWN", 4)
    kept = Sessions(tmp_path)
    terms = {"job_id": "job", "purpose": "train", "sampling": {"max_tokens": 8}}
    of = {name: Terms.model_validate({**terms, "seed": seed}) for seed, name in enumerate("abcdef")}
    for name in "abc":
        kept.open(name, of[name])
    first = kept.enter("a")
    kept.open("d", of["d"])
    assert kept.enter("a") is first, "there is room for four"
    for name in "ef":
        kept.open(name, of[name])
    assert kept.enter("a") is not first
    assert {name: kept.enter(name).terms for name in of} == of


def test_sessions_go_after_a_week(tmp_path: Path) -> None:
    kept, week_ago = Sessions(tmp_path), time.time() - 8 * 24 * 3600
    for name in ("old", "new"):
        (tmp_path / f"{name}.jsonl").write_text("")
    os.utime(tmp_path / "old.jsonl", (week_ago, week_ago))
    kept.expire()
    assert [path.name for path in tmp_path.iterdir()] == ["new.jsonl"]
    with pytest.raises(Problem):
        kept.delete("old")
