"""`Shelf` keeps the tokenizer's ids in memory or in a file, which may be damaged or used again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch

from models.tokens.tokenizer import Tokenizer
from models.tokens.tokenizer import Tokens as Tokenized
from tests.training.vocabularies import build_rows
from training.text.tokens import IDS, STARTS, Shelf, clear, tokenize

TEXTS = [f"{'the river ' * (n % 7)}market {n}" for n in range(4321)] + ["", "☃"]  # three chunks


@pytest.fixture(scope="module")
def tokenizer(tiny_source: Path) -> Tokenizer:
    return Tokenizer(tiny_source / "tokenizer.json", 12)


@pytest.fixture(scope="module")
def expected(tokenizer: Tokenizer) -> list[list[int]]:
    return [list(tokens.ids) for tokens in tokenizer.tokenize(TEXTS)]


def wide(folder: Path, tiny_source: Path, words: int) -> Tokenizer:
    """Returns the tiny tokenizer with a vocabulary of `words` tokens. The added ones are `w<id>`."""
    written = json.loads((tiny_source / "tokenizer.json").read_bytes())
    vocabulary = written["model"]["vocab"]
    vocabulary |= {f"w{id}": id for id in range(len(vocabulary), words)}
    (folder / "tokenizer.json").write_text(json.dumps(written))
    return Tokenizer(folder / "tokenizer.json", 12)


def parse_all(shelf: Shelf) -> list[list[int]]:
    return build_rows(shelf.take(torch.arange(len(shelf.starts) - 1)))


def never() -> Iterator[str]:
    yield from ()
    pytest.fail("a text was asked for")


@pytest.mark.parametrize("threads", [1, 3])
def test_texts_are_kept_in_their_order_as_the_tokenizer_gives_them(
    tokenizer: Tokenizer, expected: list[list[int]], tmp_path: Path, threads: int
) -> None:
    memory = tokenize(iter(TEXTS), tokenizer, threads=threads)
    mapped = tokenize(iter(TEXTS), tokenizer, threads=threads, folder=tmp_path)
    assert parse_all(memory) == parse_all(mapped) == expected
    assert np.array_equal(memory.ids, mapped.ids)
    assert memory.ids.dtype == mapped.ids.dtype == np.uint16
    assert torch.equal(memory.starts, mapped.starts)
    assert isinstance(mapped.ids, np.memmap)
    assert (tmp_path / IDS).stat().st_size == 2 * sum(map(len, expected))
    assert sorted(file.name for file in tmp_path.iterdir()) == [IDS, STARTS]


def test_texts_are_taken_in_any_order_and_more_than_once(
    tokenizer: Tokenizer, expected: list[list[int]], tmp_path: Path
) -> None:
    shelf = tokenize(TEXTS, tokenizer, folder=tmp_path)
    numbers = [4320, 7, 7, 0, 4322, 2000]
    found = shelf.take(torch.tensor(numbers))
    assert found.ids.dtype == torch.int64
    assert build_rows(found) == [expected[number] for number in numbers]
    assert shelf.document(1999).tolist() == expected[1999]
    found.ids[:] = 0  # a copy: the file is not written to
    assert build_rows(shelf.take(torch.tensor([7]))) == [expected[7]]


@pytest.mark.parametrize(("words", "kind"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.int32)])
def test_two_bytes_are_taken_as_long_as_every_id_fits(
    tiny_source: Path, tmp_path: Path, words: int, kind: type[np.generic]
) -> None:
    tokenizer = wide(tmp_path, tiny_source, words)
    for folder in (None, tmp_path):
        shelf = tokenize([f"w{words - 1} cat"], tokenizer, folder=folder)
        assert shelf.ids.dtype == kind
        assert int(shelf.document(0)[1]) == words - 1
        again = tokenize(never(), tokenizer, folder=tmp_path) if folder else shelf
        assert (
            parse_all(again) == parse_all(shelf) == [list(tokenizer.tokenize([f"w{words - 1} cat"])[0].ids)]
        )


def test_what_was_torn_is_written_anew(
    tokenizer: Tokenizer, expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Tokenizer.tokenize
    calls = itertools.count()

    def full(self: Tokenizer, texts: Sequence[str]) -> list[Tokenized]:
        if next(calls) == 2:
            raise OSError("No space left on device")
        return own(self, texts)

    with monkeypatch.context() as patched:
        patched.setattr(Tokenizer, "tokenize", full)
        with pytest.raises(OSError, match="No space left"):
            tokenize(TEXTS, tokenizer, folder=tmp_path)
    assert (tmp_path / IDS).stat().st_size > 0
    assert not (tmp_path / STARTS).exists()
    assert parse_all(tokenize(TEXTS, tokenizer, folder=tmp_path)) == expected


def test_ids_without_starts_and_half_written_starts_are_nothing(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / IDS).write_bytes(b"\xff" * 999)
    (tmp_path / f".{STARTS}").write_bytes(b"\xff" * 5)
    shelf = tokenize(["cat", "the dog"], tokenizer, folder=tmp_path)
    assert parse_all(shelf) == [list(tokens.ids) for tokens in tokenizer.tokenize(["cat", "the dog"])]

    def crash(_self: Path, _target: Path) -> NoReturn:
        raise OSError("the power went")

    clear(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", crash)
        with pytest.raises(OSError, match="the power went"):
            tokenize(["cat"], tokenizer, folder=tmp_path)
    assert not (tmp_path / STARTS).exists()  # it appears only when both are whole


def test_clearing_takes_the_files_away_and_may_be_done_twice(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenize(["cat"], tokenizer, folder=tmp_path)
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    clear(tmp_path)
