"""Tokenizes Japanese with MeCab like BertJapaneseTokenizer. A standard tokenizer.json cannot describe this.

    vocab.txt, tokenizer_config.json ─▶ tokenizer.json with the extra part `WORDS` (`described`)
    text ─▶ NFKC ─▶ MeCab finds words ─▶ lowercase if configured ─▶ WordPiece, or single characters

The package `fugashi` contains MeCab.
"""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from models.errors import Unsupported, install_command

JAPANESE = "BertJapaneseTokenizer"  # The tokenizer_class of such folders.
WORDS = "simile_words"  # Key in tokenizer.json.
_DICTIONARIES = ("unidic_lite", "ipadic", "unidic")
_USUAL = "unidic_lite"  # The default of transformers.
_SPECIAL = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def described(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Builds the content of a tokenizer.json for a folder of BertJapaneseTokenizer.

    Args:
        config: The content of tokenizer_config.json.

    Raises:
        Unsupported: The configuration is not supported.
    """
    words, pieces = config.get("word_tokenizer_type"), config.get("subword_tokenizer_type", "wordpiece")
    if words != "mecab" or pieces not in ("wordpiece", "character"):
        raise Unsupported(
            f"{folder.name} uses {words} for words and {pieces} for pieces (BertJapaneseTokenizer); only "
            "mecab with wordpiece or character is supported. Choose a Japanese model with a tokenizer.json, "
            "such as ruri-v3 or multilingual-e5."
        )
    if not (folder / "vocab.txt").is_file():
        raise Unsupported(f"{folder} has no vocab.txt, which BertJapaneseTokenizer reads.")
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {token: id for id, token in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    named = {name: _text(config.get(f"{name}_token", usual)) for name, usual in _SPECIAL.items()}
    opened = tokenizers.Tokenizer(WordPiece(vocabulary, unk_token=named["unk"], max_input_chars_per_word=100))
    options = {"normalize_text": True, "mecab_dic": _USUAL, "mecab_option": ""} | (
        config.get("mecab_kwargs") or {}
    )
    if options["normalize_text"]:
        opened.normalizer = normalizers.NFKC()
    opened.add_special_tokens([token for token in named.values() if token in vocabulary])
    around = [(token, vocabulary[token]) for token in (named["cls"], named["sep"])]
    opened.post_processor = processors.TemplateProcessing(
        single=f"{named['cls']} $A {named['sep']}", special_tokens=around
    )
    content: dict[str, Any] = json.loads(opened.to_str())
    return content | {
        WORDS: {
            "dictionary": options["mecab_dic"],
            "option": options["mecab_option"] or "",
            "lower": bool(config.get("do_lower_case", False)),
            "characters": pieces == "character",
        }
    }


def use_mecab(opened: tokenizers.Tokenizer, said: Mapping[str, Any]) -> None:
    """Makes a tokenizer find words with MeCab.

    Args:
        said: The part `WORDS` of tokenizer.json, which configures MeCab.

    Raises:
        Unsupported: MeCab or the dictionary is not installed.
    """
    custom: Any = pre_tokenizers.PreTokenizer
    opened.pre_tokenizer = custom.custom(_Mecab(said))


class _Mecab:
    """Finds words with MeCab, as a pre-tokenizer of the library tokenizers."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._lower, self._characters = said["lower"], said["characters"]
        self._tagger = _tagger(said["dictionary"], said["option"])
        self._one = threading.Lock()  # A tagger is not thread-safe.

    def pre_tokenize(self, text: Any) -> None:
        text.split(self._split)

    def _split(self, _: int, text: Any) -> list[Any]:
        found = [text[start:end] for start, end in self._places(str(text.normalized))]
        if self._lower:
            for word in found:
                word.lowercase()
        return found

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields the start and end of each word in `text`, without whitespace."""
        with self._one:
            words = [word.surface for word in self._tagger(text)]
        at = 0
        for word in words:
            start = text.index(word, at)
            at = start + len(word)
            if self._characters:
                yield from ((place, place + 1) for place in range(start, at))
            elif not word.isspace():
                yield start, at


def _tagger(dictionary: str | None, option: str) -> Any:
    try:
        fugashi = import_module("fugashi")
        if dictionary is not None:
            if dictionary not in _DICTIONARIES:
                raise Unsupported(f"The dictionary {dictionary!r} is not one of {', '.join(_DICTIONARIES)}.")
            folder = import_module(dictionary).DICDIR
            option = f'-d "{folder}" -r "{Path(folder) / "mecabrc"}" {option}'
    except ModuleNotFoundError as missing:
        raise Unsupported(
            f"This model needs the package {missing.name} to find Japanese words: "
            + (
                f"{shlex.quote(sys.executable)} -m pip install {missing.name}"
                if missing.name in _DICTIONARIES[1:]
                else install_command("japanese")
            )
        ) from None
    return fugashi.GenericTagger(option)


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, Mapping) else str(token)
