"""The text that each token of a response stands for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from protocol.samples import TOKENIZER
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

log = logging.getLogger(__name__)
_MOST_OPEN = 64  # tokens in a row that end within a character; decoding them takes quadratic time


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """The tokenizer of a sample store, if it has one that can be read."""
    path = folder / TOKENIZER
    try:
        return _tokenizer(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return None


def text_pieces(tokenizer: Tokenizer | None, token_ids: Sequence[int], text: str) -> list[str]:
    """One piece of ``text`` per token, which make up the text one after another.

    A token that ends within a character has none, and the next one the whole character. Where the
    tokens' texts do not make up the text, the first piece is all of it.
    """
    pieces = _decoded(tokenizer, token_ids) if tokenizer is not None else []
    made = "".join(pieces)
    if made and text.startswith(made):  # what is missing is an unfinished character at the end
        return [*pieces[:-1], pieces[-1] + text[len(made) :]]
    return [text, *[""] * (len(token_ids) - 1)] if len(token_ids) else []


def _decoded(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    stream, pieces, num_open = DecodeStream(skip_special_tokens=True), [], 0
    for token_id in token_ids:
        try:
            piece = stream.step(tokenizer, token_id)
        except Exception:  # of no narrower type: the tokenizer cannot go on from these tokens
            return []
        num_open = 0 if piece else num_open + 1
        if num_open > _MOST_OPEN:
            return []
        pieces.append(piece or "")
    return pieces


@lru_cache(maxsize=2)
def _tokenizer(path: Path, _changed_ns: int) -> Tokenizer | None:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # of no narrower type
        log.warning("%s is no tokenizer: %s; samples are shown without their tokens", path, error)
        return None
