import asyncio
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from protocol.messages import Episode, Grade, Graded, Mark, Turn, Ungradable
from rich.console import Console, Group
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from services.gateway.core.samples.decoding import decode
from services.gateway.core.samples.group import group_json, token_texts
from services.gateway.core.samples.store import Store
from services.learner.durable.sample_rows import Row
from tests.builders import a_graded_group, a_group, a_request, a_task
from tests.sample_stores import a_failed_sample, a_response, a_sample, write_samples
from tests.unit.grader.pools import InlinePool
from weir.views import group_view

POOL: Any = InlinePool()
END = "<end>"
Shown = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token per byte, and one each for " wor" and "<end>"."""
    alphabet = sorted(ByteLevel.alphabet())
    merges = [("Ġ", "w"), ("Ġw", "o"), ("Ġwo", "r")]
    names = [*alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([END])
    return tokenizer


@pytest.fixture(scope="module")
def file(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def decode_texts(file: str, ids: list[int], text: str) -> list[str]:
    return token_texts(decode(file, 0, ids, True), len(ids), text)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text).ids


@pytest.mark.parametrize("pieces", ["H i ␣wor l d", "a · · · 😀 · é !"])
def test_pieces_are_the_texts_of_the_tokens_and_a_character_that_of_its_last_one(
    tokenizer: Tokenizer, file: str, pieces: str
) -> None:
    expected = [piece.strip("·").replace("␣", " ") for piece in pieces.split()]
    text = "".join(expected)
    assert decode_texts(file, encode(tokenizer, text), text) == expected


def test_bytes_that_are_no_text_still_make_up_the_text(tokenizer: Tokenizer, file: str) -> None:
    half = encode(tokenizer, "😀")[:2]
    for ids in (half * 3, [*half, *encode(tokenizer, "x")]):
        text = tokenizer.decode(ids)
        texts = decode_texts(file, ids, text)
        assert "".join(texts) == text
        assert len(texts) == len(ids)


@pytest.mark.parametrize("text", ["another text", "Hi worlds apart", ""])
def test_where_tokens_do_not_make_up_the_text_it_is_the_first_piece(
    tokenizer: Tokenizer, file: str, text: str
) -> None:
    ids = encode(tokenizer, "Hi there")
    expected = [text, *[""] * (len(ids) - 1)]
    assert token_texts([], len(ids), text) == expected
    if not text.startswith("Hi there"):
        assert decode_texts(file, ids, text) == expected


@pytest.mark.parametrize("text", ["Hi<end>there", "Hithere"])
def test_special_tokens_are_pieces_of_a_text_that_has_them_but_for_the_last(
    tokenizer: Tokenizer, show: Shown, text: str
) -> None:
    ids = encode(tokenizer, "Hi<end>there<end>")
    group = a_group(a_request(group_size=1), [len(ids)], texts=[text], token_ids=np.array(ids))
    answer = show(a_sample(0, a_response(), graded=a_graded_group(group)), tokenizer)
    (response,) = answer["responses"]
    assert "".join(response["tokens"]) == text
    assert len(response["tokens"]) == len(ids)
    assert response["tokens"][1:4] == ["i", "<end>" * ("<" in text), "t"]


@pytest.fixture
def show(tmp_path: Path) -> Shown:
    """Return a function that writes a group and reads its JSON."""

    def show(rows: list[Row], tokenizer: Tokenizer | None = None) -> dict[str, Any]:
        write_samples(tmp_path, rows)
        if tokenizer is not None:
            tokenizer.save(str(tmp_path / "tokenizer.json"))
        return json.loads(asyncio.run(group_json(Store(tmp_path), rows[0]["key"], POOL)))

    return show


def check_json(shown: dict[str, Any], expected: str) -> None:
    """Check that an object has these fields."""
    assert shown.items() >= json.loads(expected).items()


def test_a_group_is_shown_with_every_number_of_every_token(
    tokenizer: Tokenizer, show: Shown
) -> None:
    texts = ["2😀", "no"]
    own = np.array([1, 1, 1, 1, 1, 1, 0])  # the last is a tool's
    group = a_group(
        a_request(number=3),
        [5, 2],
        texts=texts,
        token_ids=encode(tokenizer, "".join(texts)),
        prompt_ids=encode(tokenizer, f"1+1={END}"),
        behavior_logprobs=-np.arange(7) / 8 * own,
        own=own,
    )
    rows = a_sample(3, step=2, graded=a_graded_group(group, [1.0, 0.0]))
    rows[0] |= {"logprobs": [math.nan, 0, -1, -2, -3]}
    rows[1] |= {"reward": 0.1, "advantage": None, "logprobs": [-0.1, -4]}
    answer = show(rows, tokenizer)
    first, second = answer["responses"]
    check_json(answer, '{"id": "train:3", "step": 2, "fate": "used", "prompt": "1+1=<end>"}')
    assert answer["task"] == a_task().model_dump(mode="json")
    assert first["grade"]["outcome"]["value"] == 1
    check_json(
        first,
        """{
        "text": "2😀", "reward": 1.0, "advantage": 0.5, "tokens": ["2", "", "", "", "😀"],
        "behavior_logprobs": [0, -0.125, -0.25, -0.375, -0.5],
        "logprobs": [null, 0, -1, -2, -3], "entropies": null
        }""",
    )
    check_json(
        second,
        """{
        "reward": 0.1, "advantage": null, "tokens": ["n", "o"],
        "behavior_logprobs": [-0.625, null], "logprobs": [-0.1, -4]
        }""",
    )
    assert "1 tokens" in printed(answer)


def printed(group: dict[str, Any], *, color: bool = False) -> str:
    out = io.StringIO()
    system = "standard" if color else None
    Console(file=out, width=200, force_terminal=color, color_system=system).print(
        Group(*group_view(group))
    )
    return out.getvalue()


def a_graded_sample(texts: list[str], grades: list[Grade], **task: Any) -> list[Row]:
    group = a_group(a_request(task=a_task(**task)), texts=texts)
    return a_sample(0, graded=a_graded_group(group, grades=grades))


def test_a_group_is_shown_with_its_task_grades_marks_and_comments(show: Shown) -> None:
    mark = Mark(start=4, end=9, verdict="wrong", note="it is 4")
    judged = Graded(value=0.25, marks=(mark,), comments={"rigour": "skips a step"})
    grades = [
        Grade(outcome=Graded(value=1.0), process=judged),
        Grade(outcome=Ungradable(reason="no gold answer")),
    ]
    texts = ["say 2+2=5 then", "nothing"]
    answer = show(a_graded_sample(texts, grades, prompt="2 + 2?", answer="4"))
    assert printed(answer) == dedent("""\
        train:0, step 0: used
        task sum-1, answer 4
        2 + 2?

        response 0: outcome 1.00, process 0.25, reward 1.000, advantage +0.500, 2 tokens, stop
        say 2+2=5 then
        process: wrong: 2+2=5 (it is 4)
        process: rigour: skips a step

        response 1: outcome -, reward 1.000, advantage +0.500, 2 tokens, stop
        nothing
        outcome: no gold answer
    """)
    assert "say \x1b[31m2+2=5\x1b[0m then" in printed(answer, color=True)


def test_an_episode_is_shown_with_all_its_tokens_its_conversation_and_what_broke_it(
    tokenizer: Tokenizer, show: Shown
) -> None:
    said = [("user", "one\ntwo"), ("assistant", "a"), ("tool", "tool"), ("assistant", "b")]
    turns = tuple(Turn(role=role, content=content) for role, content in said)
    time = {"model": 3.0, "environment": 40.0}
    played = Episode(reward=0.25, turns=2, seconds=time, conversation=turns)
    broken = Episode(problem="episode_timeout", words="not over in 600 s", turns=0)
    group = a_group(
        a_request(),
        [8, 0],
        texts=["a\n\nb", ""],
        episodes=[played, broken],
        token_ids=encode(tokenizer, f"a{END}tool{END}b"),
        own=[1, 1, 0, 0, 0, 0, 0, 1],
    )
    grades = [Grade(outcome=score) for score in (Graded(value=0.25), Ungradable(reason="broke"))]
    answer = show(a_sample(0, graded=a_graded_group(group, grades=grades)), tokenizer)
    (first, _) = answer["responses"]
    assert first["tokens"] == ["a", END, *"tool", END, "b"]
    assert first["episode"] == json.loads(played.model_dump_json())
    assert dedent("""
        response 0: outcome 0.25, reward 1.000, advantage +0.500, 3 tokens, stop
        environment: reward 0.250, 2 turns, model 3 s, environment 40 s
        │ user: one
        │ two
        a
        │ tool: tool
        b

        response 1: outcome -, reward 1.000, advantage +0.500, 0 tokens, stop
        environment: episode_timeout: not over in 600 s, 0 turns
        outcome: broke
    """) in printed(answer)


def test_a_group_that_failed_says_why_and_has_no_responses(show: Shown) -> None:
    answer = show(a_failed_sample(0, "it failed in \x1b[31mthree\x1b[0m replicas"))
    check_json(answer, '{"task": null, "prompt": null, "responses": []}')
    assert printed(answer) == "train:0, step 0: deaths: it failed in ␛[31mthree␛[0m replicas\n"


def test_nothing_that_a_model_wrote_steers_the_terminal(show: Shown) -> None:
    hostile = "\x1b]0;owned\x07\r\x9b31m\x7f\u202ereversed [bold]tag[/bold]\ttab\nnew line"
    remark = Graded(value=0.0, reason=hostile, comments={hostile: hostile})
    grades = [Grade(outcome=remark)] * 2
    answer = show(a_graded_sample([hostile, hostile], grades, id=hostile, answer=hostile))
    plain = printed(answer)
    assert not {"\x1b", "\x07", "\r", "\x9b", "\x7f", "\u202e"} & set(plain)
    assert "[bold]tag[/bold]" in plain
    assert "new line" in plain.splitlines()
