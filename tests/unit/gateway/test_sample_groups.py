from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from services.gateway.samples.catalog import catalog_of
from services.gateway.samples.group import group_json
from services.gateway.samples.pieces import text_pieces, tokenizer_of
from tests.builders import a_graded_group, a_group, a_request, a_task
from tests.sample_stores import failed_facts, sample_facts, sampled_group

END = "<end>"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token per byte, and one each for " wor" and "<end>"."""
    alphabet = sorted(ByteLevel.alphabet())
    merges = [("Ġ", "w"), ("Ġw", "o"), ("Ġwo", "r")]
    names = [*alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = ByteLevelDecoder()
    made.add_special_tokens([END])
    return made


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text).ids


def test_pieces_are_the_texts_of_the_tokens(tokenizer: Tokenizer) -> None:
    text = "Hi world"
    pieces = text_pieces(tokenizer, ids_of(tokenizer, text), text)
    assert pieces == ["H", "i", " wor", "l", "d"]


def test_a_character_of_several_tokens_is_the_piece_of_the_last_one(tokenizer: Tokenizer) -> None:
    text = "a😀é!"
    pieces = text_pieces(tokenizer, ids_of(tokenizer, text), text)
    assert pieces == ["a", "", "", "", "😀", "", "é", "!"]


def test_bytes_that_are_no_text_still_make_up_the_text(tokenizer: Tokenizer) -> None:
    half = ids_of(tokenizer, "😀")[:2]
    for ids in (half * 3, [*half, *ids_of(tokenizer, "x")]):
        text = tokenizer.decode(ids)
        pieces = text_pieces(tokenizer, ids, text)
        assert ("".join(pieces), len(pieces)) == (text, len(ids))


@pytest.mark.parametrize("text", ["another text", "Hi worlds apart", ""])
def test_where_tokens_do_not_make_up_the_text_it_is_the_first_piece(
    tokenizer: Tokenizer, text: str
) -> None:
    ids = ids_of(tokenizer, "Hi there")
    expected = [text, *[""] * (len(ids) - 1)]
    assert text_pieces(None, ids, text) == expected
    if not text.startswith("Hi there"):
        assert text_pieces(tokenizer, ids, text) == expected


def test_a_store_may_have_no_tokenizer_or_one_that_cannot_be_read(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    assert tokenizer_of(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{")
    assert tokenizer_of(tmp_path) is None
    (tmp_path / "good").mkdir()
    tokenizer.save(str(tmp_path / "good" / "tokenizer.json"))
    assert tokenizer_of(tmp_path / "good") is not None


def shown(facts: Any, tokenizer: Tokenizer | None = None, **changes: Any) -> dict[str, Any]:
    (group,) = catalog_of("segment", [(0, facts)]).groups
    return json.loads(group_json(group, sampled_group(facts, **changes), tokenizer))


def test_a_group_is_shown_with_every_number_of_every_token(tokenizer: Tokenizer) -> None:
    texts = ["2😀", "no"]
    ids = [ids_of(tokenizer, text) for text in texts]
    group = a_group(
        a_request(number=3, task=a_task(metadata={"level": 2})),
        [len(each) for each in ids],
        texts=texts,
        token_ids=[*ids[0], *ids[1]],
        prompt_ids=ids_of(tokenizer, f"1+1={END}"),
        behavior_logprobs=-np.arange(7) / 8,
    )
    answer = shown(
        sample_facts(3, step=2, fate="used"),
        tokenizer,
        graded=a_graded_group(group, [1.0, 0.0]),
        rewards=[1.0, 0.1],
        advantages=[0.5, math.nan],
        logprobs=[math.nan, 0, -1, -2, -3, -0.1, -4],
        entropies=[],
    )
    first, second = answer["responses"]
    of_group = {"id": "train:3", "step": 2, "fate": "used", "prompt": f"1+1={END}"}
    assert of_group.items() <= answer.items()
    assert answer["task"] == a_task(metadata={"level": 2}).model_dump(mode="json")
    assert first["grade"]["outcome"]["value"] == 1
    of_response = {
        "text": "2😀",
        "reward": 1.0,
        "advantage": 0.5,
        "tokens": ["2", "", "", "", "😀"],
        "behavior_logprobs": [0, -0.125, -0.25, -0.375, -0.5],
        "logprobs": [None, 0, -1, -2, -3],
        "entropies": None,
    }
    assert of_response.items() <= first.items()
    assert (second["reward"], second["advantage"]) == (0.1, None)
    assert (second["logprobs"], second["tokens"]) == ([-0.1, -4], ["n", "o"])


def test_a_group_that_failed_says_why_and_has_no_responses() -> None:
    answer = shown(failed_facts(4))
    assert (answer["failure"], answer["task"], answer["prompt"]) == ("four deaths", None, None)
    assert answer["responses"] == []
