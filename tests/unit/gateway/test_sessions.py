"""The calls of a session become branches of tokens, linked by exact prefixes."""

import asyncio
import errno
import hashlib
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
from services.gateway.core.calls.session import DAMAGED, Session
from services.gateway.core.calls.session_store import SessionStore
from services.gateway.core.calls.trace import RecordedCall, build_branches
from services.gateway.errors import Problem
from tests.tables import table
from tests.unit.gateway.refusing import refused


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


def test_turns_that_continue_each_other_are_one_branch() -> None:
    turns = [a_call("a", [1, 2], [3]), a_call("b", [1, 2, 3, 4], [5, 6], version=2)]
    branch, other = build_branches([*turns, a_call("c", [1, 2, 3], [7])])
    assert branch.calls == ["a", "b"]
    assert branch.token_ids == [1, 2, 3, 4, 5, 6]
    assert branch.policy_mask == [False, False, True, False, True, True]
    assert branch.logprobs == [None, None, -0.3, None, -0.5, -0.6]
    spans = [(span.version, span.start, span.end) for span in branch.weight_versions]
    assert spans == [(1, 2, 3), (2, 4, 6)]
    assert (other.token_ids, other.policy_mask) == ([1, 2, 3, 7], [False] * 3 + [True])


@table("""
    turns                            | branches
    12>34  12>7                      | a b
    12>34  1294>7                    | a b
    12>34  123>7                     | a b
    1>2    1>23   1234>5             | a bc
    1>2    1>2    123>4  123>4 123>4 | ac bd e
""")
def test_a_call_continues_the_longest_free_branch_or_begins_one(turns: str, branches: str) -> None:
    """A turn is the tokens of its prompt and those that were sampled."""
    calls = [
        a_call(name, list(map(int, prompt)), list(map(int, sampled)))
        for name, turn in zip("abcde", turns.split(), strict=False)
        for prompt, sampled in [turn.split(">")]
    ]
    assert ["".join(branch.calls) for branch in build_branches(calls)] == branches.split()


def some_terms(seed: int = 1) -> Terms:
    sampling = Sampling(max_tokens=8)
    return Terms(job_id="job", purpose=Purpose.TRAIN, sampling=sampling, seed=seed)


SERVED = Served(name="m", model=Model(path="m"))


def admit(session: Session, **fields: Any) -> Call:
    values = {"gateway": "g", "served": SERVED, "sampling": CallSampling(), **fields}
    return session.admit(Call.model_validate(values), None)


def record(store: SessionStore, turn: int, **prompt: Any) -> None:
    """Have a call recorded in the session ``s``, whose reply is a token of its own."""
    call = admit(store.find("s") or store.begin("s"), id=f"c-{turn}", **prompt)
    prompt_ids = call.token_ids or (*(call.begun.token_ids if call.begun else ()), turn)
    reply = [Token(id=turn, text=f"{turn} ", logprob=-1)]
    answer = PendingCall(
        call, cast(Any, None), prompt_ids=prompt_ids, tokens=reply, text=f"{turn} "
    )
    store.record("s", answer)


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_session_stores_only_new_tokens_and_traces_whole_prompts(
    tmp_path: Path, is_chat: bool
) -> None:
    store = SessionStore(tmp_path)
    messages: list[dict[str, str]] = []
    token_ids: list[int] = []
    prompts: list[Any] = []
    for turn in range(40):
        messages = [*messages, {"role": "user", "content": f"turn {turn}"}]
        token_ids = [*token_ids, turn]
        record(store, turn, **({"messages": messages} if is_chat else {"token_ids": token_ids}))
        prompts.append(messages if is_chat else None)
        messages = [*messages, {"role": "assistant", "content": f"{turn}"}]
        token_ids = [*token_ids, turn]
    trace = store.trace("s")
    assert [call.messages for call in trace.calls] == prompts
    assert [branch.token_ids for branch in trace.branches] == [token_ids]
    text = (tmp_path / "s.jsonl").read_text()
    assert text.count('"turn ') == (40 if is_chat else 0)
    for reader in (store, SessionStore(tmp_path)):
        calls = reader.enter("s").answered.values()
        assert sum(len(call.new_ids) for call in calls) == 80
    messages[1] = messages[1] | {"name": "me"}
    record(store, 40, messages=messages)
    assert store.trace("s").calls[-1].messages == messages


def test_lines_that_cannot_be_read_cost_no_others(tmp_path: Path) -> None:
    SessionStore(tmp_path).begin("s")
    file = tmp_path / "s.jsonl"
    line = a_call("a", [1], [2]).model_dump_json()
    file.write_text(f"{file.read_text()}{line}\n{line[:40]}\n17\n\n{line}\n")
    assert [call.id for call in SessionStore(tmp_path).trace("s").calls] == ["a", "a"]
    assert SessionStore(tmp_path).enter("s").num_calls == 2


