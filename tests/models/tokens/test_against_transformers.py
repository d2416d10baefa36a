"""Ids of odd texts equal those of transformers, for each kind of tokenizer file and after a conversion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers")
import transformers

from models.errors import Unsupported
from models.publishing.from_torch import backbone as converting
from models.publishing.from_torch.backbone import converted, quiet
from models.sources.folder import read_source
from models.tokens.tokenizer import Tokenizer, open_tokenizer
from tests.models.families import FAMILIES, LEARNED_FROM, family_source, learned, raw_source

ODD: list[str] = json.loads(Path(__file__).with_name("odd_texts.json").read_bytes())
KINDS = {
    "wordpiece": "distilbert",
    "unigram": "xlm-roberta",
    "byte-level": "roberta",
    "byte-fallback": "gemma3",
}


def _theirs(folder: Path) -> Any:
    with quiet():
        return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_of_odd_texts(tmp_path: Path, kind: str) -> None:
    folder = raw_source(tmp_path / "raw", FAMILIES[KINDS[kind]])
    theirs = _theirs(folder)
    ours = Tokenizer(read_source(folder).tokenizer, 4096)
    rows = ours.tokenize(ODD)
    for text, row in zip(ODD, rows, strict=True):
        assert list(row.ids) == theirs(text, truncation=False)["input_ids"], text
    for text, row in zip(ODD, Tokenizer(read_source(folder).tokenizer, 8).tokenize(ODD), strict=True):
        assert list(row.ids) == theirs(text, truncation=True, max_length=8)["input_ids"], text
    assert len({tuple(row.ids) for row in rows}) > len(ODD) / 2


def test_a_table_takes_the_words_alone(tmp_path: Path) -> None:
    source = read_source(family_source(tmp_path / "static", "static"))
    ids = [list(row.ids) for row in Tokenizer(source.tokenizer, 4096).tokenize(ODD)]
    plain = learned("wordpiece")
    plain.no_truncation()
    plain.no_padding()
    assert ids == [encoding.ids for encoding in plain.encode_batch(ODD, add_special_tokens=False)]


def test_a_vocabulary_of_wordpiece_is_converted(tmp_path: Path) -> None:
    vocabulary = learned("wordpiece").get_vocab()
    words = sorted(vocabulary, key=lambda word: vocabulary[word])
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": len(words)}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    _same_as_theirs(tmp_path)


def test_a_vocabulary_and_merges_of_byte_pairs_are_converted(tmp_path: Path) -> None:
    learned("byte-level").model.save(str(tmp_path))
    assert {file.name for file in tmp_path.iterdir()} == {"vocab.json", "merges.txt"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    config = {"tokenizer_class": "RobertaTokenizer", "bos_token": "[CLS]", "eos_token": "[SEP]"}
    config |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    _same_as_theirs(tmp_path)


SENTENCEPIECE = {  # by family: file name, tokenizer class, kind of model
    "xlm-roberta": ("sentencepiece.bpe.model", "XLMRobertaTokenizer", "unigram"),
    "t5": ("spiece.model", "T5Tokenizer", "unigram"),
    "gemma": ("tokenizer.model", "GemmaTokenizer", "bpe"),
}


@pytest.mark.parametrize("family", SENTENCEPIECE)
def test_a_file_of_sentencepiece_is_converted(tmp_path: Path, family: str) -> None:
    """The pieces also equal those of the library that made the file."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="pip install sentencepiece")
    name, tokenizer, kind = SENTENCEPIECE[family]
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(" ".join(text.split()) for text in [*LEARNED_FROM, *ODD]), encoding="utf-8")
    special: dict[str, Any] = {}
    if family == "gemma":  # with the special ids of Gemma's own file
        special = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "add_dummy_prefix": False}
    sentencepiece.SentencePieceTrainer.train(
        input=str(texts),
        model_prefix=str(tmp_path / "made"),
        vocab_size=600,
        model_type=kind,
        byte_fallback=kind == "bpe",
        hard_vocab_limit=False,
        minloglevel=2,
        **special,
    )
    (tmp_path / "made.model").rename(tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer}))
    _same_as_theirs(tmp_path)
    own = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / name))
    pieces = {own.id_to_piece(id) for id in range(own.get_piece_size())}
    ours = open_tokenizer(converted(tmp_path))
    for text in ("the query and the passage", "Straße naïve garden", "天地人 한국어 Привет", "12,5 %"):
        found = ours.encode(text, add_special_tokens=False).tokens
        expected = own.encode(text, out_type=str)  # The libraries write unknown pieces differently.
        known = [piece for piece in expected if piece in pieces]
        assert [piece for piece in found if piece in pieces] == known
        assert len(known) > len(text) / 6


def test_a_file_of_sentencepiece_without_its_package_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spiece.model").write_bytes(b"x")
    monkeypatch.setattr(converting, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"pip install -c \S+ -e '?\S+\[train\]"):
        converted(tmp_path)


def _same_as_theirs(folder: Path) -> None:
    theirs, ours = _theirs(folder), Tokenizer(converted(folder), 4096)
    rows = [list(row.ids) for row in ours.tokenize(ODD)]
    assert rows == [theirs(text)["input_ids"] for text in ODD]
    assert len({tuple(row) for row in rows}) > len(ODD) / 2


def test_what_transformers_cannot_convert_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(Unsupported, match=r"has no tokenizer: neither tokenizer\.json nor vocab\.txt"):
        converted(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"nothing that anybody reads")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    with pytest.raises(Unsupported, match=r"no tokenizer\.json, and transformers cannot convert") as raised:
        converted(tmp_path)
    assert "\n" not in str(raised.value)
