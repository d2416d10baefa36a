"""`simile training report`: statistics of a corpus and warnings, to read before a long training.

Start reading at `look_at`. `measure` computes the statistics. `warnings` lists properties of the corpus that
may harm a contrastive training. Warnings never reject a corpus.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from models.files.bounded import parse_json
from models.progress import Progress, to_stderr
from models.sources.folder import read_source
from models.store import models_dir
from models.tokens.normalize import normalized
from models.tokens.reading import TOKENS_PER_WORD, UNKNOWN, WORD, Count
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from models.tokens.tokenizer import Tokenizer
from training.arguments import LOADING, expanded
from training.errors import TrainingError
from training.methods.recipe_files import declared
from training.mining.dedupe import near_duplicates
from training.model.base import check_base, open_base
from training.text.corpus import TEXTS, Corpus, from_service, read_corpus
from training.text.service import add_options, chosen

if TYPE_CHECKING:
    from training.methods.recipe import Recipe

_MIN_SHARE = 0.001  # share of the letters; rarer scripts are not shown
_SHOWN = 3  # openings


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "report",
        help="look at a corpus before training on it",
        description="Statistics of a corpus, and warnings about text that is likely to spoil a training.",
    )
    corpus = command.add_mutually_exclusive_group(required=True)
    corpus.add_argument("--corpus", metavar="FILE", help="as for `train`")
    corpus.add_argument("--from-service", metavar="URL", help="the documents of a running service")
    add_options(command)
    command.add_argument("--recipe", default="simcse-unsup", help="a name or a TOML file (%(default)s)")
    command.add_argument(
        "--base", default="default", metavar="MODEL", help="whose tokens are counted (%(default)s)"
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    declared(options.recipe)
    check_base(options.base, models_dir(os.environ))
    read = [expanded(options.corpus)] if options.corpus else []
    if read and not read[0].is_file():
        raise TrainingError(f"There is no file {read[0]}.")
    requested = chosen(options)
    to_stderr(LOADING)
    from training.methods.recipe import load_recipe  # noqa: PLC0415  torch

    recipe = load_recipe(options.recipe)
    if recipe.source.kind is not TEXTS:
        raise TrainingError(
            f"A report is on single texts; {recipe.name} reads rows of several. Name another --recipe."
        )
    to_stderr("reading the corpus")
    corpus = read_corpus(read[0]) if read else from_service(options.from_service, requested=requested)
    with open_base(options.base, models_dir(os.environ)) as base:
        figures, found, max_length = look_at(corpus, recipe, base.folder)
        name = base.name
    about = options.corpus or options.from_service
    sys.stdout.write(f"{about}  (base: {name}; recipe: {recipe.name})\n\n")
    sys.stdout.write(_table(figures, recipe.optim.batch, max_length) + "\n\n")
    sys.stdout.write("".join(f"! {sentence}\n" for sentence in found) or "No warnings.\n")
    return 0


def look_at(corpus: Corpus, recipe: Recipe, base: Path) -> tuple[Figures, list[str], int]:
    """Returns statistics, warnings, and the number of tokens at which a text is cut.

    Args:
        corpus: Corpus of single texts.
        recipe: Recipe to train.
        base: Folder of the model to start from.

    """
    source = read_source(base)
    max_length = min(recipe.max_length, source.max_length)
    figures = measure(corpus, source.backbone / TOKENIZER, max_length)
    single = recipe.source.kind is TEXTS
    return figures, warnings(figures, recipe.optim.batch, max_length, single_texts=single), max_length


def _table(f: Figures, batch: int, max_length: int) -> str:
    scripts = (f"{script} {share:.1%}" for script, share in f.scripts.items() if share >= _MIN_SHARE)
    openings = (f"{opening!r} {share:.1%}" for opening, share in list(f.openings.items())[:_SHOWN])
    near = f"{f.near_duplicates:,} ({f.near_duplicates / f.sampled:.1%})"
    rows = [
        ("texts", f"{f.texts:,} distinct; dropped: {f.repeated:,} repeated, {f.blank:,} blank"),
        ("batches", f"{f.texts / batch:,.1f} of {batch} in one pass"),
        ("sampled", f"{f.sampled:,}" + (" drawn at random" if f.sampled < f.texts else "")),
        ("near-duplicates", near + (" of these, so there are more in all" if f.sampled < f.texts else "")),
        ("characters", _spread(f.characters)),
        ("tokens", f"{_spread(f.tokens)}, without special ones"),
        ("", f"{f.short:.1%} have fewer than {SHORT_TOKENS}"),
        ("", f"{f.over_max_length:.1%} exceed the recipe's {max_length}, special ones included"),
        ("", f"{f.for_spans:.1%} reach {DECLUTR_TOKENS}, what DeCLUTR's spans need"),
        ("vocabulary", f"{f.unknown:.2%} of the tokens unknown; {f.tokens_per_word:.2f} tokens for a word"),
        ("scripts", ", ".join(scripts) or "no letters"),
        ("openings", f"{sum(f.openings.values()):.1%} have a frequent one: {', '.join(openings) or 'none'}"),
    ]
    return "\n".join(f"{name:16}{said}" for name, said in rows)


def _spread(s: Spread) -> str:
    middle = f"median {s.median:,.0f}, mean {s.mean:,.1f}, 95 % up to {s.p95:,.0f}"
    return f"{s.least:,.0f} to {s.most:,.0f}; {middle}"


SAMPLE = 100_000  # texts; a larger corpus is sampled
DECLUTR_TOKENS = 2048  # two anchors, each from 2 · 512 tokens (Giorgi et al. 2021)
SHORT_TOKENS = 3  # a text with fewer tokens has hardly any meaning. Our choice
OPENINGS = 10  # the most frequent
_OPENING_WORDS = 2
_SEED = 1
_WHOLE = 1 << 20  # tokens; no text of a corpus has more
_CHUNK = 2000  # texts that are tokenized together


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
    """Statistics of a corpus. Shares are fractions of the sampled texts unless noted otherwise."""

    texts: int  # distinct texts
    blank: int  # dropped before
    repeated: int  # dropped before
    sampled: int  # all texts, or SAMPLE of them
    near_duplicates: int  # near-duplicates of earlier texts in the sample; the corpus may have more
    characters: Spread
    tokens: Spread  # without special tokens
    short: float  # share with fewer than SHORT_TOKENS tokens
    over_max_length: float  # share that the recipe cuts
    for_spans: float  # share with DECLUTR_TOKENS or more
    unknown: float  # share of [UNK] among the tokens
    tokens_per_word: float
    scripts: dict[str, float]  # share of the letters, the most frequent first
    vocabulary: dict[str, int]  # by script, the number of entries with one of its letters
    openings: dict[str, float]  # share of the texts that begin with these words


def measure(corpus: Corpus, tokenizer_file: Path, max_length: int) -> Figures:
    """Computes the statistics of a corpus.

    Args:
        corpus: The texts.
        tokenizer_file: tokenizer.json of the base.
        max_length: Number of tokens, including special tokens, at which a text is cut.

    """
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


def read(texts: Sequence[str], tokenizer_file: Path) -> tuple[str, list[str]]:
    """Tests if the vocabulary of a tokenizer suits texts.

    Returns:
        Why it does not suit the texts as a whole, and the texts that it does suit. If it suits the whole: ""
        and all texts.

    """
    lengths, unknown, special = _tokens(texts, tokenizer_file)
    counts = [
        Count(len(WORD.findall(text)), length - special, strange)
        for text, length, strange in zip(texts, lengths.tolist(), unknown, strict=True)
    ]
    reason = sum(counts, start=Count()).unreadable()
    both = zip(texts, counts, strict=True)
    return reason, [text for text, count in both if not reason or not count.unreadable()]


def _opening(words: Sequence[str]) -> str:
    """Returns the first two words with a letter or a digit. An empty string if there are fewer."""
    plain = (word for word in words if any(map(str.isalnum, word)))
    first = list(itertools.islice(plain, _OPENING_WORDS))
    return " ".join(first).casefold() if len(first) == _OPENING_WORDS else ""


def _sample(texts: Sequence[str]) -> Sequence[str]:
    if len(texts) <= SAMPLE:
        return texts
    chosen = np.random.default_rng(_SEED).choice(len(texts), SAMPLE, replace=False)
    return [texts[place] for place in np.sort(chosen)]


def _tokens(
    texts: Sequence[str], file: Path
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[int], int]:
    """Returns each text's numbers of tokens and of unknown tokens, and the number of special tokens."""
    tokenizer = Tokenizer(file, _WHOLE)
    unknown = _unknown_id(file)
    lengths: list[int] = []
    strange: list[int] = []
    with Progress("texts", len(texts), "tokenizing") as progress:
        for start in range(0, len(texts), _CHUNK):
            for tokens in tokenizer.tokenize(texts[start : start + _CHUNK]):
                lengths.append(len(tokens.ids))
                strange.append(tokens.ids.count(unknown) if unknown is not None else 0)
            progress.add(min(_CHUNK, len(texts) - start))
    return np.array(lengths), strange, len(tokenizer.tokenize([""])[0].ids)


