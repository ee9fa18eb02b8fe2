"""The similarity of two texts, in [0, 1]. It runs in the pool: time is quadratic in the length.

BLEU and GLEU use the tokens of mteval-v13a; ROUGE uses words in lower case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

_WORD = re.compile(r"[^\W_]+")
_BLEU = BLEU(effective_order=True)
_TOKENIZE = Tokenizer13a()


def similarity(metric: str, text: str, reference: str) -> float | None:
    """Return a value in [0, 1], or None if the reference has no n-gram to compare."""
    measure = METRICS[metric]
    value = min(1.0, measure(text, reference))
    if value > 0 or measure(reference, reference) > 0:
        return value
    return None


def fuzzy_match(text: str, reference: str) -> float:
    """Return 1 - indel distance / sum of lengths, as rapidfuzz's ``ratio`` does."""
    return fuzz.ratio(text, reference) / 100


def bleu(text: str, reference: str) -> float:
    """Return sacrebleu's sentence BLEU: n-grams up to 4 or the text's length, smoothed."""
    return _BLEU.sentence_score(text, [reference]).score / 100


def gleu(text: str, reference: str) -> float:
    """Return Google-BLEU (arXiv:1609.08144, section 4.4): the lower of precision and recall."""
    ours = _count_ngrams(_TOKENIZE(text).split(), range(1, 5))
    theirs = _count_ngrams(_TOKENIZE(reference).split(), range(1, 5))
    return (ours & theirs).total() / max(ours.total(), theirs.total(), 1)


def rouge_n(order: int, text: str, reference: str) -> float:
    ours = _count_ngrams(_split_words(text), [order])
    theirs = _count_ngrams(_split_words(reference), [order])
    return _f_measure((ours & theirs).total(), ours.total(), theirs.total())


def rouge_l(text: str, reference: str) -> float:
    ours = _split_words(text)
    theirs = _split_words(reference)
    return _f_measure(int(LCSseq.similarity(ours, theirs)), len(ours), len(theirs))


METRICS: Mapping[str, Callable[[str, str], float]] = {
    "fuzzy_match": fuzzy_match,
    "bleu": bleu,
    "gleu": gleu,
    **{f"rouge_{order}": partial(rouge_n, order) for order in range(1, 6)},
    "rouge_l": rouge_l,
}


def _split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _count_ngrams(tokens: Sequence[str], orders: Iterable[int]) -> Counter[tuple[str, ...]]:
    counts = Counter[tuple[str, ...]]()
    for order in orders:
        shifted = [tokens[start:] for start in range(order)]
        counts.update(zip(*shifted, strict=False))
    return counts


def _f_measure(common: int, ours: int, theirs: int) -> float:
    return 2 * common / (ours + theirs) if common else 0.0
