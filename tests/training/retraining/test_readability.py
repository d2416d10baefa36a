"""Text that is read in part: a tenth in another language spoils the whole, and most is read all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.store import Store
from tests.training.conftest import WORDS
from tests.training.retraining.test_auto import KOREAN, documents
from training.retraining.documents import Document
from training.retraining.readability import reading_of, unread_collections


@pytest.fixture(scope="module")
def tokenizer(tiny_models_dir: Path) -> Path:
    store = Store(tiny_models_dir)
    return store.folder(store.versions()[0].version) / "tokenizer.json"


def made(words: list[str], count: int, collection: str = "default") -> list[Document]:
    return [Document(each["id"], each["title"], each["text"], collection) for each in documents(words, count)]


@pytest.mark.parametrize(
    ("english", "korean", "whole", "most"),
    [(100, 0, True, True), (90, 10, False, True), (50, 50, False, False), (0, 100, False, False)],
)
def test_what_is_read_of_a_mixture(
    tokenizer: Path, english: int, korean: int, whole: bool, most: bool
) -> None:
    why_not, found = reading_of([*made(WORDS, english), *made(KOREAN, korean)], tokenizer)
    assert (why_not == "", found) == (whole, most)


def test_each_collection_is_looked_at_by_itself(tokenizer: Path) -> None:
    mixed = [*made(WORDS, 90, "mixed"), *made(KOREAN, 10, "mixed")]
    found = [*made(WORDS, 100), *made(KOREAN, 100, "notes"), *mixed]
    assert unread_collections(found, {"default", "notes", "mixed"}, tokenizer) == {"notes"}
    assert unread_collections(found, {"default"}, tokenizer) == set()
