"""A model's STS-B beside a count of words: `python -m benchmarks.common_words MODEL … --data DIR`

Two sentences have a share of words in common: the words in both, over the words in either (Jaccard), with a
weight for each word that is higher the rarer it is. For each model the table has the rank correlation of its
cosines with people's scores, with that share, and with people's scores while the share is held constant: a
partial correlation. It speaks of the cosines, and not of what a model may know besides.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np

from benchmarks.places import arguments, ending
from benchmarks.tables import table
from benchmarks.workloads import WIKIPEDIA, texts_of
from models.errors import ModelError
from training.errors import TrainingError
from training.evaluation.data import STSB, Pairs, load
from training.evaluation.scorable import open_scorable
from training.evaluation.sts import Floats, sample, spearman

SPLITS = ("dev", "test")
SENTENCES = 20_000  # of Wikipedia, that say how rare a word is

Weight = Callable[[str], float]


def main() -> None:
    parser = arguments("common_words", __doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="as `evaluate` takes it")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    columns = ["model", *(f"{split}, {what}" for split in SPLITS for what in ("scores", "words", "beyond"))]
    with ending(TrainingError, ModelError):
        print(table(columns, [*compared(options.models, options.data)]))


def compared(models: Iterable[str], data: Path) -> Iterator[list[str]]:
    """A row for the share of common words, one for that share without weights, and one for each model."""
    weight = rarity(islice(texts_of(data / WIKIPEDIA), SENTENCES))
    sets = [(pairs, shares(pairs, weight)) for pairs in (load(STSB, data, split) for split in SPLITS)]

    def row(name: str, cosines: Iterable[Floats]) -> list[str]:
        each = zip(cosines, sets, strict=True)
        found = chain.from_iterable(
            correlations(cosine, pairs.gold, share) for cosine, (pairs, share) in each
        )
        return [name, *("" if math.isnan(figure) else f"{100 * figure:.1f}" for figure in found)]

    yield row("common words, weighted", [share for _, share in sets])
    yield row("common words", [shares(pairs, lambda _: 1.0) for pairs, _ in sets])
    for name in models:
        with open_scorable(name) as model:
            yield row(name, [sample(pairs, model.encode)[1] for pairs, _ in sets])


def rarity(texts: Iterable[str]) -> Weight:
    """A word's inverse document frequency, log((texts + 1) / (texts with it + 1/2))."""
    sets = [_words(text) for text in texts]
    having = Counter(word for words in sets for word in words)
    return lambda word: math.log((len(sets) + 1) / (having[word] + 0.5))


def shares(pairs: Pairs, weight: Weight) -> Floats:
    """(n,): the weight of the words that the two sentences of each pair share, over all of theirs; 0 to 1."""
    words = ((_words(left), _words(right)) for left, right in zip(pairs.left, pairs.right, strict=True))
    found = ((sum(map(weight, left & right)), sum(map(weight, left | right))) for left, right in words)
    return np.array([common / either if either else 0.0 for common, either in found])


def correlations(cosine: Floats, gold: Floats, share: Floats) -> tuple[float, float, float]:
    """Of the cosines (n,): with people's scores, with the share of words, and with the scores beyond it.

    The third is a textbook's partial correlation, (c - s w) / sqrt((1 - s²)(1 - w²)), where c, s and w are
    Spearman's of cosine and score, cosine and share, share and score. NaN when nothing is left.
    """
    scores, words, plain = spearman(cosine, gold), spearman(cosine, share), spearman(gold, share)
    rest = (1 - words**2) * (1 - plain**2)
    return scores, words, (scores - words * plain) / math.sqrt(rest) if rest > 1e-9 else math.nan


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


if __name__ == "__main__":
    main()
