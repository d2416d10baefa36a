"""Create texts of random lengths for speed measurements. Equal sources give equal texts on every machine.

Each text consists of consecutive words from a source of real text. It ends with the word that reaches a
random number of tokens, so the lengths hardly depend on the source. The sources:

- the evaluation folder, if SIMILE_EVAL_DATA names it: Wikipedia sentences and abstracts of SciFact and
  Cranfield;
- otherwise the project's example corpus, whose 320 texts are used repeatedly with different beginnings.
"""

import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from benchmarks.command import PROJECT
from models.tokens.pairs import Pair, PairTokenizer
from models.tokens.tokenizer import PairIds, Tokenizer
from training.errors import TrainingError
from training.evaluation.data import data_folder, optional_data_folder
from training.text.lines import build_text, read_records

EXAMPLES = PROJECT / "models" / "tokens" / "examples.jsonl"
WIKIPEDIA = "wiki_sentences/wiki_sentences.tsv.gz"
ABSTRACTS = ("scifact/corpus.jsonl.gz", "cranfield/corpus.jsonl.gz")
WIKIPEDIA_SENTENCES = 12_000
WORDS_BETWEEN_BEGINNINGS = 7  # offset of each further pass over the corpus, so that its texts differ
MAX_TOKENS = 256
PAIR_TOKENS, QUERY_TOKENS, QUERY_WORDS = 128, 10, 8
TAB = "\t"  # between the query and the text of a pair
VOCABULARY = range(2000, 12_000)  # ids of BERT's vocabulary that are mostly whole words


@dataclass(frozen=True, slots=True)
class Workload:
    """A list of texts with their token ids, which include special tokens."""

    name: str
    texts: list[str]
    ids: list[list[int]]

    def lengths(self) -> list[int]:
        """Return the number of tokens of each text."""
        return [len(row) for row in self.ids]

    @property
    def mean_tokens(self) -> float:
        """The mean length of the texts in tokens."""
        return sum(self.lengths()) / len(self.ids)

    def summary(self) -> str:
        """Describe the number of texts and their lengths."""
        lengths = self.lengths()
        return (
            f"{self.name}: {len(lengths):,} texts of {min(lengths)} to {max(lengths)} tokens, mean "
            f"{self.mean_tokens:.1f}"
        )


@dataclass(frozen=True, slots=True)
class Corpus:
    """A source of words: passages of real text, which are read in order and repeatedly."""

    source: str
    passages: list[str]


def evaluation_folder() -> Path:
    """Return the folder that SIMILE_EVAL_DATA names. Exits with a message if it names none."""
    try:
        return data_folder(None)
    except TrainingError as error:
        sys.exit(str(error))


def read_texts(file: Path) -> Iterator[str]:
    """Yield the texts or sentences of a file in order. Raises TrainingError if the file cannot be read."""
    return (build_text(record, ("sentence", "text")) for record in read_records(file))


def corpus() -> Corpus:
    """Return the texts of the evaluation folder, or else of the example corpus. Raises TrainingError."""
    folder = optional_data_folder(None)
    files = [folder / name for name in (WIKIPEDIA, *ABSTRACTS)] if folder else []
    if not files or not all(file.is_file() for file in files):
        return Corpus("the project's example corpus, used repeatedly", [*read_texts(EXAMPLES)])
    sentences = islice(read_texts(files[0]), WIKIPEDIA_SENTENCES)
    abstracts = chain.from_iterable(map(read_texts, files[1:]))
    # Alternate, so that every part of the corpus has both kinds.
    mixed = [text for pair in zip(sentences, abstracts, strict=False) for text in pair]
    return Corpus("Wikipedia sentences, SciFact and Cranfield abstracts", mixed)


def sentences(tokenizer: Tokenizer, source: Corpus, count: int) -> Workload:
    """Return short texts: 8 to 40 tokens, mean 17."""
    return _workload(
        "sentences", tokenizer, source, count, lambda chance: min(40, 8 + int(chance.gammavariate(2.0, 4.5)))
    )


