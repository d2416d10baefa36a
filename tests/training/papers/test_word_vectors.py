"""Word vectors as a base: reading them, and SIF, uSIF, max and power means by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from models.sources.folder import read_source
from models.store import ModelStore
from tests.training.recipe_cases import raw_source
from training.__main__ import main
from training.errors import TrainingError
from training.methods.loading import load_encoder
from training.methods.recipe import load_recipe
from training.papers.postprocess import Sif, Usif
from training.papers.word_vectors import word_vectors
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.text.corpus import Corpus

WORDS = "river stone market letter engine garden bridge paper , 's".split()
TABLE = np.random.default_rng(0).normal(size=(len(WORDS), 6)).astype(np.float32).round(3)
TEXTS = ["river stone", "stone stone market", "letter engine, garden", "bridge paper river", "paper of stone"]
Vectors = NDArray[Any]


def lines() -> str:
    rows = zip(WORDS, TABLE.tolist(), strict=True)
    return "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    (folder / "vectors.txt").write_text(lines(), encoding="utf-8")
    assert word_vectors(folder / "vectors.txt", folder / "base") == len(WORDS)
    return folder / "base"


def build_rows(text: str) -> Vectors:
    """Returns the word vectors of a text. A word without a vector gets the mean of all vectors."""
    found = text.replace(",", " ,").split()
    known = {word: row.astype(float) for word, row in zip(WORDS, TABLE, strict=True)}
    return np.array([known.get(word, TABLE.mean(0)) for word in found])


def published(base: Path, name: str, work: Path, **changes: Any) -> tuple[Vectors, ModelStore]:
    """Publishes a recipe. Returns its vectors of TEXTS before normalization, and the models folder."""
    options = Options(precision="fp32", device="cpu", threads=1)
    result = train(load_recipe(name, changes), Corpus.of(TEXTS, "texts"), base, work / "out", options)
    store = ModelStore(work / "models")
    encoder = store.open(export_run(result.out, store).version)
    return encoder.forward([each.ids for each in encoder.tokenize(TEXTS)], normalize=False), store


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("static-average", lambda rows: rows.mean(0)),
        ("static-max", lambda rows: rows.max(0)),
        ("power-means", lambda rows: np.concatenate([rows.mean(0), rows.max(0), rows.min(0)])),
    ],
)
def test_pools_over_one_s_own_words_are_numpy_s(name: str, pool: Any, base: Path, tmp_path: Path) -> None:
    found, store = published(base, name, tmp_path)
    expected = np.stack([pool(build_rows(text)) for text in TEXTS])
    assert np.abs(found - expected).max() < 1e-5
    (manifest,) = store.versions()
    assert manifest.portable == ("sentence-transformers" if name == "static-average" else "simile")
    again = read_source(store.folder(manifest.version))
    assert again.head.names == tuple(manifest.pooling.split("+")), "what is published can be trained again"


def counted_words() -> dict[str, int]:
    found: dict[str, int] = {}
    for word in " ".join(TEXTS).replace(",", " ,").split():
        found[word if word in WORDS else "?"] = found.get(word if word in WORDS else "?", 0) + 1
    return found


def test_sif_weighs_words_and_takes_out_the_first_direction(base: Path, tmp_path: Path) -> None:
    """Computes algorithm 1 of Arora, Liang and Ma (2017) word by word."""
    counts = counted_words()
    total = sum(counts.values())
    means = []
    for text in TEXTS:
        words = text.replace(",", " ,").split()
        weights = [0.01 / (0.01 + counts.get(word, counts["?"]) / total) for word in words]
        means.append(np.mean(np.array(weights)[:, None] * build_rows(text), axis=0))
    x = np.stack(means)
    top = np.linalg.svd(x)[2][:1]
    expected = x - x @ top.T @ top
    post = [{"name": "sif", "a": 0.01}, {"name": "drop_pcs", "count": 1, "centred": False}]
    found, _ = published(base, "sif", tmp_path, post=post)
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(expected).max() > 1e-2


def test_special_tokens_of_a_bert_are_not_pooled_and_weigh_nothing(tmp_path: Path) -> None:
    """Expected vectors use only a text's words. [CLS] and [SEP], with a count of 0, would weigh most."""
    raw = raw_source(tmp_path / "raw")
    table = load_file(raw / "model.safetensors")["embeddings.word_embeddings.weight"].astype(float)
    opened = Tokenizer.from_file(str(raw / "tokenizer.json"))
    opened.no_padding()
    rows = [opened.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert opened.encode(TEXTS[0]).ids == [2, *rows[0], 3], "the base puts [CLS] and [SEP] around a text"
    p = np.bincount(np.concatenate(rows), minlength=len(table)) / sum(map(len, rows))
    words = np.count_nonzero(p)
    share = max((p > 1 - (1 - 1 / words) ** 11).sum(), 1) / words
    a = (1 - share) / (share * words / 2)
    expected = {
        "power-means": [  # the poolings of static-average and static-max, and the least
            np.concatenate([table[row].mean(0), table[row].max(0), table[row].min(0)]) for row in rows
        ],
        "sif": [((0.01 / (0.01 + p))[:, None] * table)[row].mean(0) for row in rows],
        "usif": [((a / (a / 2 + p))[:, None] * table)[row].mean(0) for row in rows],
    }
    weights = {"sif": [{"name": "sif", "a": 0.01}], "usif": ["usif"]}
    for name, vectors in expected.items():
        changes = {"post": weights[name]} if name in weights else {}
        found, store = published(raw, name, tmp_path / name, **changes)
        assert np.abs(found - np.stack(vectors)).max() < 1e-5, name
        trained, _ = load_encoder(tmp_path / name / "out" / "best", load_recipe("pairs"), torch.device("cpu"))
        assert np.abs(trained.pooled(TEXTS).numpy() - np.stack(vectors)).max() < 1e-5, name
        encoder = store.open(store.versions()[0].version)
        for texts in ["", TEXTS[0]], [""]:  # a text without a word is nothing, and no NaN
            ours, theirs = encoder.encode(texts).vectors, trained.encode(texts)
            assert not ours[0].any(), name
            assert np.abs(ours - theirs).max() < 1e-6, name


def test_a_text_without_words_has_a_vector_of_word_vectors_too(base: Path, tmp_path: Path) -> None:
    _, store = published(base, "power-means", tmp_path)
    encoder = store.open(store.versions()[0].version)
    assert not encoder.encode([""]).vectors.any()
    assert not encoder.encode(["", "river"]).vectors[0].any()


def test_weights_worked_out_by_hand() -> None:
    """Counts of five words, ten in all: p is 0.4, 0.3, 0.2 and 0.1. The fifth word never occurs."""
    counts = np.array([4, 3, 2, 1, 0])
    assert Sif(a=0.1).weights(counts).tolist() == pytest.approx([0.2, 0.25, 1 / 3, 0.5, 1])
    # 1 - (1 - 1/4)^1 = 0.25: two words of four are above it, so the share is 1/2 and a is 0.5 / (0.5 * 2).
    found = Usif(words=1).weights(counts).tolist()
    assert found == pytest.approx([0.5 / (0.25 + p) for p in (0.4, 0.3, 0.2, 0.1, 0)])
    # 1 - (3/4)^11 = 0.96: none is, and one is taken for such: the share is 1/4, a is 0.75 / 0.5.
    assert Usif().weights(counts)[0] == pytest.approx(1.5 / (0.75 + 0.4))


def test_fasttext_s_first_line_and_capitals_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "wiki.vec.gz", "wt", encoding="utf-8") as stream:
        stream.write("3 2\nRiver 1 2\nriver 3 4\nRiver 5 6\n")
    assert main(["word-vectors", str(tmp_path / "wiki.vec.gz"), str(tmp_path / "base")]) == 0
    source = read_source(tmp_path / "base")
    assert source.tokenizer["model"]["vocab"] == {"[UNK]": 0, "River": 1, "river": 2}
    assert source.tokenizer["normalizer"] is None
    assert source.width == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("river 1 2\nstone 1\n", "line 2 has 1 numbers, and the lines before it have 2"),
        ("river 1 2\nstone 1 x\n", "line 2 is not a word and its numbers"),
        ("river 1 nan\n", "line 1 is not a word and its numbers"),
        ("", "holds no word vectors"),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text(text)
    with pytest.raises(TrainingError, match=message):
        word_vectors(tmp_path / "vectors.txt", tmp_path / "base")
