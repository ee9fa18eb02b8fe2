"""Traces become responses: the prompt that all share, whose each token is, and spans."""

from __future__ import annotations

from protocol.messages import Episode, VersionSpan

from services.environment.door import Branch, RecordedCall, Trace
from services.environment.group import Played, group_of, trained_branch
from tests.builders import a_request


def a_branch(tokens: str, own: str, versions: tuple[int, ...] = (1,), call: str = "a") -> Branch:
    """A letter a token, and a + for each of the policy's; a span for each run of those."""
    is_own = [mark == "+" for mark in own]
    starts = [n for n, each in enumerate(is_own) if each and not (n and is_own[n - 1])]
    ends = [n + 1 for n, each in enumerate(is_own) if each and not any(is_own[n + 1 : n + 2])]
    spans = [
        VersionSpan(attempt=1, version=version, start=start, end=end)
        for version, start, end in zip(versions, starts, ends, strict=True)
    ]
    return Branch(
        token_ids=[ord(token) for token in tokens],
        logprobs=[-1.0 if each else None for each in is_own],
        own=is_own,
        weight_versions=spans,
        calls=[call],
    )


def a_call(name: str, **told: object) -> RecordedCall:
    return RecordedCall.model_validate({"id": name, "seconds": 1.0, "text": name, **told})


def ended(*branches: Branch) -> Played:
    calls = [a_call(name) for branch in branches for name in branch.calls]
    return Played(Episode(reward=1.0), Trace(calls=calls, branches=list(branches)))


BROKEN = Played(
    Episode(problem="episode_failed"),
    Trace(calls=[a_call("x")], branches=[a_branch("zzzz", "--++")]),
)


def text_of(tokens: object) -> str:
    return "".join(map(chr, tokens))  # type: ignore[arg-type]


def test_what_prompts_share_is_the_prompt_and_the_rest_of_them_is_foreign() -> None:
    one = ended(a_branch("abcXYdeZ", "---++--+", (3, 4)))
    other = ended(a_branch("abfXf", "---+-"))
    group = group_of(a_request(group_size=3), [one, BROKEN, other], 2.0)
    assert text_of(group.prompt_ids) == "ab"
    assert text_of(group.token_ids) == "cXYdeZ" + "fXf"
    assert group.lengths.tolist() == [6, 0, 3]
    assert group.own is not None
    assert group.own.tolist() == [0, 1, 1, 0, 0, 1, 0, 1, 0]
    assert group.behavior_logprobs.tolist() == [-float(each) for each in group.own]
    spans = [[(s.version, s.start, s.end) for s in each.spans] for each in group.responses]
    assert spans == [[(3, 0, 3), (4, 3, 6)], [], [(1, 0, 3)]]


def test_the_branch_with_the_most_tokens_of_the_policy_is_trained_and_of_equals_the_last() -> None:
    long, short = a_branch("ppppA", "----+", call="one"), a_branch("pBC", "-++", call="two")
    last = a_branch("qDE", "-++", call="three")
    assert trained_branch(Trace(branches=[long, short, last])) is last
    group = group_of(a_request(group_size=1), [ended(long, short)], 0.0)
    assert (text_of(group.token_ids), group.responses[0].text) == ("BC", "two")


def test_a_group_of_broken_episodes_has_neither_prompt_nor_tokens() -> None:
    group = group_of(a_request(group_size=2), [BROKEN, BROKEN], 0.0)
    assert (len(group.prompt_ids), len(group.token_ids)) == (0, 0)
    assert [response.text for response in group.responses] == ["x", "x"]
