"""Figures of a corpus, compared with known ones. For each warning, a corpus with it and one without it."""

import dataclasses
import random
import unicodedata
from pathlib import Path

import pytest

from models.tokens.normalize import Form
from tests.training.conftest import WORDS
from training.__main__ import main
from training.mining import corpus_report
from training.mining.corpus_report import measure, warnings
from training.text.corpus import Corpus


@pytest.fixture(scope="module")
def tokenizer(tiny_source: Path) -> Path:
    return tiny_source / "tokenizer.json"


# Words of the tiny model's vocabulary, each one token.
SYLLABLES = [a + b for a in ("ba", "ko", "ri", "sun", "tel", "mar", "vin") for b in ("ba", "ko", "ri", "tel")]


def distinct(count: int, words: int = 6, seed: int = 1) -> list[str]:
    """Returns random texts of words that the tiny model knows."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS + SYLLABLES, k=words)) for _ in range(count)]


def lines(tokenizer: Path, texts: list[str], max_length: int = 16) -> list[str]:
    """Returns the warnings about training on `texts` in batches of 4."""
    found = measure(Corpus.of(texts, "some"), tokenizer, max_length)
    return warnings(found, 4, max_length, single_texts=True)


def test_the_figures_of_a_small_corpus_by_hand(tokenizer: Path) -> None:
    texts = ["the cat sleeps", "the cat runs", "The cat, the dog", "dog", "天地 ж", "dog", " "]
    corpus = Corpus.of(texts, "hand")
    found = measure(corpus, tokenizer, max_length=5)
    # Tokens: the cat sleeps = 3, the cat runs = 3, the cat , the dog = 5, dog = 1, 天 地 [UNK] = 3.
    assert dataclasses.astuple(found.tokens) == pytest.approx((1, 3, 3, 4.6, 5))
    assert dataclasses.astuple(found.characters) == pytest.approx((3, 49 / 5, 12, 15.6, 16))
    assert (found.texts, found.blank, found.repeated, found.sampled) == (5, 1, 1, 5)
    assert found.near_duplicates == 0
    assert found.short == pytest.approx(1 / 5)  # dog
    assert found.over_max_length == pytest.approx(1 / 5)  # 5 and two special ones; 3 and two are just 5
    assert found.unknown == pytest.approx(1 / 15)
    # Words are 3, 3, 4 since `cat,` is one, 1, and 3 since 天 and 地 are two.
    assert found.tokens_per_word == pytest.approx(15 / 14)
    # Letters are 12, 10, 12 and 3 Latin ones, 2 of Han and 1 of Cyrillic.
    assert found.scripts == {
        "Latin": pytest.approx(37 / 40),
        "Han": pytest.approx(2 / 40),
        "Cyrillic": pytest.approx(1 / 40),
    }
    assert found.vocabulary["Han"] == 7
    assert found.vocabulary["Cyrillic"] == 0
    assert found.openings == {"the cat": pytest.approx(2 / 5)}  # "the cat," has its comma


def test_the_plain_form_of_a_letter_names_its_script(tokenizer: Path) -> None:
    # A micro sign, an ordinal a, a full-width A, a half-width ka, a ligature of f and i, 2 squared, ga, 1.
    corpus = Corpus.of(["\u00b5 \u00aa \uff21 \uff76 \ufb01 \u00b2 \uac00 1"], "letters")
    expected = {"Greek": 1, "Latin": 3, "Katakana": 1, "Hangul": 1}  # the ordinal is a letter of kind Lo
    found = measure(corpus, tokenizer, 16).scripts
    assert found == {script: pytest.approx(count / 6) for script, count in expected.items()}


def test_a_vocabulary_with_a_heap_of_marks_is_never_sorted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = unicodedata.normalize

    def normalize_and_note(form: Form, text: str) -> str:
        seen.append(len(text))
        return plain(form, text)

    monkeypatch.setattr(unicodedata, "normalize", normalize_and_note)
    assert corpus_report._find_scripts("\u0434" + "\u0315\u0300" * 20_000) == {"Cyrillic"}
    assert max(seen) < 10_000


def test_a_large_corpus_is_sampled_alike_every_time(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_report, "SAMPLE", 50)
    corpus = Corpus.of(distinct(200), "many")
    found = measure(corpus, tokenizer, 16)
    assert (found.texts, found.sampled) == (200, 50)
    assert found == measure(corpus, tokenizer, 16)


def test_repeated_lines(tokenizer: Path) -> None:
    texts = distinct(190)
    assert lines(tokenizer, texts + texts[:10]) == []  # exactly 5 %
    (sentence,) = lines(tokenizer, texts + texts[:19])
    assert sentence.startswith("9.1% of the lines repeat another")


def test_near_duplicates(tokenizer: Path) -> None:
    texts = distinct(200, words=12)
    assert lines(tokenizer, texts + [f"{text}." for text in texts[:10]]) == []
    (sentence,) = lines(tokenizer, texts + [f"{text}." for text in texts[:40]])
    assert sentence.startswith("16.7% of the texts nearly repeat another")
    assert "mine dedupe" in sentence


def test_a_low_median_and_very_short_texts(tokenizer: Path) -> None:
    long = distinct(180)
    pairs = [f"{first} {second}" for first in WORDS for second in WORDS]
    assert lines(tokenizer, long + pairs[:19]) == []
    (sentence,) = lines(tokenizer, long + pairs[:30])
    assert sentence == "14.3% of the texts have fewer than 3 tokens: leave such lines out."
    triples = [f"{pair} {WORDS[at % 13]}" for at, pair in enumerate(pairs)]
    (sentence,) = lines(tokenizer, triples)
    assert sentence.startswith("The median text has 3 tokens")


def test_too_few_batches(tokenizer: Path) -> None:
    assert lines(tokenizer, distinct(40)) == []
    (sentence,) = lines(tokenizer, distinct(39))
    assert sentence.startswith("39 texts are 9.8 batches of 4, too few to learn from")


def test_texts_longer_than_the_recipe_reads(tokenizer: Path) -> None:
    assert lines(tokenizer, distinct(100), max_length=8) == []  # 6 tokens and two special ones
    (sentence,) = lines(tokenizer, distinct(100), max_length=7)
    assert sentence.startswith("100.0% of the texts are longer than 7 tokens and would be cut: split them")
    documents = [f"{text} {'cat dog ' * 1100}{text}" for text in distinct(40)]
    sentences = lines(tokenizer, documents, max_length=8)
    assert any(sentence.endswith("(DeCLUTR), which reads all of them.") for sentence in sentences)
    assert measure(Corpus.of(documents, "long"), tokenizer, 8).for_spans == 1


def test_a_language_that_the_base_cannot_read(tokenizer: Path) -> None:
    chance = random.Random(1)
    letters = [chr(0x430 + at) for at in range(32)]
    words = ["".join(chance.choices(letters, k=6)) for _ in range(200)]
    russian = [" ".join(chance.choices(words, k=6)) for _ in range(200)]
    unknown, foreign = lines(tokenizer, russian)
    assert unknown.startswith("100.0% of the tokens are unknown to the base model: choose one whose vocab")
    assert foreign.startswith("100.0% of the letters are Cyrillic, and 0 entries of the base model's vocab")


def test_a_vocabulary_with_words_of_the_language_is_fine(tokenizer: Path) -> None:
    found = measure(Corpus.of(distinct(200), "sound"), tokenizer, 16)
    for entries, count in ((999, 1), (1000, 0)):
        russian = dataclasses.replace(found, scripts={"Cyrillic": 1.0}, vocabulary={"Cyrillic": entries})
        assert len(warnings(russian, 4, 16, single_texts=True)) == count


def test_words_that_are_spelled(tokenizer: Path) -> None:
    spelled = [f"{text} xqzkxqzkxqzkxqzk wvywvywvywvy" for text in distinct(100)]  # 28 tokens for two words
    (sentence,) = lines(tokenizer, spelled, max_length=64)
    assert sentence.startswith("A word takes 4.2 tokens")  # (6 + 28) / 8 = 4.25
    read = [f"{text} xqzkxqzk" for text in distinct(100)]  # 14 / 7
    assert lines(tokenizer, read, max_length=64) == []


def test_text_of_one_mould(tokenizer: Path) -> None:
    openings = [f"{first} {second}" for first in WORDS for second in WORDS]
    texts = [f"{opening} {text}" for opening, text in zip(openings, distinct(196), strict=True)]
    assert lines(tokenizer, texts) == []
    moulded = texts + [f"A man {text}" for text in distinct(40)]
    figures = measure(Corpus.of(moulded, "text"), tokenizer, 32)
    assert warnings(figures, 16, 32, single_texts=False) == [], "a recipe of pairs has nothing to fear of it"
    (sentence,) = lines(tokenizer, moulded)
    assert sentence.startswith("16.9% of the texts begin with one of 10 pairs of words")


def test_no_openings_are_shared_by_single_words(tokenizer: Path) -> None:
    assert measure(Corpus.of(["cat", "dog", "cat."], "words"), tokenizer, 16).openings == {}


def test_the_command_prints_the_figures(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "c.txt"
    corpus.write_text("\n".join([*distinct(30), distinct(1)[0], "", ""]) + "\n")
    assert main(["report", "--corpus", str(corpus), "--base", str(tiny_source)]) == 0
    printed = capsys.readouterr().out
    assert "30 distinct; dropped: 1 repeated, 2 blank" in printed
    assert "! 30 texts are 0.5 batches of 64, too few to learn from" in printed
    assert "batches         0.5 of 64 in one pass" in printed
    assert "recipe: simcse-unsup" in printed
    assert "exceed the recipe's 32, special ones included" in printed
    assert "tokens          6 to 6; median 6" in printed
