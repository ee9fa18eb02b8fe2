"""Decode tokens with a client's tokenizer, in a process with limits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

MAX_OPEN_TOKENS = 64  # in a row that end within a character: decoding them is quadratic


def decode(
    path: str, changed_ns: int, token_ids: Sequence[int], skip_special_tokens: bool
) -> list[str]:
    """Return the text of each token; empty if the tokenizer cannot separate them.

    A token that ends within a character has none, and the next one the whole character.
    """
    tokenizer = _tokenizer(path, changed_ns)
    stream = DecodeStream(skip_special_tokens=skip_special_tokens)
    texts: list[str] = []
    num_open = 0
    for token_id in token_ids:
        try:
            piece = stream.step(tokenizer, token_id)
        except Exception:  # the tokenizer raises no narrower type
            return []
        num_open = 0 if piece else num_open + 1
        if num_open > MAX_OPEN_TOKENS:
            return []
        texts.append(piece or "")
    return texts


@lru_cache(maxsize=2)
def _tokenizer(path: str, _changed_ns: int) -> Tokenizer:
    return Tokenizer.from_file(path)
