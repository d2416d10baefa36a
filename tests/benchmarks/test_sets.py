"""Evaluation sets drawn from larger ones: their content and reproducible draws."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra train")

from benchmarks.sets import write_simple
from training.evaluation.retrieval import load


def write(file: Path, lines: Iterable[str]) -> None:
    file.parent.mkdir(exist_ok=True)
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def test_a_simple_sentence_is_the_query_for_the_full_article(tmp_path: Path) -> None:
    table = [
        "title\tsimple_intro\ten_intro",
        "Bee\tA bee is an insect with wings that makes honey.\tBees are winged insects.",
        "Ant\tToo short.\tAnts are insects.",
        "Elm\tAn elm is a tree that grows in the north.\tElms are trees of the north.",
    ]
    file = tmp_path / "pairs.tsv.gz"
    write(file, table)
    write_simple(file, tmp_path / "first", 9)
    found = load(tmp_path / "first")
    titles = {name: document.title for name, document in found.documents.items()}
    answers = {query: titles[answer] for query, (answer,) in found.relevant.items()}
    assert {answers[name]: query for name, query in found.queries.items()} == {
        "Bee": "A bee is an insect with wings that makes honey.",
        "Elm": "An elm is a tree that grows in the north.",
    }
    assert (
        not found.queries.keys() & found.documents.keys()
    )  # A search leaves out the document whose id is that of the query.

    write(file, [table[0], *reversed(table[1:])])
    write_simple(file, tmp_path / "second", 9)
    assert load(tmp_path / "second") == found
