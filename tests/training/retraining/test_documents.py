"""Reading the documents of a retraining, and holding some of them out."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.corpora import write
from training.errors import NothingToLearn, TrainingError
from training.mining.dedupe import jaccard, shingles
from training.retraining import documents
from training.retraining.documents import Document, documents_in
from training.retraining.split import JUDGE, TRAIN, choose_part, hold_out, place


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
    assert str(found) == "2 documents (1 blank and 2 repeated left out)"


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
    """Only the document's own title is in the whole text, because the service embeds no other title."""
    row = {"id": "a", "text": "body", "metadata": {}, **fields}
    monkeypatch.setattr(documents, "fetch_documents", lambda _url, _name: iter([row]))
    [found] = documents.documents_at("http://127.0.0.1:1").kept
    assert (found.title, found.text, found.whole) == (title, "body", whole)


WORDS = "river stone market letter engine garden bridge paper window forest harbour cat dog".split()


def wordy(count: int, seed: int = 0) -> list[Document]:
    rng = random.Random(seed)
    return [Document(f"d{at}", "", " ".join(rng.choices(WORDS, k=30)) + f" {at}") for at in range(count)]


def test_about_the_share_is_held_out_and_nothing_is_in_both() -> None:
    split = hold_out(wordy(2000), 0.1)
    assert 150 < len(split.held) < 250
    assert not {one.id for one in split.train} & {one.id for one in split.held}
    assert not {one.id for one in split.dev} & {one.id for one in (*split.train, *split.held)}
    assert 120 < len(split.dev) < 240
    assert len(split.train) + len(split.held) + len(split.dev) + len(split.copies) == 2000


def test_what_is_added_moves_nothing_that_was_there() -> None:
    fewer, more = hold_out(wordy(500), 0.2), hold_out(wordy(900), 0.2)
    held = {one.id for one in more.held}
    assert {one.id for one in fewer.held} <= held
    assert {one.id for one in fewer.dev} <= {one.id for one in more.dev}
    assert not {one.id for one in fewer.train} & held


def test_the_place_of_an_id_is_the_same_in_another_process() -> None:
    code = "from training.retraining.split import place; print(place('ticket 4711'))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(said) == place("ticket 4711")
    assert 0 <= place("ticket 4711") < 1


def first(requested: bool, name: str, count: int = 1) -> list[str]:
    """Returns ids of documents that are held out (if `requested`) or trained on. A tenth is held out."""
    return [
        f"{name} {at}"
        for at in range(1000)
        if choose_part(place(f"{name} {at}"), 0.1) == (JUDGE if requested else TRAIN)
    ][:count]


def test_what_nearly_repeats_a_document_held_out_is_on_neither_side() -> None:
    [one] = wordy(1)
    [held], [trained] = first(True, "a"), first(False, "b")
    twins = [Document(trained, "", one.text + "!"), Document(held, "", one.text + "?")]
    split = hold_out([*twins, *wordy(200, seed=1)], 0.1)
    assert held in {document.id for document in split.held}
    assert trained not in {document.id for document in (*split.held, *split.train)}
    assert split.copies[trained] == held


def test_a_copy_of_a_copy_of_a_document_held_out_is_found() -> None:
    """The second text nearly equals the first, and the third nearly equals the second, but not the first."""
    rng = random.Random(3)
    words = [str(rng.randrange(100_000, 1_000_000)) for _ in range(108)]
    texts = [" ".join(words[start : start + 100]) for start in (0, 4, 8)]
    similar = [jaccard(shingles(texts[at]), shingles(texts[at + 1])) for at in (0, 1)]
    assert min(similar) >= 0.9 > jaccard(shingles(texts[0]), shingles(texts[2]))
    ids = [*first(True, "a", 2), *first(False, "b")]
    split = hold_out([Document(id, "", text) for id, text in zip(ids, texts, strict=True)], 0.1)
    assert [document.id for document in split.held] == [ids[0]]
    assert split.train == ()
    assert split.copies == {ids[1]: ids[0], ids[2]: ids[0]}


def test_of_near_duplicates_one_judges_and_one_is_trained_on() -> None:
    text = wordy(1)[0].text
    ids = [*first(True, "a", 3), *first(False, "b", 3)]
    other = wordy(1, seed=5)[0].text
    texts = [text + "." * at for at in range(3)] + [other + "." * at for at in range(3)]
    split = hold_out([Document(id, "", each) for id, each in zip(ids, texts, strict=True)], 0.1)
    assert [document.id for document in split.held] == ids[:1]
    assert [document.id for document in split.train] == ids[3:4]
    assert split.copies == {ids[1]: ids[0], ids[2]: ids[0], ids[4]: ids[3], ids[5]: ids[3]}


def test_an_answer_goes_to_the_side_of_its_query() -> None:
    split = hold_out(wordy(200), 0.2)
    moved = split.moved({split.train[0].id: JUDGE, split.held[0].id: TRAIN})
    assert split.train[0] in moved.held
    assert split.held[0] in moved.train
    assert len(moved.train) == len(split.train)
    assert {*moved.dev} == {*split.dev}
