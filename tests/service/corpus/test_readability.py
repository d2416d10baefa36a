"""The log reports once per collection that the model cannot read the documents."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from models.encoder import Encoder
from models.store import ModelStore
from models.tokens.reading import MIN_WORDS
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
