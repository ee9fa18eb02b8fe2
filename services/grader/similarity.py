"""How alike two texts are, in [0, 1]. Runs in the pool: time grows with the product of lengths.

Tokens of BLEU and GLEU are those of mteval-v13a; those of ROUGE are words in small letters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

_WORD = re.compile(r"[^\W_]+")
_BLEU = BLEU(effective_order=True)
_TOKENIZE = Tokenizer13a()


def similarity(metric: str, text: str, reference: str) -> float | None:
    """In [0, 1]; None if the reference has no n-gram, so that nothing is like it."""
    measure = METRICS[metric]
    value = min(1.0, measure(text, reference))
    return value if value > 0 or measure(reference, reference) > 0 else None


def fuzzy_match(text: str, reference: str) -> float:
    """1 - indel distance / sum of lengths: rapidfuzz's ``ratio``, of the texts as they are."""
    return fuzz.ratio(text, reference) / 100


def bleu(text: str, reference: str) -> float:
    """Sentence BLEU of sacrebleu: up to 4-grams, as many as the text has; exponential smoothing."""
    return _BLEU.sentence_score(text, [reference]).score / 100


def gleu(text: str, reference: str) -> float:
    """Google-BLEU, arXiv:1609.08144, section 4.4: the smaller of precision and recall."""
    ours, theirs = (_ngrams(_TOKENIZE(each).split(), 1, 2, 3, 4) for each in (text, reference))
    return (ours & theirs).total() / max(ours.total(), theirs.total(), 1)


def rouge_n(order: int, text: str, reference: str) -> float:
    ours, theirs = (_ngrams(_words(each), order) for each in (text, reference))
    return _f_measure((ours & theirs).total(), ours.total(), theirs.total())


def rouge_l(text: str, reference: str) -> float:
    ours, theirs = _words(text), _words(reference)
    return _f_measure(int(LCSseq.similarity(ours, theirs)), len(ours), len(theirs))


METRICS: Mapping[str, Callable[[str, str], float]] = {
    "fuzzy_match": fuzzy_match,
    "bleu": bleu,
    "gleu": gleu,
    **{f"rouge_{order}": partial(rouge_n, order) for order in range(1, 6)},
    "rouge_l": rouge_l,
}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _ngrams(tokens: Sequence[str], *orders: int) -> Counter[tuple[str, ...]]:
    shifted = ([tokens[start:] for start in range(order)] for order in orders)
    return Counter(ngram for each in shifted for ngram in zip(*each, strict=False))


def _f_measure(in_common: int, ours: int, theirs: int) -> float:
    return 2 * in_common / (ours + theirs) if in_common else 0.0
