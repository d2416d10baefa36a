"""Tokens equal those of the package tokenizers for the whole text, although only a part is read."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers

from models.errors import BadText, BadTokens, TooLong, Unsupported
from models.tokens import tokenizer as tokenizer_module
from models.tokens.cuts import FURTHEST, LETTERS, PUNCTUATION, WHITESPACE
from models.tokens.tokenizer import Tokenizer
from tests.tiny import MAX_LENGTH

_PIECES = (
    *"abcxyz019",
    *WHITESPACE,
    *PUNCTUATION,
    *("the", "market", "Market", "running", "STONE", "ﬁ", "İ", "ß", "ά", "Σς", "п", "א", "ع"),
    *("天", "地人", "豈", "\u3400", "𠀀", "か", "が", "カ", "한", "한국"),
    *("\u0301", "e\u0301", "\u0338", " \u0301", "=\u0338", "\u20dd", "\u05b0", "\u0e31", "ก"),
    *"\x00\x07\x1b\x7f\x85\u200b\u200d\u2028\u202e\ufeff\ufffd\u00ad",
    *("👍🏽", "👩‍👧", "🇰🇷", "\ue000", "\U000e0001", "½", "²", "_", "__", "##ing"),
    *("[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]", "[SE", "P]", "[", "]"),
    *("w" * 99, "w" * 100, "w" * 101, "é" * 150, "か" * 120, "😀" * 130, "9" * 300, "ว" * 120),
    *(" " * 90, "\t\n" * 50),
)


def _random_text(generator: random.Random, length: int) -> str:
    # Few different pieces, so that runs and gaps are long.
    pieces = generator.choices(_PIECES, k=generator.randint(1, 12))
    text = "".join(generator.choices(pieces, k=length))
    return text[: generator.randint(1, 4 * length)]


@pytest.fixture(scope="module")
def file(tiny_models_dir: Path) -> Path:
    return next(tiny_models_dir.glob("*/tokenizer.json"))


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> Tokenizer:
    return Tokenizer(file, MAX_LENGTH)


def test_a_word_of_the_vocabulary_is_one_token(tokenizer: Tokenizer) -> None:
    assert all(map(tokenizer.is_word, ("river", "window", "Stone")))
    assert not any(map(tokenizer.is_word, ("rivers", "rver", "window river", "", "öøæ", "w" * 200, "[SEP]x")))


@pytest.mark.parametrize(
    "content",
    [
        {
            "model": {
                "type": "Unigram",
                "unk_id": 0,
                "vocab": [["<unk>", 0], ["▁", -9], ["▁river", -1], ["s", -2]],
            }
        }
        | {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}},
        {"model": {"type": "BPE", "vocab": {"a": 0, "Ġ": 1, "Ġa": 2, "s": 3}, "merges": [["Ġ", "a"]]}}
        | {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}},
    ],
)
def test_a_word_may_be_one_token_with_the_space_before_it(content: dict[str, Any]) -> None:
    tokenizer = Tokenizer({"version": "1.0", "added_tokens": [], **content}, MAX_LENGTH)
    word = "river" if content["model"]["type"] == "Unigram" else "a"
    assert tokenizer.is_word(word)
    assert not tokenizer.is_word(f"{word}s")
    assert not tokenizer.is_word("s" if word == "river" else "ss")


def _whole(file: Path, direction: str) -> tokenizers.Tokenizer:
    whole = tokenizers.Tokenizer.from_file(str(file))
    whole.no_padding()
    whole.enable_truncation(MAX_LENGTH, direction=direction)
    return whole


@pytest.mark.parametrize("direction", ["right", "left"])
def test_a_long_text_has_the_tokens_it_has_when_tokenized_whole(
    file: Path, tokenizer: Tokenizer, direction: str
) -> None:
    whole = _whole(file, direction)
    generator = random.Random(7)
    texts = [_random_text(generator, generator.choice([5, 100, 700, 4000])) for _ in range(400)]
    found = tokenizer.tokenize(texts, left=direction == "left")
    for text, tokens in zip(texts, found, strict=True):
        expected = whole.encode(text)
        assert list(tokens.ids) == expected.ids, ascii(text[:200])
        assert tokens.truncated == bool(expected.overflowing), ascii(text[:200])


def test_the_number_of_tokens_is_exact_when_truncation_is_off(file: Path, tokenizer: Tokenizer) -> None:
    whole = tokenizers.Tokenizer.from_file(str(file))
    whole.no_padding()
    whole.no_truncation()
    generator = random.Random(8)
    refused = 0
    for _ in range(200):
        text = _random_text(generator, 3000)
        given = len(whole.encode(text).ids)
        if given <= MAX_LENGTH:
            assert list(tokenizer.tokenize([text], truncate=False)[0].ids) == whole.encode(text).ids
            continue
        refused += 1
        with pytest.raises(TooLong) as caught:
            tokenizer.tokenize(["a", text], truncate=False)
        assert (caught.value.index, caught.value.given, caught.value.allowed) == (1, given, MAX_LENGTH)
    assert refused > 50


def _letters() -> str:
    """Returns all characters in the ranges of LETTERS."""
    spelled, rest = "", LETTERS
    while rest:
        if rest[1:2] == "-":
            spelled += "".join(map(chr, range(ord(rest[0]), ord(rest[2]) + 1)))
            rest = rest[3:]
        else:
            spelled, rest = spelled + rest[0], rest[1:]
    return spelled


def test_every_letter_whose_runs_are_shortened_leaves_a_character_of_one_word(file: Path) -> None:
    whole = _whole(file, "right")
    unknown = whole.token_to_id("[UNK]")
    for letter in _letters():
        assert whole.encode(letter * 101, add_special_tokens=False).ids == [unknown], ascii(letter)


def test_every_character_to_cut_at_begins_a_word_of_its_own(file: Path) -> None:
    whole = _whole(file, "right")

    def ids(text: str) -> list[int]:
        found: list[int] = whole.encode(text, add_special_tokens=False).ids
        return found

    for cut in WHITESPACE + PUNCTUATION + "天\u4e00\u9fa5":
        for before in ("ru", "か", "e\u0301", "1", "."):
            for after in ("nning", "\u0301x", "\u0338", "s"):
                text = before + cut + after
                assert ids(text) == ids(before) + ids(cut + after), ascii(text)


@pytest.mark.parametrize(
    "unit", ["the market opens. ", "a", "語", "か", " ", ".", "e\u0301", "😀", "か、", "a" * 5000 + " stone "]
)
def test_sixteen_megabytes_cost_no_seconds(tokenizer: Tokenizer, unit: str) -> None:
    text = unit * (16_000_000 // len(unit.encode()))
    for left in (False, True):
        started = time.thread_time()
        tokenizer.tokenize([text], left=left)
        assert time.thread_time() - started < 1


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the number of characters in each call of the library."""
    found: list[int] = []
    batches = tokenizer_module._batches

    def batches_and_note(texts: Sequence[str]) -> list[list[str]]:
        made = batches(texts)
        found.extend(sum(map(len, batch)) for batch in made)
        return made

    monkeypatch.setattr(tokenizer_module, "_batches", batches_and_note)
    return found


