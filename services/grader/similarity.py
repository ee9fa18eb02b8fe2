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

Ngrams = Counter[tuple[str, ...]]
_WORD = re.compile(r"[^\W_]+")
_BLEU = BLEU(effective_order=True)
_TOKENIZE = Tokenizer13a()


def similarity(metric: str, text: str, reference: str) -> float | None:
    """Return a value in [0, 1], or None if the reference has no n-gram to compare."""
    measure = METRICS[metric]
    value = min(1.0, measure(text, reference))
    if value > 0:
        return value
    is_comparable = measure(reference, reference) > 0
    return value if is_comparable else None


def fuzzy_match(text: str, reference: str) -> float:
    """Return 1 - indel distance / sum of lengths, as rapidfuzz's ``ratio`` does."""
    percentage = fuzz.ratio(text, reference)
    return percentage / 100


def bleu(text: str, reference: str) -> float:
    """Return sacrebleu's sentence BLEU: n-grams up to 4 or the text's length, smoothed."""
    score = _BLEU.sentence_score(text, [reference])
    return score.score / 100


def gleu(text: str, reference: str) -> float:
    """Return Google-BLEU (arXiv:1609.08144, section 4.4): the lower of precision and recall."""
    orders = range(1, 5)
    ours = _count_ngrams(_TOKENIZE(text).split(), orders)
    theirs = _count_ngrams(_TOKENIZE(reference).split(), orders)
    common = (ours & theirs).total()
    longer = max(ours.total(), theirs.total())
    return common / max(longer, 1)


def rouge_n(order: int, text: str, reference: str) -> float:
    orders = [order]
    ours = _count_ngrams(_split_words(text), orders)
    theirs = _count_ngrams(_split_words(reference), orders)
    common = ours & theirs
    return _f_measure(common.total(), ours.total(), theirs.total())


def rouge_l(text: str, reference: str) -> float:
    ours = _split_words(text)
    theirs = _split_words(reference)
    common = int(LCSseq.similarity(ours, theirs))
    return _f_measure(common, len(ours), len(theirs))


Metric = Callable[[str, str], float]
METRICS: Mapping[str, Metric] = {
    "fuzzy_match": fuzzy_match,
    "bleu": bleu,
    "gleu": gleu,
    "rouge_1": partial(rouge_n, 1),
    "rouge_2": partial(rouge_n, 2),
    "rouge_3": partial(rouge_n, 3),
    "rouge_4": partial(rouge_n, 4),
    "rouge_5": partial(rouge_n, 5),
    "rouge_l": rouge_l,
}


def _split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _count_ngrams(tokens: Sequence[str], orders: Iterable[int]) -> Ngrams:
    counts = Ngrams()
    for order in orders:
        shifted = [tokens[start:] for start in range(order)]
        ngrams = zip(*shifted, strict=False)
        counts.update(ngrams)
    return counts


def _f_measure(common: int, ours: int, theirs: int) -> float:
    if not common:
        return 0.0
    return 2 * common / (ours + theirs)
