"""Tokenizers that find words with MeCab, compared with those of transformers."""

# ruff: noqa: RUF001  wide letters are meant

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fugashi", reason="MeCab is not installed: pip install '.[japanese]'")
pytest.importorskip("unidic_lite", reason="MeCab's dictionary is not installed: pip install '.[japanese]'")
pytest.importorskip("sentence_transformers")
import transformers

from models.errors import Unsupported
from models.sources.folder import read_source
from models.store import ModelStore
from models.tokens.tokenizer import Tokenizer
from tests.models.families import FAMILIES, assembled, raw_source
from tests.models.test_families import CLOSE, imported, reference

TEXTS = [
    "吾輩は猫である。名前はまだ無い。",
    "Ｓｉｍｉｌｅで検索サービスを作る1234円のＧＰＵ",
    "東京都　千代田区\n丸の内１−１\tビル",
    "コーヒーを3杯飲んだ。ｶﾞｷﾞｸﾞ ㍿ ①",
    "彼女は [MASK] を食べた",
    "The QUICK brown fox, 日本語 mixed",
    "𠮷野家で𩸽を食べる 👩‍💻🎉",
    "すもももももももものうち",
    "é è ê ﬁ",
    "",
    "   ",
    "。、！？「」",
    "東京" * 60,
]
KINDS: dict[str, dict[str, Any]] = {
    "wordpiece": {},
    "lower case": {"do_lower_case": True},
    "characters": {"subword_tokenizer_type": "character"},
    "not normalised": {"mecab_kwargs": {"mecab_dic": "unidic_lite", "normalize_text": False}},
}


def japanese_source(folder: Path, **said: Any) -> Path:
    """Writes a tiny BERT whose tokenizer finds words with MeCab."""
    raw = raw_source(folder, FAMILIES["bert"])
    tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] 猫 ##である で ##ある である 名前".split()
    letters = sorted({letter for text in TEXTS for letter in text.lower() + text if not letter.isspace()})
    tokens += [letter for letter in letters[::2] if letter not in tokens]
    tokens += [f"##{letter}" for letter in letters[1::3]]
    config = json.loads((raw / "config.json").read_bytes())
    rows = config["vocab_size"]
    assert len(tokens) <= rows
    tokens += [f"[unused{at}]" for at in range(rows - len(tokens))]
    (raw / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    (raw / "tokenizer.json").unlink()
    kind = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
    (raw / "tokenizer_config.json").write_text(json.dumps(kind | {"model_max_length": 64} | said))
    return raw


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    folder = japanese_source(tmp_path / "model", **KINDS[kind])
    theirs: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert type(theirs).__name__ == "BertJapaneseTokenizer"
    source = read_source(folder)
    ours = Tokenizer(source.tokenizer, 512)
    for text, row in zip(TEXTS, ours.tokenize(TEXTS), strict=True):
        assert list(row.ids) == theirs(text)["input_ids"], text


def test_a_version_is_served_as_sentence_transformers_computes_it_and_is_a_source_again(
    tmp_path: Path,
) -> None:
    from sentence_transformers.sentence_transformer import modules

    raw = japanese_source(tmp_path / "raw")
    folder = assembled(raw, tmp_path / "model", [modules.Pooling(32, "mean")])
    store = ModelStore(tmp_path / "models")
    manifest = imported(folder, store)
    texts = [text for text in TEXTS if text.strip()]
    expected = reference(folder, texts)
    np.testing.assert_allclose(store.open(manifest.version).encode(texts).vectors, expected, atol=CLOSE)
    np.testing.assert_allclose(reference(store.folder(manifest.version), texts), expected, atol=CLOSE)
    assert imported(store.folder(manifest.version), store) == manifest
    text = "吾輩は猫である。"
    spans = store.open(manifest.version).spans(text)
    assert "".join(text[start:end] for start, end in spans) == text


def test_a_dictionary_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = japanese_source(tmp_path / "model", mecab_kwargs={"mecab_dic": "juman"})
    with pytest.raises(Unsupported, match="dictionary 'juman' is not one of"):
        Tokenizer(read_source(folder).tokenizer, 64)