MAX_PIECE = 2 * FURTHEST + 10_000  # the largest piece, with the text in which its end is searched


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    "unit", ["\u0315\u0300", "ก", "[", "]", "\ufdfa", "a\u0301", "か", "天" * 200_000 + "ก" * 300_000]
)
def test_no_text_is_tokenized_in_one_piece_of_megabytes(
    tokenizer: Tokenizer, taken: list[int], unit: str, left: bool
) -> None:
    text = unit * (1_000_000 // len(unit))
    tokenizer.tokenize([text], left=left)
    tokenizer.tokenize([text[:300_000]], left=left)
    assert max(taken) <= MAX_PIECE


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", ["\u0315\u0300", "\ufdfa"])
def test_of_a_text_that_leaves_little_no_more_than_half_a_million_characters_are_looked_at(
    tokenizer: Tokenizer, taken: list[int], unit: str, left: bool
) -> None:
    [tokens] = tokenizer.tokenize([unit * (4_000_000 // len(unit))], left=left)
    assert tokens.truncated
    assert sum(taken) <= 500_000 + 2 * MAX_PIECE
    taken.clear()
    with pytest.raises(BadText, match="Allow truncation"):
        tokenizer.tokenize([unit * (4_000_000 // len(unit))], truncate=False, left=left)
    assert sum(taken) <= 500_000 + 2 * MAX_PIECE


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", ["a", " "])
def test_a_run_of_millions_of_characters_is_cut(tokenizer: Tokenizer, unit: str, left: bool) -> None:
    assert not tokenizer.tokenize([unit * 2_000_000], left=left)[0].truncated
    assert tokenizer.tokenize([unit * 9_000_000], left=left)[0].truncated


@pytest.mark.parametrize("left", [False, True])
def test_a_long_text_of_another_kind_of_tokenizer_is_cut_before_white_space(
    tmp_path: Path, taken: list[int], left: bool
) -> None:
    parts = tokenizers.models.WordLevel({"[UNK]": 0, "river": 1, "stone": 2}, unk_token="[UNK]")
    other = tokenizers.Tokenizer(parts)
    other.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    other.save(str(tmp_path / "tokenizer.json"))
    text = "river stone stone " * 40_000
    ours = Tokenizer(tmp_path / "tokenizer.json", 400_000)
    assert list(ours.tokenize([text], left=left)[0].ids) == other.encode(text).ids
    assert ours.tokenize([" " + "a" * 1_000_000], left=left)[0].ids[0] == 0
    assert max(taken) <= MAX_PIECE


def test_another_kind_of_tokenizer_is_given_the_whole_text(tmp_path: Path) -> None:
    parts = tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, " ": 3}, unk_token="[UNK]")
    other = tokenizers.Tokenizer(parts)
    other.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("a b|."), "isolated")
    other.save(str(tmp_path / "tokenizer.json"))
    text = "a b" * 5000
    assert Tokenizer(tmp_path / "tokenizer.json", 64).tokenize([text])[0].ids == other.encode(text).ids[:64]


def test_an_added_token_with_a_space_inside_is_not_cut(tmp_path: Path, file: Path) -> None:
    content = json.loads(file.read_bytes())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"].append({"id": 250, "content": "red market", "special": True, **flags})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    ours = Tokenizer(tmp_path / "tokenizer.json", 512)
    text = "stone " * 400 + "red market " * 2000
    whole = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    whole.enable_truncation(512)
    assert list(ours.tokenize([text])[0].ids) == whole.encode(text).ids


def test_half_a_surrogate_pair_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadText, match="character 2 is half of a surrogate pair") as caught:
        tokenizer.tokenize(["fine", "ab\ud800"])
    assert caught.value.index == 1
    far = "stone " * 100_000 + "\udfff"
    with pytest.raises(BadText):
        tokenizer.tokenize([far])


def test_ids_are_taken_as_they_are_or_cut_between_the_special_ones(tokenizer: Tokenizer) -> None:
    ids = list(tokenizer.tokenize(["the market opens"])[0].ids)
    assert tokenizer.check_ids(ids) == (ids, False, 0)
    inner = list(range(5, 5 + MAX_LENGTH))
    row = [ids[0], *inner, ids[-1]]
    assert tokenizer.check_ids(row) == ([ids[0], *inner[: MAX_LENGTH - 2], ids[-1]], True, 0)
    assert tokenizer.check_ids(row, left=True) == ([ids[0], *inner[2 - MAX_LENGTH :], ids[-1]], True, 0)
    with pytest.raises(TooLong) as caught:
        tokenizer.check_ids(row, truncate=False)
    assert (caught.value.given, caught.value.allowed) == (MAX_LENGTH + 2, MAX_LENGTH)


class Looked(list[int]):
    """A list of ids that counts how many ids were read from it, singly or in slices."""

    seen = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.seen += len(found) if isinstance(at, slice) else 1
        return found


def test_of_many_ids_those_are_copied_that_are_kept(tokenizer: Tokenizer) -> None:
    first, *_, last = tokenizer.tokenize(["the market opens"])[0].ids
    for left in (False, True):
        row = Looked([first, *[7] * 100_000, last])
        assert tokenizer.check_ids(row, left=left).truncated
        assert row.seen <= MAX_LENGTH


@pytest.mark.parametrize("work", ["pieces", "decode", "spans"])
def test_other_threads_run_while_much_is_tokenized(
    tokenizer: Tokenizer, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's calls for one text hold the interpreter lock. Calls for several texts do not.

    During a call that holds the lock, the other thread gets one turn at most, when the call returns. A busy
    machine may also give that thread few turns, so the work is repeated.
    """
    turns = 0
    inside = SimpleNamespace(most=0)  # turns of the other thread in one call of the library
    done = threading.Event()
    library = tokenizer._tokenizer

    def count() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    class Watched:
        def __getattr__(self, name: str) -> Any:
            def called(*arguments: Any, **options: Any) -> Any:
                before = turns
                try:
                    return getattr(library, name)(*arguments, **options)
                finally:
                    inside.most = max(inside.most, turns - before)

            return called

    monkeypatch.setattr(tokenizer, "_tokenizer", Watched())
    other = threading.Thread(target=count)
    other.start()
    try:
        for _ in range(20):
            if work == "decode":
                tokenizer.decode([7] * 200_000)
            else:
                getattr(tokenizer, work)("." * 200_000)
            if inside.most > 5:
                break
    finally:
        done.set()
        other.join()
    assert inside.most > 5


def test_brackets_are_cut_before_and_added_tokens_are_not(file: Path, tokenizer: Tokenizer) -> None:
    generator = random.Random(3)
    whole = _whole(file, "right")
    for _ in range(300):
        text = "".join(generator.choices(["[", "]", "[SEP]", "[MASK]", "[SEP", " ", "stone", "a"], k=400))
        assert list(tokenizer.tokenize([text])[0].ids) == whole.encode(text).ids


@pytest.mark.parametrize(
    ("row", "position", "reason"),
    [
        ([], 0, "must begin with"),
        ([5, 6, 3], 0, "must begin with"),
        ([2, 5, 6], 2, "must end with"),
        ([2], 0, "must end with"),
        ([2, 5, 10_000, 3], 2, "10000 is outside the vocabulary of 250"),
        ([2, -1, 3], 1, "-1 is outside the vocabulary"),
    ],
)
def test_ids_that_the_tokenizer_could_not_have_made_are_refused(
    tokenizer: Tokenizer, row: list[int], position: int, reason: str
) -> None:
    with pytest.raises(BadTokens, match=reason) as caught:
        tokenizer.check_ids(row)
    assert caught.value.position == position


def test_a_maximum_without_room_for_a_token_is_refused(file: Path) -> None:
    with pytest.raises(Unsupported, match="no room"):
        Tokenizer(file, 2)


def test_a_tokenizer_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Unsupported, match=r"tokenizer\.json cannot be read"):
        Tokenizer(tmp_path / "tokenizer.json", 16)
