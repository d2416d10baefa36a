"""Read pairs of texts from files, and find pairs in texts without labels.

    FILE.tsv     columns anchor and positive, or other names that training reads; further columns are ignored
    FILE.jsonl   {"anchor": …, "positive": …}

Without labels, a pair is either a title with its text, or two texts whose vectors are nearest neighbors of
each other. Near-duplicates are removed first, because pairs of them teach a model little. Texts that differ
only in white space count as one text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from training.errors import NothingToLearn, TrainingError
from training.evaluation.encoding import Encode
from training.mining.dedupe import THRESHOLD, near_duplicates
from training.mining.neighbors import mutual_nearest, unit_vectors
from training.text.corpus import ANCHOR, POSITIVE
from training.text.lines import build_text, layout, read_records


class Labelled(NamedTuple):
    positives: dict[str, list[str]]  # distinct positives of each anchor, in the order of the file
    candidates: list[str]  # distinct candidates for negatives
    blank: int  # dropped pairs with a blank text
    repeated: int  # dropped pairs that were repeated, or whose texts are equal


def folded(text: str) -> str:
    """Returns the text without white space at the ends, and with a single space for each run inside."""
    return " ".join(text.split())


def read_labelled_pairs(file: Path, corpus: Iterable[str] | None = None) -> Labelled:
    """Reads a file of pairs. Candidates for negatives are the texts in `corpus`, or else all positives."""
    if file.is_file() and not layout(file):
        raise TrainingError(f"{file} holds no pairs: name a .jsonl or .tsv with anchor and positive.")
    pairs = (
        (build_text(record, ANCHOR), build_text(record, POSITIVE))
        for record in read_records(file, [ANCHOR, POSITIVE])
        if record.fields
    )
    return label_pairs(pairs, corpus, str(file))


def label_pairs(pairs: Iterable[tuple[str, str]], corpus: Iterable[str] | None, source: str) -> Labelled:
    """Groups pairs by their anchor. `source` names their place in the error if no pair is left."""
    positives: dict[str, dict[str, None]] = {}
    blank = repeated = 0
    for anchor, positive in ((folded(first), folded(second)) for first, second in pairs):
        if not anchor or not positive:
            blank += 1
        elif anchor == positive or positive in positives.get(anchor, ()):
            repeated += 1
        else:
            positives.setdefault(anchor, {})[positive] = None
    if not positives:
        raise NothingToLearn(f"{source} holds no pair of two different texts.")
    known = (text for of_one in positives.values() for text in of_one)
    candidates = dict.fromkeys(known if corpus is None else map(folded, corpus))
    candidates.pop("", None)
    return Labelled({anchor: list(of) for anchor, of in positives.items()}, list(candidates), blank, repeated)


MIN_SCORE = 0.7  # cosine of the default model. Our choice


class Pair(NamedTuple):
    """A pair that was found without labels: one line of the output, with the field names as keys."""

    anchor: str
    positive: str
    score_positive: float | None  # None if no model computed it
    source: str  # neighbours or title


def get_body(title: str, text: str) -> str:
    """Removes the title from the beginning of a text. Both must be `folded`.

    If the title stayed, a model could match title and text by the repeated words. Nothing is removed if the
    text begins with a longer word, such as "VPNs" for the title "VPN".
    """
    rest = text[len(title) :]
    repeated = bool(title) and text[: len(title)].casefold() == title.casefold()
    return rest.lstrip(" .:-") if repeated and not rest[:1].isalnum() else text


def title_pairs(documents: Sequence[tuple[str, str]]) -> Iterator[Pair]:
    """Yields pairs of title and text from documents. Titles that several documents share are left out."""
    distinct = list(dict.fromkeys((folded(title), folded(text)) for title, text in documents))
    used = Counter(title for title, _ in distinct)
    for title, text in distinct:
        body = get_body(title, text)
        if title and body and title != body and used[title] == 1:
            yield Pair(title, body, None, "title")


def neighbor_pairs(texts: Sequence[str], encode: Encode, min_score: float = MIN_SCORE) -> Iterator[Pair]:
    """Yields pairs of texts that are nearest neighbors of each other, in the order of `texts`.

    The cosine of a pair is at least `min_score`. Near-duplicates are left out.
    """
    distinct = list(dict.fromkeys(filter(None, map(folded, texts))))
    dropped = {duplicate.place for duplicate in near_duplicates(distinct, THRESHOLD)}
    kept = [text for place, text in enumerate(distinct) if place not in dropped]
    for first, second, cosine in mutual_nearest(unit_vectors(encode, kept)):
        if cosine >= min_score:
            yield Pair(kept[first], kept[second], round(cosine, 6), "neighbours")
