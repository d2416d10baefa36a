"""Documents with ids and titles: from every layout, each once, and the same name in every run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.training.corpora import write
from training.errors import NothingToLearn, TrainingError
from training.retraining import documents
from training.retraining.documents import Document, documents_in


def test_each_layout_gives_ids_titles_and_texts(tmp_path: Path) -> None:
    lines = write(
        tmp_path, "a.jsonl", '{"id": "b", "title": " T ", "text": "two"}\n\n{"_id": 7, "text": "one"}\n'
    )
    assert documents_in(lines).kept == (Document("7", "", "one"), Document("b", "T", "two"))
    table = write(tmp_path, "a.tsv.gz", "id\ttitle\tsentence\nx\tName\tsome text\n")
    assert documents_in(table).kept == (Document("x", "Name", "some text"),)
    plain = write(tmp_path, "a.txt", "only a line\n")
    name = hashlib.sha256(b"only a line").hexdigest()[:32]
    assert documents_in(plain).kept == (Document(name, "", "only a line"),)


def test_blank_and_repeated_ones_are_counted_and_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", "one\n \none\ntwo\none\n")
    found = documents_in(file)
    assert sorted(document.text for document in found.kept) == ["one", "two"]
    assert (found.blank, found.repeated, found.copies) == (1, 2, {})
    assert str(found) == "2 documents (1 blank and 2 repeated ones left out)"


def test_the_same_text_under_two_titles_is_two_documents(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", '{"title": "A", "text": "x"}\n{"title": "B", "text": "x"}\n')
    assert {document.title for document in documents_in(file).kept} == {"A", "B"}


def test_a_copy_under_another_id_is_known_by_it(tmp_path: Path) -> None:
    lines = '{"id": "a", "text": "x"}\n{"id": "b", "text": "x"}\n{"id": "b", "text": "x"}\n'
    found = documents_in(write(tmp_path, "a.jsonl", lines))
    assert [document.id for document in found.kept] == ["a"]
    assert (found.repeated, found.copies) == (2, {"b": "a"})


def test_a_title_and_its_text_are_not_the_text_of_both(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", '{"title": "A", "text": "B"}\n{"text": "A\\nB"}\n')
    assert len(documents_in(file).kept) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', "two documents with the id 'a'"),
        (
            '{"id": "a", "text": "x"}\n{"id": "b", "text": "x"}\n{"id": "b", "text": "y"}\n',
            "two documents with the id 'b'",
        ),
        ('{"id": "\\ud800", "text": "x"}\n', "half of a surrogate pair"),
        ('{"id": ["a"], "text": "x"}\n', "line 1: id and title must be texts"),
        ('{"title": 4, "text": "x"}\n', "line 1: id and title must be texts"),
        ('{"id": "a"}\n', "line 1 has no text"),
        ('{"title": "\\ud800", "text": "x"}\n', "half of a surrogate pair"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(TrainingError, match=says):
        documents_in(write(tmp_path, "a.jsonl", content))


def test_a_file_of_white_space_is_nothing_to_learn(tmp_path: Path) -> None:
    with pytest.raises(NothingToLearn, match="holds no text"):
        documents_in(write(tmp_path, "a.txt", " \n\t\n\n"))


@pytest.mark.parametrize(
    ("fields", "title", "whole"),
    [
        ({"title": "T"}, "T", "T\nbody"),
        ({"title": "T", "metadata": {"title": "other"}}, "T", "T\nbody"),
        ({"metadata": {"title": " T "}}, "T", "body"),
        ({"title": "", "metadata": {"title": "T"}}, "T", "body"),
        ({"metadata": {"title": 7}}, "", "body"),
        ({}, "", "body"),
    ],
)
def test_a_title_of_a_service_is_the_documents_own_or_that_of_its_metadata(
    fields: dict[str, Any], title: str, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service embeds the document's own title alone."""
    row = {"id": "a", "text": "body", "metadata": {}, **fields}
    monkeypatch.setattr(documents, "documents_of", lambda _url, _name: iter([row]))
    [found] = documents.documents_at("http://127.0.0.1:1").kept
    assert (found.title, found.text, found.whole) == (title, "body", whole)
