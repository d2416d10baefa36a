"""A tiny backbone with the head of a masked language model, and corpora for each kind of recipe."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from models.tokens.tokenizer import Tokenizer
from tests.tiny import WIDTH, tiny_source
from training.methods.recipe import Recipe
from training.methods.sources import Given
from training.papers.crops import Cloze, Crops, OrderedSentences
from training.papers.objectives import WordCe
from training.papers.spans import DocumentSpans
from training.text.corpus import LISTED, LISTS, PAIRS, RELATIONS, SCORED, TEXTS, Corpus, Kind

WORDS = "river stone market letter engine garden bridge paper window forest harbour cat dog animal".split()


def raw_source(folder: Path, seed: int = 0, *, language: bool = True) -> Path:
    """Writes `tiny_source` without pooling. `language` adds a masked language head (cls.predictions.*)."""
    tiny_source(folder, seed)
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")
    if language:
        weights = load_file(folder / "model.safetensors")
        vocabulary = len(weights["embeddings.word_embeddings.weight"])
        random = np.random.default_rng(seed + 100)
        at = "cls.predictions"
        weights |= {
            f"{at}.transform.dense.weight": random.normal(0, 0.2, (WIDTH, WIDTH)).astype(np.float32),
            f"{at}.transform.dense.bias": random.normal(0, 0.2, WIDTH).astype(np.float32),
            f"{at}.transform.LayerNorm.weight": np.ones(WIDTH, np.float32),
            f"{at}.transform.LayerNorm.bias": np.zeros(WIDTH, np.float32),
            f"{at}.bias": random.normal(0, 0.2, vocabulary).astype(np.float32),
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def triples(count: int = 64) -> list[tuple[str, ...]]:
    """Returns rows: three words, a positive with two of them, and a negative with one of them."""
    chosen = list(itertools.islice(itertools.combinations(WORDS, 3), 0, count * 5, 5))
    return [
        (" ".join(three), f"{three[0]} {three[1]} runs", f"{three[2]} the {chosen[-at - 1][0]}")
        for at, three in enumerate(chosen)
    ]


def corpus_for(recipe: Recipe, count: int = 64) -> Corpus:
    if isinstance(recipe.source, DocumentSpans):
        random = np.random.default_rng(0)
        return Corpus.of((" ".join(random.choice(WORDS, 300)) for _ in range(count)), "documents")
    if any(
        isinstance(objective, WordCe) for objective in recipe.objectives
    ):  # a word, and texts that have it
        return Corpus.of_rows((((row[0], row[0].split()[0]), None) for row in triples(count)), "definitions")
    if isinstance(recipe.source, OrderedSentences):  # the second sentence repeats the first in other words
        words = [row[0] for row in triples(count)]
        return Corpus.of((f"{each} and {each}. The {each} of {each}." for each in words), "documents")
    if isinstance(recipe.source, Crops | Cloze):  # two words of its own say a document in each sentence
        random = np.random.default_rng(0)
        names = itertools.islice(itertools.combinations(WORDS, 2), count)
        parts = ([" ".join([*name, *name, random.choice(WORDS)]) for _ in range(4)] for name in names)
        return Corpus.of((". ".join(each) for each in parts), "documents")
    highest = max((getattr(each, "highest", 0.0) for each in recipe.objectives), default=0.0)
    return build_corpus(recipe.source.kind, count, highest or 5.0)


def given_of(folder: Path, texts: list[str], **changed: object) -> Given:
    """Returns the input of a source that cuts documents, with the tokenizer of `folder`."""
    tokenizer = Tokenizer(folder / "tokenizer.json", 1 << 20)
    plain = Given(Corpus.of(texts, "documents"), tokenizer, batch=4, steps=100, seed=3)
    return plain._replace(**changed)  # type: ignore[arg-type]


def build_corpus(kind: Kind, count: int = 64, highest: float = 5.0) -> Corpus:
    """Returns rows of a kind. Scores of pairs are `highest` or a fifth of it."""
    rows = triples(count)
    if kind is TEXTS:
        return Corpus.of((row[0] for row in rows), "texts")
    if kind is LISTS:  # its own text first and best, then others, ever farther
        scores = tuple(1 - 0.2 * rank for rank in range(LISTED))
        others = [tuple(rows[at - rank][1] for rank in range(LISTED)) for at in range(len(rows))]
        return Corpus.of_rows(
            (((row[0], *listed), scores) for row, listed in zip(rows, others, strict=True)), "lists"
        )
    if kind is SCORED:
        others = [(row[0], (row[1], rows[at - 1][1])[at % 2]) for at, row in enumerate(rows)]
        scored = ((row, (highest * (1 - 0.8 * (at % 2)),)) for at, row in enumerate(others))
        return Corpus.of_rows(scored, "scored")
    if kind is RELATIONS:
        others = [(row[0], (row[0], row[2], rows[at - 1][0])[at % 3]) for at, row in enumerate(rows)]
        return Corpus.of_rows(((row, at % 3) for at, row in enumerate(others)), "relations")
    return Corpus.of_rows(((row[: 2 if kind is PAIRS else 3], None) for row in rows), "rows")