def _unknown_id(file: Path) -> int | None:
    """Returns the id of the token for unknown text, or None if the tokenizer has no such token."""
    model = parse_json(file.read_bytes())["model"]
    if model.get("unk_token") is not None and isinstance(model["vocab"], dict):
        return model["vocab"].get(model["unk_token"])
    unknown: int | None = model.get("unk_id")
    return unknown


def _scripts(texts: Iterable[str]) -> dict[str, float]:
    letters = Counter(itertools.chain.from_iterable(texts))
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        for script in _find_scripts(letter):
            scripts[script] += count
    total = scripts.total()
    return {script: count / total for script, count in scripts.most_common()}


def _find_scripts(text: str) -> set[str]:
    """Returns the scripts of a text's letters, such as Latin: the first words of their Unicode names."""
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
    found = Counter(script for word in words for script in _find_scripts(word))
    return {script: found[script] for script in scripts}


# Thresholds without a source are our choice.
REPEATED = 0.05  # share of the lines
NEAR_DUPLICATES = 0.05  # share of the texts
MEDIAN_TOKENS = 5
SHORT = 0.1  # share of the texts
BATCHES = 10  # batches of one pass over the corpus
OVER_MAX_LENGTH = 0.5  # share of the texts
FOR_SPANS = 0.5  # share of the texts
FOREIGN = 0.2  # share of the letters that are in one script other than Latin
ENTRIES = 1000  # entries of a script in a vocabulary; fewer are only letters, and no words
# Share of the texts with one of the ten most frequent pairs of first words. Measured: premises of NLI 0.14,
# those of SNLI 0.43; sentences of Wikipedia 0.07, of film reviews 0.08. SimCSE fails on NLI premises.
HOMOGENEOUS = 0.12
_TEACH = (
    "choose one whose vocabulary covers this language (--base), or teach it new words with "
    "`simile train adapt`."
)


