"""The texts to measure with: real words, in lengths that are drawn once and are the same on every machine.

Each text is a run of words from real text, ended where it has as many tokens as its drawn length, so both
sources give the same lengths:
- the evaluation folder, if SIMILE_EVAL_DATA names it: Wikipedia sentences and
  the abstracts of SciFact and Cranfield;
- else the project's own example corpus, whose 320 texts are then used many times, from many beginnings.
"""

import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from models.tokens.tokenizer import Tokenizer
from training.errors import TrainingError
from training.evaluation.data import data_folder, optional_data_folder
from training.text.lines import read_records, text_of

PROJECT = Path(__file__).parent.parent
EXAMPLES = PROJECT / "models" / "tokens" / "examples.jsonl"
WIKIPEDIA = "wiki_sentences/wiki_sentences.tsv.gz"
ABSTRACTS = ("scifact/corpus.jsonl.gz", "cranfield/corpus.jsonl.gz")
WIKIPEDIA_SENTENCES = 12_000
WORDS_BETWEEN_BEGINNINGS = 7  # when the corpus is read again, its texts begin elsewhere
LONGEST = 256


@dataclass(frozen=True, slots=True)
class Workload:
    """Texts and their token ids, special ones included."""

    name: str
    texts: list[str]
    ids: list[list[int]]

    def lengths(self) -> list[int]:
        return [len(row) for row in self.ids]

    @property
    def mean_tokens(self) -> float:
        return sum(self.lengths()) / len(self.ids)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The source of words: `passages` are read in order, again and again."""

    source: str
    passages: list[str]


def evaluation_folder() -> Path:
    """Returns the folder that SIMILE_EVAL_DATA names. Exits with a sentence if it names none."""
    try:
        return data_folder(None)
    except TrainingError as error:
        sys.exit(str(error))


def texts_of(file: Path) -> Iterator[str]:
    """The texts of a file, or the sentences, in its order. Raises TrainingError."""
    return (text_of(record, ("sentence", "text")) for record in read_records(file))


def corpus() -> Corpus:
    """Returns the evaluation folder's texts, or the project's own. Exits with a sentence on bad files."""
    try:
        return _corpus()
    except TrainingError as error:
        sys.exit(str(error))


def _corpus() -> Corpus:
    folder = optional_data_folder(None)
    files = [folder / name for name in (WIKIPEDIA, *ABSTRACTS)] if folder else []
    if not files or not all(file.is_file() for file in files):
        return Corpus("the project's own example corpus, used many times", [*texts_of(EXAMPLES)])
    sentences = islice(texts_of(files[0]), WIKIPEDIA_SENTENCES)
    abstracts = chain.from_iterable(map(texts_of, files[1:]))
    # In turns, so that every stretch of the corpus has both kinds.
    mixed = [text for pair in zip(sentences, abstracts, strict=False) for text in pair]
    return Corpus("Wikipedia sentences, SciFact and Cranfield abstracts", mixed)


def sentences(tokenizer: Tokenizer, source: Corpus, count: int) -> Workload:
    """Short texts: 8 to about 40 tokens, 17 on average."""
    return _workload("sentences", tokenizer, source, count, _sentence_length)


def mixture(tokenizer: Tokenizer, source: Corpus, count: int) -> Workload:
    """A long tail: 8 to 256 tokens, half of the texts at most 16, about 29 on average."""
    return _workload("mixture", tokenizer, source, count, _mixture_length)


def _sentence_length(chance: random.Random) -> int:
    return min(40, 8 + int(chance.gammavariate(2.0, 4.5)))


def _mixture_length(chance: random.Random) -> int:
    return max(8, min(LONGEST, int(chance.lognormvariate(math.log(16), 1.08))))


def _workload(
    name: str, tokenizer: Tokenizer, source: Corpus, count: int, length: Callable[[random.Random], int]
) -> Workload:
    chance = random.Random(f"{name} of the bench")
    words = _words(tokenizer, source.passages)
    texts = [_text(words, length(chance) - _special(tokenizer)) for _ in range(count)]
    return Workload(name, texts, [list(tokens.ids) for tokens in tokenizer.tokenize(texts)])


def _text(words: Iterator[tuple[str, int]], tokens: int) -> str:
    """The next words, `tokens` tokens of them or a few more when the last word has many."""
    taken: list[str] = []
    while tokens > 0:
        word, size = next(words)
        taken.append(word)
        tokens -= size
    return " ".join(taken)


def _words(tokenizer: Tokenizer, passages: list[str]) -> Iterator[tuple[str, int]]:
    """Each word and its tokens, for ever; a later round begins within the corpus."""
    special = _special(tokenizer)
    words: list[tuple[str, int]] = []
    for passage in passages:
        found = passage.split()
        counted = [
            (word, len(row.ids) - special) for word, row in zip(found, tokenizer.tokenize(found), strict=True)
        ]
        words += counted
        yield from counted
    begin = 0
    while True:
        begin = (begin + WORDS_BETWEEN_BEGINNINGS) % len(words)
        yield from words[begin:]


def _special(tokenizer: Tokenizer) -> int:
    """Special tokens of one text; "a" itself is one token."""
    return len(tokenizer.tokenize(["a"])[0].ids) - 1
