"""The log says once when a version cannot read the documents."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from models.encoder import Encoder
from models.store import Store
from models.tokens.reading import ENOUGH
from service.corpus.readability import Readability


@pytest.fixture(scope="module")
def encoder(tiny_models_dir: Path) -> Encoder:
    store = Store(tiny_models_dir)
    return store.open(store.versions()[0].version)


KOREAN, ENGLISH = "한국어 문장 " * 10, "the red river runs to the market " * 3


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "cannot read" in record.getMessage()]


def test_it_is_told_once_after_enough_words(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    readability, version = Readability(), encoder.manifest.version
    readability.look(encoder, [KOREAN])
    assert not readability.knows(version)
    assert told(caplog) == []
    for _ in range(ENOUGH):
        readability.look(encoder, [KOREAN] * 4)
    assert readability.knows(version)
    (line,) = told(caplog)
    assert line.startswith(f"{version} cannot read the documents: 100.0% of their tokens are unknown")
    assert KOREAN[:3] not in line


def test_what_it_reads_is_not_told(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    readability = Readability()
    for _ in range(ENOUGH):
        readability.look(encoder, [ENGLISH])
    assert readability.knows(encoder.manifest.version)
    assert told(caplog) == []
