"""The log reports once per collection that the model cannot read the documents."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from models import manifest
from models.encoder import Encoder
from models.manifest import MANY, get_language
from models.store import ModelStore
from models.tokens.reading import MIN_WORDS, Count, count_english, foreign
from service.corpus.embedder import Readability


@pytest.fixture(scope="module")
def encoder(tiny_models_dir: Path) -> Encoder:
    store = ModelStore(tiny_models_dir)
    return store.open(store.versions()[0].version)


KOREAN, ENGLISH = "한국어 문장 " * 10, "the red river runs to the market " * 3


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "cannot read" in record.getMessage()]


def test_it_is_told_once_after_enough_words(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    readability, version = Readability(), encoder.manifest.version
    readability.look(encoder, [KOREAN], ["notes"])
    assert not readability.knows(version, "notes")
    assert told(caplog) == []
    for _ in range(MIN_WORDS):
        readability.look(encoder, [KOREAN] * 4, ["notes"] * 4)
    assert readability.knows(version, "notes")
    (line,) = told(caplog)
    of = "the documents of the collection notes"
    assert line.startswith(f"{version} cannot read {of}: 100.0% of their tokens are unknown")
    assert KOREAN[:3] not in line


def test_what_it_reads_is_not_told(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    readability = Readability()
    for _ in range(MIN_WORDS):
        readability.look(encoder, [ENGLISH], ["notes"])
    assert readability.knows(encoder.manifest.version, "notes")
    assert told(caplog) == []


def test_what_it_reads_in_one_collection_hides_no_other(
    encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    """The report comes even if each write has documents of both collections."""
    readability = Readability()
    for _ in range(MIN_WORDS):
        readability.look(encoder, [ENGLISH] * 20, ["notes"] * 20)
    assert told(caplog) == []
    for _ in range(MIN_WORDS):
        readability.look(encoder, [ENGLISH] * 20 + [KOREAN], ["notes"] * 20 + ["tickets"])
    (line,) = told(caplog)
    assert "the documents of the collection tickets: " in line


FOREIGN = {
    "German": "Die Rechnung wird am Ende jedes Monats per E-Mail verschickt und in vierzehn Tagen bezahlt. ",
    "French": "La facture est envoyée par courriel à la fin de chaque mois et payée dans quinze jours. ",
    "Spanish": "La factura se envía por correo electrónico al final de cada mes y se paga en catorce días. ",
    "Dutch": "De factuur wordt aan het einde van elke maand verzonden en moet snel betaald zijn. ",
    "Polish": "Faktura jest wysyłana pocztą elektroniczną pod koniec każdego miesiąca i trzeba ją opłacić. ",
    "Italian": "La fattura viene inviata per posta elettronica alla fine di ogni mese e va pagata presto. ",
}
PROSE = "The invoice is sent by mail at the end of each month and it has to be paid within fourteen days. "


@pytest.mark.parametrize("language", FOREIGN)
def test_other_languages_have_few_frequent_english_words(language: str) -> None:
    text = FOREIGN[language]
    words = len(text.split())
    assert "do not look English, and a word takes 2.0" in foreign(
        Count(words, 2 * words), count_english([text])
    )
    assert foreign(Count(words, int(1.5 * words)), count_english([text])) == "", "names of products"


def test_english_may_have_long_words() -> None:
    words = len(PROSE.split())
    assert foreign(Count(words, 2 * words), count_english([PROSE])) == ""


@pytest.mark.parametrize(
    ("origin", "language"),
    [
        ("all-minilm-l6-v2", manifest.ENGLISH),
        ("sentence-transformers/all-MiniLM-L6-v2", manifest.ENGLISH),
        ("BAAI/bge-small-en-v1.5", manifest.ENGLISH),
        ("model-en", manifest.ENGLISH),
        ("intfloat/multilingual-e5-small", MANY),
        ("paraphrase-multilingual-MiniLM-L12-v2", MANY),
        ("adapt", None),
        ("my-french-model", None),
    ],
)
def test_the_language_of_a_well_known_origin_is_known(origin: str, language: str | None) -> None:
    assert get_language(origin) == language


def test_an_english_model_names_documents_of_another_language(
    encoder: Encoder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = encoder.manifest.model_copy(update={"origin": "all-minilm-l6-v2"})
    monkeypatch.setattr(encoder, "manifest", changed)
    word = "river. " * 8  # two tokens each
    readability = Readability()
    for _ in range(MIN_WORDS):
        readability.look(encoder, [word], ["notes"])
    (line,) = told(caplog)
    assert "do not look English, and a word takes 2.0 tokens. Use keyword search" in line
    assert "a model of their language (docs/MODELS.md)" in line
