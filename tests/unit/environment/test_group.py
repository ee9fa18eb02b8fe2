"""Groups from traces: the shared prompt, the policy's tokens, and spans."""

from collections.abc import Iterable

from protocol.messages import Episode, VersionSpan
from protocol.traces import Branch, EndedCall, Trace

from services.environment.group import FinishedEpisode, build_group, trained_branch
from tests.builders import a_request


def a_branch(tokens: str, mask: str, spans: Iterable[tuple[int, int, int]], call: str) -> Branch:
    """A letter is a token, a + in the mask one of the policy; spans are version, start and end."""
    policy_mask = [mark == "+" for mark in mask]
    return Branch(
        token_ids=[ord(token) for token in tokens],
        logprobs=[-1.0 if is_policy else None for is_policy in policy_mask],
        own=policy_mask,
        weight_versions=[
            VersionSpan(attempt=1, version=version, start=start, end=end)
            for version, start, end in spans
        ],
        calls=[call],
    )


def finish(*branches: Branch, **episode: object) -> FinishedEpisode:
    names = [name for branch in branches for name in branch.calls]
    calls = [
        EndedCall(
            id=name,
            created_at=0.0,
            seconds=1.0,
            model="",
            finish_reason="stop",
            error=None,
            text=name,
        )
        for name in names
    ]
    trace = Trace(id="", calls=tuple(calls), branches=branches)
    return FinishedEpisode(Episode.model_validate(episode or {"reward": 1.0}), trace)


BROKEN = finish(a_branch("zzzz", "--++", [(1, 2, 4)], "x"), problem="episode_failed")


def text(tokens: Iterable[int]) -> str:
    return "".join(map(chr, tokens))


def test_the_shared_start_is_the_prompt_and_later_prompts_are_masked() -> None:
    first = finish(a_branch("abcXYdeZ", "---++--+", [(3, 3, 5), (4, 7, 8)], "first"))
    second = finish(a_branch("abfXf", "---+-", [(1, 3, 4)], "second"))
    group = build_group(a_request(group_size=3), [first, BROKEN, second], 2.0)
    assert text(group.prompt_ids) == "ab"
    assert text(group.token_ids) == "cXYdeZ" + "fXf"
    assert group.lengths.tolist() == [6, 0, 3]
    assert group.own is not None
    mask = [0, 1, 1, 0, 0, 1, 0, 1, 0]
    assert group.own.tolist() == mask
    assert group.behavior_logprobs.tolist() == [-float(is_policy) for is_policy in mask]
    spans = [
        [(span.version, span.start, span.end) for span in response.spans]
        for response in group.responses
    ]
    assert spans == [[(3, 0, 3), (4, 3, 6)], [], [(1, 0, 3)]]


def test_the_branch_with_the_most_tokens_of_the_policy_is_trained_the_last_of_equals() -> None:
    one_token = a_branch("ppppA", "----+", [(1, 4, 5)], "one")
    two_tokens = a_branch("pBC", "-++", [(1, 1, 3)], "two")
    equal = a_branch("qDE", "-++", [(1, 1, 3)], "equal")
    assert trained_branch(Trace(id="", branches=(one_token, two_tokens, equal))) is equal
    group = build_group(a_request(group_size=1), [finish(one_token, two_tokens)], 0.0)
    assert text(group.token_ids) == "BC"
    assert group.responses[0].text == "two"


def test_a_group_of_broken_episodes_has_neither_prompt_nor_tokens() -> None:
    group = build_group(a_request(group_size=2), [BROKEN, BROKEN], 0.0)
    assert len(group.prompt_ids) == 0
    assert len(group.token_ids) == 0
    assert [response.text for response in group.responses] == ["x", "x"]
