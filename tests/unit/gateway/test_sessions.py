"""What calls of a session come to: branches of tokens, linked by exact prefixes."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest
from protocol.calls import Call, CallSampling, Served, Terms, Token
from protocol.messages import VersionSpan
from protocol.recipe import Model, Purpose, Sampling

from services.gateway.core.calls import session_store
from services.gateway.core.calls.pending import PendingCall
from services.gateway.core.calls.session import DAMAGED
from services.gateway.core.calls.session_store import SessionStore
from services.gateway.core.calls.trace import RecordedCall, build_branches
from services.gateway.errors import Problem


def a_call(name: str, prompt: list[int], sampled: list[int], version: int = 1) -> RecordedCall:
    return RecordedCall(
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
    (branch,) = build_branches(turns)
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
    first, second = build_branches([a_call("a", [1, 2], [3, 4]), a_call("b", prompt, [7])])
    assert first.calls == ["a"], told
    assert second.calls == ["b"], told
    assert second.token_ids == [*prompt, 7]
    assert second.own == [*[False] * len(prompt), True]  # what the first sampled is not told twice


def test_the_longest_branch_is_gone_on_from() -> None:
    calls = [a_call("a", [1], [2]), a_call("b", [1], [2, 3]), a_call("c", [1, 2, 3, 4], [5])]
    assert [branch.calls for branch in build_branches(calls)] == [["a"], ["b", "c"]]


def test_branches_that_end_in_the_same_tokens_are_gone_on_from_one_by_one() -> None:
    same = [a_call(name, [1], [2]) for name in "ab"]
    calls = [*same, *(a_call(name, [1, 2, 3], [4]) for name in "cde")]
    assert [branch.calls for branch in build_branches(calls)] == [["a", "c"], ["b", "d"], ["e"]]


def some_terms(seed: int = 1) -> Terms:
    sampling = Sampling(max_tokens=8)
    return Terms(job_id="job", purpose=Purpose.TRAIN, sampling=sampling, seed=seed)


def record(kept: SessionStore, turn: int, **prompt: Any) -> Call:
    """Have a call recorded in the session ``s``, whose reply is a token of its own."""
    served = Served(name="m", model=Model(path="m"))
    asked = {"id": f"c-{turn}", "gateway": "g", "served": served, "sampling": CallSampling()}
    session = kept.find("s") or kept.begin("s")
    call = session.admit(Call.model_validate(asked | prompt), None)
    prompt_ids = call.token_ids or (*(call.begun.token_ids if call.begun else ()), turn)
    reply = [Token(id=turn, text=f"{turn} ", logprob=-1)]
    answer = PendingCall(
        call, cast(Any, None), prompt_ids=prompt_ids, tokens=reply, text=f"{turn} "
    )
    kept.record("s", answer)
    return call


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_session_grows_by_what_is_new_and_its_trace_tells_all(
    tmp_path: Path, is_chat: bool
) -> None:
    kept = SessionStore(tmp_path)
    messages = list[dict[str, str]]()
    token_ids = list[int]()
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
    assert sum(len(line["prompt_ids"]) for line in lines[1:]) == 40
    assert text.count('"turn ') == (40 if is_chat else 0)
    for each in kept, SessionStore(tmp_path):
        assert sum(len(call.new_ids) for call in each.enter("s").answered.values()) == 80
    named = [{**turn, "name": "me"} if turn["role"] == "assistant" else turn for turn in messages]
    record(kept, 40, messages=named)
    assert kept.trace("s")["calls"][-1]["messages"] == named


def test_lines_that_cannot_be_read_cost_no_others(tmp_path: Path) -> None:
    SessionStore(tmp_path).begin("s")
    file = tmp_path / "s.jsonl"
    line = a_call("a", [1], [2]).model_dump_json()
    file.write_text(f"{file.read_text()}{line}\n{line[:40]}\n17\n\n{line}\n")
    assert [call["id"] for call in SessionStore(tmp_path).trace("s")["calls"]] == ["a", "a"]
    assert SessionStore(tmp_path).enter("s").num_calls == 2


def test_no_more_is_asked_in_a_session_that_is_full(tmp_path: Path) -> None:
    kept = SessionStore(tmp_path)
    kept.begin("s")
    with (tmp_path / "s.jsonl").open("r+b") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(Problem, match="begin another"):
        kept.enter("s")


def test_of_many_sessions_the_newest_stay_in_memory_and_all_have_their_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "MAX_SESSIONS_IN_MEMORY", 4)
    kept = SessionStore(tmp_path)
    of = {name: some_terms(seed) for seed, name in enumerate("abcdef")}
    for name, terms in of.items():
        kept.open(name, terms)
    first = kept.enter("a")
    for name in "bcd":
        kept.enter(name)
    assert kept.enter("a") is first, "there is room for four"
    kept.enter("e")
    assert kept.enter("a") is not first
    assert {name: kept.enter(name).terms for name in of} == of


def test_sessions_go_after_a_week(tmp_path: Path) -> None:
    kept = SessionStore(tmp_path)
    week_ago = time.time() - 8 * 24 * 3600
    for name in ("old", "new"):
        (tmp_path / f"{name}.jsonl").write_text("")
    os.utime(tmp_path / "old.jsonl", (week_ago, week_ago))
    kept.expire()
    assert [path.name for path in tmp_path.iterdir()] == ["new.jsonl"]
    with pytest.raises(Problem):
        kept.delete("old")


# ---------------------------------------------------------------------- keys and records


def under_way(kept: SessionStore, name: str, call_id: str) -> PendingCall:
    """A call that has been asked in a session."""
    session = kept.enter(name)
    served = Served(name="m", model=Model(path="m"))
    call = Call(id=call_id, gateway="g", served=served, sampling=CallSampling(), text="a")
    answer = PendingCall(session.admit(call, None), cast(Any, None))
    session.track([answer])
    return answer


def has_key(kept: SessionStore, name: str, key: str) -> bool:
    return asyncio.run(kept.has_key(name, hashlib.sha256(key.encode()).hexdigest()))


def test_a_session_has_a_key_of_its_own_of_which_only_the_hash_is_kept(tmp_path: Path) -> None:
    kept = SessionStore(tmp_path)
    another = SessionStore(tmp_path)
    keys = [kept.open(name, some_terms()) for name in "ab"]
    assert len({*keys}) == 2
    assert keys[0] not in (tmp_path / "a.jsonl").read_text()
    for each in (kept, another):
        for _ in range(2):  # from its file, and from memory
            assert has_key(each, "a", keys[0])
            assert not has_key(each, "a", keys[1])
            each.enter("a")
        assert not has_key(each, "none", keys[0])
    another.delete("a")
    assert not has_key(kept, "a", keys[0])
    again = another.open("a", some_terms(2))
    terms = kept.enter("a").terms
    assert terms is not None
    assert terms.seed == 2
    assert not has_key(kept, "a", keys[0])
    assert has_key(kept, "a", again)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    kept = SessionStore(tmp_path)
    kept.open("a", some_terms())
    kept.begin("b")
    assert kept.begin("b").terms is None
    for name in "ab":
        with pytest.raises(Problem, match="take another name"):
            kept.open(name, some_terms())
    with pytest.raises(Problem, match="under terms"):
        kept.begin("a")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"\0" * 100 + b"\n",
        b'{"terms": {"job_id": "job", "pur',
        b'{"terms": {"job_id": "job"}, "key": "0"}\n',
        b'{"terms": {"job_id": "\xff", "purpose": "train"}}\n',
        b"[]\n",
        b'{"key": "0"}\n',
    ],
)
def test_a_damaged_record_is_named_and_never_taken_for_a_session_without_terms(
    tmp_path: Path, line: bytes
) -> None:
    kept = SessionStore(tmp_path)
    key = kept.open("s", some_terms())
    (tmp_path / "s.jsonl").write_bytes(line + a_call("a", [1], [2]).model_dump_json().encode())
    for each in (kept, SessionStore(tmp_path)):
        assert not has_key(each, "s", key)
        for use in (each.enter, each.begin, each.find, each.trace, each.has_terms):
            with pytest.raises(Problem, match=r"damaged.*DELETE") as refused:
                use("s")
            assert refused.value.status_code == 409
            assert refused.value.code == DAMAGED
    assert kept.delete("s") == {"id": "s", "object": "rollout", "deleted": True}
    kept.open("s", some_terms())


@pytest.mark.parametrize("is_gone", [True, False])
def test_what_comes_after_the_end_of_a_session_begins_none(tmp_path: Path, is_gone: bool) -> None:
    kept = SessionStore(tmp_path)
    kept.open("s", some_terms(1))
    late = under_way(kept, "s", "late")
    kept.delete("s")
    if not is_gone:
        kept.open("s", some_terms(2))
    kept.record("s", late)
    assert (tmp_path / "s.jsonl").exists() is not is_gone
    assert is_gone or kept.trace("s")["calls"] == []


def test_a_session_that_ends_while_a_call_is_recorded_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = SessionStore(tmp_path)
    file = tmp_path / "s.jsonl"
    kept.open("s", some_terms())
    late = under_way(kept, "s", "late")
    read_head = kept._read_head

    def end_after(name: str) -> Any:
        head = read_head(name)
        file.unlink()  # by another gateway
        return head

    monkeypatch.setattr(kept, "_read_head", end_after)
    kept.record("s", late)
    assert not file.exists()


def test_a_call_whose_record_the_disk_does_not_take_is_not_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = SessionStore(tmp_path)
    kept.open("s", some_terms())
    answer = under_way(kept, "s", "c-1")
    assert [call["id"] for call in kept.trace("s")["under_way"]] == ["c-1"]

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(session_store, "_write_line", is_full)
        with pytest.raises(OSError, match="no room"):
            kept.record("s", answer)
        with pytest.raises(OSError, match="no room"):
            kept.open("t", some_terms())
    assert kept.trace("s")["under_way"] == []
    kept.open("t", some_terms())