def test_no_more_is_asked_in_a_session_that_is_full(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.begin("s")
    with (tmp_path / "s.jsonl").open("r+b") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(Problem, match="begin another"):
        store.enter("s")


def test_of_many_sessions_the_newest_stay_in_memory_and_all_have_their_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "MAX_SESSIONS_IN_MEMORY", 4)
    store = SessionStore(tmp_path)
    of = {name: some_terms(seed) for seed, name in enumerate("abcdef")}
    for name, terms in of.items():
        store.open(name, terms)
    first = store.enter("a")
    for name in "bcd":
        store.enter(name)
    assert store.enter("a") is first, "there is room for four"
    store.enter("e")
    assert store.enter("a") is not first
    assert {name: store.enter(name).terms for name in of} == of


def test_sessions_go_after_a_week(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    week_ago = time.time() - 8 * 24 * 3600
    for name in ("old", "new"):
        (tmp_path / f"{name}.jsonl").write_text("")
    os.utime(tmp_path / "old.jsonl", (week_ago, week_ago))
    store.expire()
    assert [path.name for path in tmp_path.iterdir()] == ["new.jsonl"]
    with pytest.raises(Problem):
        store.delete("old")


# ---------------------------------------------------------------------- keys and records


def ask(store: SessionStore, call_id: str) -> PendingCall:
    """A call that has been asked in the session ``s``."""
    session = store.enter("s")
    answer = PendingCall(admit(session, id=call_id, text="a"), cast(Any, None))
    session.track([answer])
    return answer


def has_key(store: SessionStore, name: str, key: str) -> bool:
    return asyncio.run(store.has_key(name, hashlib.sha256(key.encode()).hexdigest()))


def test_a_session_has_a_key_of_its_own_of_which_only_the_hash_is_kept(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    another = SessionStore(tmp_path)
    key, key_of_b = (store.open(name, some_terms()) for name in "ab")
    assert key != key_of_b
    assert key not in (tmp_path / "a.jsonl").read_text()
    for reader in (store, another):
        for _ in range(2):  # from its file, and from memory
            assert has_key(reader, "a", key)
            assert not has_key(reader, "a", key_of_b)
            reader.enter("a")
        assert not has_key(reader, "none", key)
    another.delete("a")
    assert not has_key(store, "a", key)
    new_key = another.open("a", some_terms(2))
    assert store.enter("a").terms == some_terms(2)
    assert not has_key(store, "a", key)
    assert has_key(store, "a", new_key)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.open("a", some_terms())
    store.begin("b")
    assert store.begin("b").terms is None
    for name in "ab":
        with pytest.raises(Problem, match="take another name"):
            store.open(name, some_terms())
    with pytest.raises(Problem, match="under terms"):
        store.begin("a")


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
    store = SessionStore(tmp_path)
    key = store.open("s", some_terms())
    (tmp_path / "s.jsonl").write_bytes(line + a_call("a", [1], [2]).model_dump_json().encode())
    for reader in (store, SessionStore(tmp_path)):
        assert not has_key(reader, "s", key)
        for use in (reader.enter, reader.begin, reader.find, reader.trace, reader.has_terms):
            with refused(409, DAMAGED, match=r"damaged.*DELETE"):
                use("s")
    assert store.delete("s").deleted
    store.open("s", some_terms())


@pytest.mark.parametrize("is_gone", [True, False])
def test_what_comes_after_the_end_of_a_session_begins_none(tmp_path: Path, is_gone: bool) -> None:
    store = SessionStore(tmp_path)
    store.open("s", some_terms(1))
    late = ask(store, "late")
    store.delete("s")
    if not is_gone:
        store.open("s", some_terms(2))
    store.record("s", late)
    assert (tmp_path / "s.jsonl").exists() is not is_gone
    assert is_gone or store.trace("s").calls == ()


def test_a_session_that_ends_while_a_call_is_recorded_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SessionStore(tmp_path)
    file = tmp_path / "s.jsonl"
    store.open("s", some_terms())
    late = ask(store, "late")
    read_head = store._read_head

    def end_after(name: str) -> Any:
        head = read_head(name)
        file.unlink()  # by another gateway
        return head

    monkeypatch.setattr(store, "_read_head", end_after)
    store.record("s", late)
    assert not file.exists()


def test_a_call_whose_record_the_disk_does_not_take_is_not_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SessionStore(tmp_path)
    store.open("s", some_terms())
    answer = ask(store, "c-1")
    assert [call.id for call in store.trace("s").under_way] == ["c-1"]

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(session_store, "_write_line", is_full)
        with pytest.raises(OSError, match="no room"):
            store.record("s", answer)
        with pytest.raises(OSError, match="no room"):
            store.open("t", some_terms())
    assert store.trace("s").under_way == ()
    store.open("t", some_terms())
