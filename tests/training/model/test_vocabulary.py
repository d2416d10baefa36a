"""New tokens from a team's text, their initial embeddings, and the unchanged rest of the base."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file

from models.publishing.from_torch.export import export
from models.sources.folder import read_source
from models.store import ModelStore
from models.tokens.tokenizer import Tokenizer
from tests.tiny import tiny_source as make_tiny_source
from tests.training.recipe_cases import raw_source
from training.__main__ import main
from training.errors import NothingToLearn, TrainingError
from training.methods.loading import load_encoder
from training.methods.recipe import load_recipe
from training.model.encoder import compute_digest
from training.model.new_bases import extend

TABLE = "embeddings.word_embeddings.weight"
TEXTS = ["한국어 문장을 읽는다", "한국어 책을 읽는다", "문장을 한국어 책을", "the river stone"] * 3


def extended(base: Path, out: Path, count: int = 200) -> Path:
    extend(base, TEXTS, out, count)
    return out


def tokens_of_words(folder: Path, text: str) -> list[str]:
    opened = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    opened.no_padding()
    return [unicodedata.normalize("NFC", token) for token in opened.encode(text).tokens]


def test_words_that_were_unknown_become_tokens(tiny_source: Path, tmp_path: Path) -> None:
    assert tokens_of_words(tiny_source, "한국어 책을") == ["[CLS]", "[UNK]", "[UNK]", "[SEP]"]
    out = extended(tiny_source, tmp_path / "more")
    assert tokens_of_words(out, "한국어 책을") == ["[CLS]", "한국어", "책을", "[SEP]"]
    assert tokens_of_words(out, "the river") == tokens_of_words(tiny_source, "the river")


def test_old_tokens_keep_their_ids_rows_and_vectors(tiny_source: Path, tmp_path: Path) -> None:
    out = extended(tiny_source, tmp_path / "more")
    old, new = (json.loads((folder / "tokenizer.json").read_text()) for folder in (tiny_source, out))
    assert new["model"]["vocab"].items() >= old["model"]["vocab"].items()
    size = len(old["model"]["vocab"])
    added = sorted(new["model"]["vocab"].values())[size:]
    assert added == list(range(size, size + len(added)))
    before, after = (load_file(folder / "model.safetensors")[TABLE] for folder in (tiny_source, out))
    assert after.shape == (size + len(added), before.shape[1])
    assert np.array_equal(after[:size], before)
    recipe, device = load_recipe("pairs"), torch.device("cpu")
    first, second = (load_encoder(folder, recipe, device)[0] for folder in (tiny_source, out))
    assert np.array_equal(first.encode(["the river stone"]), second.encode(["the river stone"]))


def test_a_row_begins_as_the_mean_of_its_old_pieces(tmp_path: Path) -> None:
    base = raw_source(tmp_path / "base")
    text = ["stonebridge"] * 5
    pieces = Tokenizer(base / "tokenizer.json", 64).tokenize(text[:1])[0].ids[1:-1]
    assert len(pieces) > 1
    extend(base, text, tmp_path / "more", 100)
    vocabulary = json.loads((tmp_path / "more" / "tokenizer.json").read_text())["model"]["vocab"]
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "more"))
    row = vocabulary["stonebridge"]
    assert after[TABLE][row] == pytest.approx(before[TABLE][pieces].mean(0), abs=1e-6)
    head = "cls.predictions.bias"  # of the masked-language head
    assert after[head][row] == pytest.approx(before[head][pieces].mean(), abs=1e-6)


def test_a_row_without_old_pieces_begins_as_the_mean_of_all(tiny_source: Path, tmp_path: Path) -> None:
    out = extended(tiny_source, tmp_path / "more")
    vocabulary = json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]
    row = vocabulary[unicodedata.normalize("NFD", "책을")]
    before, after = (load_file(folder / "model.safetensors")[TABLE] for folder in (tiny_source, out))
    assert after[row] == pytest.approx(before.mean(0), abs=1e-6)


def test_it_is_published_with_its_own_tokenizer(tiny_source: Path, tmp_path: Path) -> None:
    out = extended(tiny_source, tmp_path / "more")
    store = ModelStore(tmp_path / "models")
    manifest = export(out, store, origin="korean")
    encoder = store.open(manifest.version)
    (tokens,) = encoder.tokenize(["한국어 책을"])
    assert len(tokens.ids) == 4
    assert max(tokens.ids) >= len(json.loads((tiny_source / "tokenizer.json").read_text())["model"]["vocab"])
    trained, _ = load_encoder(out, load_recipe("pairs"), torch.device("cpu"))
    served = encoder.encode(["한국어 책을"]).vectors
    assert served == pytest.approx(trained.encode(["한국어 책을"]), abs=1e-5)


def test_the_base_is_another_one_afterwards(tiny_source: Path, tmp_path: Path) -> None:
    first, again = extended(tiny_source, tmp_path / "a"), extended(tiny_source, tmp_path / "b")
    assert compute_digest(read_source(first)) == compute_digest(read_source(again))
    assert compute_digest(read_source(first)) != compute_digest(read_source(tiny_source))


def test_what_cannot_be_extended_is_refused(tmp_path: Path) -> None:
    tiny_source = make_tiny_source(tmp_path / "tiny")
    with pytest.raises(NothingToLearn, match="has a token for every word"):
        extend(tiny_source, ["the river stone"], tmp_path / "out", 10)
    tokenizer = json.loads((tiny_source / "tokenizer.json").read_text())
    tokenizer["model"]["type"] = "BPE"
    (tiny_source / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(TrainingError, match="needs a WordPiece vocabulary"):
        extend(tiny_source, TEXTS, tmp_path / "out", 10)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_base(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(f"{text} {number}" for number, text in enumerate(TEXTS)), encoding="utf-8")
    out = tmp_path / "out"
    given = ["--corpus", str(corpus), "--base", str(tiny_source), "--add", "3"]
    assert main(["extend-vocabulary", str(out), *given]) == 0
    assert "3 new tokens" in capsys.readouterr().out
    assert "한국어" in tokens_of_words(out, "한국어")