def mixture(tokenizer: Tokenizer, source: Corpus, count: int) -> Workload:
    """Return mostly short and a few long texts: 8 to 256 tokens, median 16, mean 29."""

    def length(chance: random.Random) -> int:
        return max(8, min(MAX_TOKENS, int(chance.lognormvariate(math.log(16), 1.08))))

    return _workload("mixture", tokenizer, source, count, length)


def exact_lengths(tokenizer: Tokenizer, tokens: int, count: int) -> Workload:
    """Return texts of exactly `tokens` tokens: random words that the tokenizer does not split."""
    candidates = [tokenizer.decode([token]) for token in VOCABULARY]
    alone = [word for word in candidates if word.isascii() and word.isalpha() and len(word) > 2]
    special = _special_tokens(tokenizer)
    rows = zip(alone, tokenizer.tokenize(alone), strict=True)
    words = [word for word, row in rows if len(row.ids) == special + 1]
    chance = random.Random(f"{tokens} tokens of the bench")
    texts = [" ".join(chance.choices(words, k=tokens - special)) for _ in range(count)]
    return Workload(f"{tokens} tokens", texts, [list(row.ids) for row in tokenizer.tokenize(texts)])


def pairs(tokenizer: PairTokenizer, source: Corpus, count: int, of_query: int) -> Workload:
    """Return pairs as "query TAB text". Any query with any text has exactly 128 tokens.

    Args:
        tokenizer: Tokenizer of the cross-encoder.
        source: Words of the queries and texts.
        count: Number of pairs.
        of_query: Number of consecutive pairs with the same query.

    """
    words = _words(tokenizer, source.passages)
    queries = (query for query in _exact(tokenizer, words, QUERY_TOKENS) if len(query.split()) == QUERY_WORDS)
    special = len(tokenizer.tokenize_pairs([Pair("a", "a")])[0].ids) - 2
    texts = _exact(tokenizer, words, PAIR_TOKENS - QUERY_TOKENS - special)
    made = [
        Pair(query, text) for query in islice(queries, count // of_query) for text in islice(texts, of_query)
    ]
    rows = tokenizer.tokenize_pairs(made)
    # Not converted to lists, which would lose where the second text begins.
    ids: list[list[int]] = [row.ids for row in rows if isinstance(row.ids, PairIds)]
    return Workload("pairs", [TAB.join(pair) for pair in made], ids)


def _exact(tokenizer: Tokenizer, words: Iterator[tuple[str, int]], tokens: int) -> Iterator[str]:
    """Yield texts of exactly `tokens` tokens, without special tokens."""
    whole = tokens + _special_tokens(tokenizer)
    while True:
        text = _text(words, tokens)
        if len(tokenizer.tokenize([text])[0].ids) == whole:
            yield text


def _workload(
    name: str, tokenizer: Tokenizer, source: Corpus, count: int, length: Callable[[random.Random], int]
) -> Workload:
    chance = random.Random(f"{name} of the bench")
    words = _words(tokenizer, source.passages)
    texts = [_text(words, length(chance) - _special_tokens(tokenizer)) for _ in range(count)]
    return Workload(name, texts, [list(tokens.ids) for tokens in tokenizer.tokenize(texts)])


def _text(words: Iterator[tuple[str, int]], tokens: int) -> str:
    """Join words until they have `tokens` tokens, or a few more if the last word has several tokens."""
    taken: list[str] = []
    while tokens > 0:
        word, size = next(words)
        taken.append(word)
        tokens -= size
    return " ".join(taken)


def _words(tokenizer: Tokenizer, passages: list[str]) -> Iterator[tuple[str, int]]:
    """Yield words with their number of tokens, without end. Each pass over the passages starts elsewhere."""
    special = _special_tokens(tokenizer)
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


def _special_tokens(tokenizer: Tokenizer) -> int:
    """Return the number of special tokens per text. The text "a" is a single token without them."""
    return len(tokenizer.tokenize(["a"])[0].ids) - 1