def warnings(f: Figures, batch: int, max_length: int, *, single_texts: bool) -> list[str]:
    """Returns a sentence for each property of the corpus that may harm a contrastive training.

    Args:
        f: Statistics of the corpus.
        batch: Batch size of the recipe.
        max_length: Number of tokens at which a text is cut.
        single_texts: True if the recipe reads single texts. Then texts with equal beginnings are a problem.

    """
    lines = f.texts + f.repeated
    near = f.near_duplicates / f.sampled
    batches = f.texts / batch
    opened = sum(f.openings.values())
    checks = [
        _if(
            f.repeated / lines > REPEATED,
            f"{f.repeated / lines:.1%} of the lines repeat another; training reads each text once, so check "
            "whether the export is what you meant.",
        ),
        _if(
            near > NEAR_DUPLICATES,
            f"{near:.1%} of the texts nearly repeat another and would be pushed apart as negatives in one "
            "batch: run `simile training mine dedupe` first.",
        ),
        _if(
            f.tokens.median < MEDIAN_TOKENS,
            f"The median text has {f.tokens.median:g} tokens, too few to say what it means: join lines into "
            "whole sentences.",
        ),
        _if(
            f.short > SHORT,
            f"{f.short:.1%} of the texts have fewer than {SHORT_TOKENS} tokens: leave such lines out.",
        ),
        _if(
            batches < BATCHES,
            f"{f.texts:,} texts are {batches:.1f} batches of {batch}, too few to learn from: add text, or "
            "lower --batch.",
        ),
        _if(f.over_max_length > OVER_MAX_LENGTH, _long(f, max_length)),
        _if(f.unknown > UNKNOWN, f"{f.unknown:.1%} of the tokens are unknown to the base model: {_TEACH}"),
        _if(
            f.tokens_per_word > TOKENS_PER_WORD,
            f"A word takes {f.tokens_per_word:.1f} tokens, so the base model spells it rather than reads it: "
            + _TEACH,
        ),
        *(
            _if(
                script != "Latin" and share > FOREIGN and f.vocabulary[script] < ENTRIES,
                f"{share:.1%} of the letters are {script}, and {f.vocabulary[script]:,} entries of the base "
                "model's vocabulary are: choose a base for this language, or a multilingual one (--base).",
            )
            for script, share in f.scripts.items()
        ),
        _if(
            single_texts and opened > HOMOGENEOUS,
            f"{opened:.1%} of the texts begin with one of {OPENINGS} pairs of words: text of one mould makes "
            "unsupervised SimCSE worse, so mix in other text or train on pairs.",
        ),
    ]
    return [sentence for sentence in checks if sentence]


def _long(f: Figures, max_length: int) -> str:
    cut = f"{f.over_max_length:.1%} of the texts are longer than {max_length} tokens and would be cut: "
    if f.for_spans > FOR_SPANS:
        return cut + "they are long enough for spans (DeCLUTR), which reads all of them."
    return cut + "split them into sentences, or raise max_length in the recipe."


def _if(applies: bool, sentence: str) -> str:
    return sentence if applies else ""
