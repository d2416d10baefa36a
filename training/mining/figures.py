"""A corpus in figures: how many texts, how long, in which scripts, and what a tokenizer makes of them.

What a figure means for a training is not here (advice.py).
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from models.files.bounded import parse_json
from models.progress import Progress
from models.tokens.normalize import normalized
from models.tokens.reading import WORD, Count
from models.tokens.tokenizer import Tokenizer
from training.mining.dedupe import near_duplicates
from training.text.corpus import Corpus

SAMPLE = 100_000  # texts that are looked into; a larger corpus is sampled
DECLUTR_TOKENS = 2048  # two anchors, each from 2 · 512 tokens (Giorgi et al. 2021)
SHORT_TOKENS = 3  # a text with fewer says next to nothing; chosen by us
OPENINGS = 10  # the most frequent ones
_OPENING_WORDS = 2
_SEED = 1
_WHOLE = 1 << 20  # tokens: no text of a corpus has more
_CHUNK = 2000  # texts that are tokenised together


@dataclass(frozen=True)
class Spread:
    least: float
    mean: float
    median: float
    p95: float
    most: float

    @classmethod
    def of(cls, numbers: ArrayLike) -> Spread:
        x = np.asarray(numbers, np.float64)
        found = (x.min(), x.mean(), np.median(x), np.percentile(x, 95), x.max())
        return cls(*(float(number) for number in found))


@dataclass(frozen=True)
class Figures:
    """Shares are fractions of the sampled texts unless something else is said."""

    texts: int  # distinct ones
    blank: int  # dropped before
    repeated: int  # dropped before
    sampled: int  # all texts, or SAMPLE of them
    near_duplicates: int  # in the sample, of an earlier text of it; a sample shows fewer than there are
    characters: Spread
    tokens: Spread  # without the special ones
    short: float  # share with fewer than SHORT_TOKENS tokens
    over_max_length: float  # share that the recipe cuts
    for_spans: float  # share with DECLUTR_TOKENS or more
    unknown: float  # share of [UNK] among the tokens
    tokens_per_word: float
    scripts: dict[str, float]  # share of the letters, the most frequent first
    vocabulary: dict[str, int]  # entries with a letter of each of these scripts
    openings: dict[str, float]  # share of the texts that begin with these words


def measure(corpus: Corpus, tokenizer_file: Path, max_length: int) -> Figures:
    """max_length: of the recipe, in tokens, special ones included."""
    texts = _sample(corpus.texts)
    lengths, unknown, special = _tokens(texts, tokenizer_file)
    content = lengths - special
    words = [WORD.findall(text) for text in texts]
    scripts = _scripts(texts)
    openings = Counter(filter(None, map(_opening, words)))
    return Figures(
        texts=len(corpus.texts),
        blank=corpus.blank,
        repeated=corpus.repeated,
        sampled=len(texts),
        near_duplicates=len(near_duplicates(texts)),
        characters=Spread.of([len(text) for text in texts]),
        tokens=Spread.of(content),
        short=float(np.mean(content < SHORT_TOKENS)),
        over_max_length=float(np.mean(lengths > max_length)),
        for_spans=float(np.mean(content >= DECLUTR_TOKENS)),
        unknown=sum(unknown) / max(int(content.sum()), 1),
        tokens_per_word=int(content.sum()) / sum(map(len, words)),
        scripts=scripts,
        vocabulary=_entries(tokenizer_file, scripts),
        openings={
            opening: count / len(texts) for opening, count in openings.most_common(OPENINGS) if count > 1
        },
    )


def unread(texts: Sequence[str], tokenizer_file: Path) -> str:
    """The reason for which these texts cannot be read by that tokenizer, or nothing."""
    return read(texts, tokenizer_file)[0]


def read(texts: Sequence[str], tokenizer_file: Path) -> tuple[str, list[str]]:
    """The reason for which that tokenizer cannot read them as a whole, or nothing; and what it reads.

    It reads all of them, or else those that it reads each by itself.
    """
    counts = _counts(texts, tokenizer_file)
    reason = sum(counts, start=Count()).unreadable()
    both = zip(texts, counts, strict=True)
    return reason, [text for text, count in both if not reason or not count.unreadable()]


def _opening(words: Sequence[str]) -> str:
    """The first words that have a letter or a digit; nothing when there are too few."""
    plain = (word for word in words if any(map(str.isalnum, word)))
    first = list(itertools.islice(plain, _OPENING_WORDS))
    return " ".join(first).casefold() if len(first) == _OPENING_WORDS else ""


def _sample(texts: Sequence[str]) -> Sequence[str]:
    if len(texts) <= SAMPLE:
        return texts
    chosen = np.random.default_rng(_SEED).choice(len(texts), SAMPLE, replace=False)
    return [texts[place] for place in np.sort(chosen)]


def _counts(texts: Sequence[str], file: Path) -> list[Count]:
    lengths, unknown, special = _tokens(texts, file)
    each = zip(texts, lengths.tolist(), unknown, strict=True)
    return [Count(len(WORD.findall(text)), length - special, strange) for text, length, strange in each]


def _tokens(
    texts: Sequence[str], file: Path
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[int], int]:
    """(tokens of each text, unknown ones among them, special ones of each text)."""
    tokenizer = Tokenizer(file, _WHOLE)
    unknown = _unknown_id(file)
    lengths: list[int] = []
    strange: list[int] = []
    with Progress("texts", len(texts), "tokenising") as progress:
        for start in range(0, len(texts), _CHUNK):
            for tokens in tokenizer.tokenize(texts[start : start + _CHUNK]):
                lengths.append(len(tokens.ids))
                strange.append(tokens.ids.count(unknown) if unknown is not None else 0)
            progress.add(min(_CHUNK, len(texts) - start))
    return np.array(lengths), strange, len(tokenizer.tokenize([""])[0].ids)


def _unknown_id(file: Path) -> int | None:
    """None where the tokenizer takes any bytes."""
    model = parse_json(file.read_bytes())["model"]
    if model.get("unk_token") is not None and isinstance(model["vocab"], dict):
        return model["vocab"].get(model["unk_token"])
    unknown: int | None = model.get("unk_id")
    return unknown


def _scripts(texts: Iterable[str]) -> dict[str, float]:
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(text)
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        for script in _scripts_of(letter):
            scripts[script] += count
    total = scripts.total()
    return {script: count / total for script, count in scripts.most_common()}


def _scripts_of(text: str) -> set[str]:
    """By the first word of the letters' Unicode names, once they are spelled in their plain form."""
    names = (
        unicodedata.name(letter, "")
        for letter in normalized(text, "NFKC")
        if unicodedata.category(letter) in ("Lu", "Ll", "Lt", "Lo")
    )
    words = {name.split()[0].capitalize() for name in names if name}
    return {"Han" if word == "Cjk" else word for word in words}


def _entries(file: Path, scripts: Iterable[str]) -> dict[str, int]:
    vocabulary = parse_json(file.read_bytes())["model"]["vocab"]
    words = vocabulary if isinstance(vocabulary, dict) else (word for word, _ in vocabulary)
    found = Counter(script for word in words for script in _scripts_of(word))
    return {script: found[script] for script in scripts}
