"""Rows of several texts: by any name of a column, with their labels, and refused with the line."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from tests.training.corpora import digest_of, write
from training.errors import NothingToLearn, TrainingError
from training.text.corpus import LISTS, PAIRS, RELATIONS, TEXTS, TRIPLES, Corpus, Kind, Row, read_corpus

ROWS: list[Row] = [(("a", "x"), None), (("b", "y"), None), (("a", "y"), None)]


def test_the_digest_of_rows_is_of_what_stands_together() -> None:
    corpus = Corpus.of_rows(ROWS, "c")
    assert corpus.texts == ("a", "x", "a", "y", "b", "y")
    assert corpus.digest == digest_of("a", "x", "a", "y", "b", "y", before="2 None")
    assert Corpus.of_rows(reversed([*ROWS, ROWS[0]]), "c").digest == corpus.digest
    others: list[list[Row]] = [
        [(("a", "y"), None), (("b", "x"), None), (("a", "x"), None)],  # the same texts, other rows
        [((b, a), None) for (a, b), _ in ROWS],
        [(("a", "x", "a"), None), (("y", "b", "y"), None)],  # the same texts in the same order
        [((text,), None) for text in "axyb"],
        [(row, 0) for row, _ in ROWS],
        [(row, 1) for row, _ in ROWS],
        [(row, at) for at, (row, _) in enumerate(ROWS)],
    ]
    digests = {corpus.digest, *(Corpus.of_rows(rows, "c").digest for rows in others)}
    assert len(digests) == 1 + len(others)


def test_labels_stay_with_their_rows_in_any_order() -> None:
    labelled: list[Row] = [(row, at) for at, (row, _) in enumerate(ROWS)]
    corpus = Corpus.of_rows(labelled, "c")
    assert corpus.labels == (0, 2, 1)
    turned = Corpus.of_rows(labelled[::-1], "c")
    assert (turned.texts, turned.labels, turned.digest) == (corpus.texts, corpus.labels, corpus.digest)
    assert corpus.digest == digest_of(*corpus.texts, before="2 (0, 2, 1)")


def test_rows_are_repeated_only_when_all_of_them_is() -> None:
    rows: list[Row] = [(("a", "x"), 0), (("a", "x"), 0), (("a", "x"), 1), (("x", "a"), 0), (("a", " "), 2)]
    corpus = Corpus.of_rows(rows, "c")
    assert (len(corpus), corpus.columns) == (3, 2)
    assert (corpus.blank, corpus.repeated) == (1, 1)
    assert corpus.labels == (0, 1, 0)  # two labels of one pair are two rows
    assert str(corpus) == "3 rows of 2 texts (1 blank and 1 repeated ones dropped)"
    with pytest.raises(NothingToLearn, match="c holds no text"):
        Corpus.of_rows([(("a", "\u3000"), None)], "c")


ANCHORS = ("anchor", "sent0", "query", "premise", "sentence1")
POSITIVES = ("positive", "sent1", "hypothesis", "sentence2")
NEGATIVES = ("negative", "hard_neg", "sent2")


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("suffix", [".jsonl", ".tsv", ".TSV.gz"])
def test_a_column_goes_by_any_of_its_names(tmp_path: Path, at: int, suffix: str) -> None:
    names = [known[at % len(known)] for known in (ANCHORS, POSITIVES, NEGATIVES)]
    rows = [("a", "b", "c"), ("d", "e", "f"), ("g", " ", "i"), ("a", "b", "c")]
    content = "".join(json.dumps(dict(zip(names, row, strict=True)) | {"n": 1}) + "\n" for row in rows)
    if suffix != ".jsonl":
        content = "\n".join("\t".join(row) for row in [("n", *names), *(("1", *row) for row in rows)])
    file = tmp_path / f"c{suffix}"
    file.write_bytes(gzip.compress(content.encode()) if suffix.endswith(".gz") else content.encode())
    corpus = read_corpus(file, TRIPLES)
    assert corpus.texts == ("a", "b", "c", "d", "e", "f")
    assert (corpus.columns, corpus.blank, corpus.repeated, corpus.labels) == (3, 1, 1, None)
    assert read_corpus(file, PAIRS).texts == ("a", "b", "d", "e")


def test_a_row_may_have_several_negatives(tmp_path: Path) -> None:
    rows = [
        {"anchor": "a", "positive": "b", "negative": ["c", "d", " ", "e"]},
        {"anchor": "f", "positive": "g", "negative": "h"},
        {"anchor": "i", "positive": "j", "negative_1": "k", "negative_2": "l"},
    ]
    file = write(tmp_path, "c.jsonl", "\n".join(map(json.dumps, rows)))
    corpus = read_corpus(file, TRIPLES)
    assert corpus.columns == 5
    assert corpus.texts == (*"abcde", *"fgh", "", "", *"ijkl", "")
    assert read_corpus(file, TRIPLES, 2).texts == (*"abcd", *"fgh", "", *"ijkl")
    assert read_corpus(file, TRIPLES, 1).texts == (*"abc", *"fgh", *"ijk")
    table = "anchor\tpositive\tnegative_1\tnegative_2\na\tb\tc\td\nf\tg\th\t\ni\tj\t \tl\n"
    found = read_corpus(write(tmp_path, "c.tsv", table), TRIPLES)
    assert found.texts == (*"abcd", *"fgh", "")
    assert found.blank == 1
    for wrong in ([], ["c", 3], None):
        bad = write(tmp_path, "bad.jsonl", json.dumps({"anchor": "a", "positive": "b", "negative": wrong}))
        with pytest.raises(TrainingError, match="line 1 has no text under the name negative or"):
            read_corpus(bad, TRIPLES)


def test_labels_are_words_or_numbers(tmp_path: Path) -> None:
    words = ["entailment", "Neutral", "CONTRADICTION", 0, "1", 2, 1.0, "2"]
    rows = [{"premise": f"p{n}", "hypothesis": "h", "label": word} for n, word in enumerate(words)]
    corpus = read_corpus(write(tmp_path, "c.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n"), RELATIONS)
    assert corpus.labels == (0, 1, 2, 0, 1, 2, 1, 2)
    assert corpus.blank == 1
    table = "sentence1\tsentence2\tentailment\na\tb\tneutral\nc\td\t0\n"
    assert read_corpus(write(tmp_path, "c.tsv", table), RELATIONS).labels == (1, 0)


DOCUMENTS = {f"doc_{number}": f"d{number}" for number in range(1, 9)}
EIGHT = "`scores` must be 8 numbers, one for each document."


def test_scores_stand_with_their_documents(tmp_path: Path) -> None:
    rows = [{"query": query, **DOCUMENTS, "scores": [n, *[0.5] * 7]} for n, query in enumerate("ba")]
    corpus = read_corpus(write(tmp_path, "c.jsonl", "\n".join(map(json.dumps, rows))), LISTS)
    assert (len(corpus), corpus.columns) == (2, 9)
    assert corpus.texts[:9] == ("a", *DOCUMENTS.values())
    assert corpus.labels == ((1.0, *[0.5] * 7), (0.0, *[0.5] * 7))
    table = (
        "\t".join(["anchor", *DOCUMENTS, "scores"])
        + "\n"
        + "\t".join(["a", *DOCUMENTS.values(), "1" + " .5" * 7])
    )
    assert read_corpus(write(tmp_path, "c.tsv", table), LISTS).labels == ((1.0, *[0.5] * 7),)
    other = read_corpus(write(tmp_path, "d.jsonl", json.dumps(rows[0] | {"scores": [0.4] * 8})), LISTS)
    assert other.digest != read_corpus(write(tmp_path, "e.jsonl", json.dumps(rows[0])), LISTS).digest


@pytest.mark.parametrize("scores", [None, [1.0] * 7, [*[1.0] * 7, None], [*[1.0] * 7, math.nan], 3, "1 2 x"])
def test_scores_that_are_not_one_number_for_each_document_are_refused(tmp_path: Path, scores: object) -> None:
    file = write(tmp_path, "c.jsonl", json.dumps({"query": "a", **DOCUMENTS, "scores": scores}))
    with pytest.raises(TrainingError, match=EIGHT):
        read_corpus(file, LISTS)


PAIR = '{"anchor": "a", "positive": "b"'
KNOWN = "is none of entailment (0), neutral (1), contradiction (2)."


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        (
            PAIRS,
            "c.jsonl",
            f'{PAIR}}}\n{{"anchor": "a"}}',
            ", line 2 has no text under the name positive or sent1",
        ),
        (
            PAIRS,
            "c.jsonl",
            '{"anchor": null, "positive": "b"}',
            ", line 1 has no text under the name anchor or",
        ),
        (
            PAIRS,
            "c.jsonl",
            '{"anchor": ["a"], "positive": "b"}',
            ", line 1 has no text under the name anchor or",
        ),
        (
            PAIRS,
            "c.jsonl",
            '{"anchor": "\\udc00", "positive": "b"}',
            ", line 1 holds half of a surrogate pair",
        ),
        (PAIRS, "c.jsonl", f"{PAIR}}}\n\n{{}}", ", line 3 has no text under the name anchor or sent0"),
        (
            TRIPLES,
            "c.jsonl",
            f"{PAIR}}}",
            ", line 1 has no text under the name negative or hard_neg or sent2 or negative_1.",
        ),
        (
            TRIPLES,
            "c.tsv",
            "anchor\tpositive\na\tb\n",
            " has no column `negative` or `hard_neg` or `sent2` or `negative_1`",
        ),
        (
            RELATIONS,
            "c.tsv",
            "anchor\tpositive\na\tb\n",
            " has no column `label` or `entailment` in its first row",
        ),
        (RELATIONS, "c.jsonl", f"{PAIR}}}", ", line 1 has no label under the name label or entailment."),
        (
            RELATIONS,
            "c.jsonl",
            f'{PAIR}, "label": null}}',
            ", line 1 has no label under the name label or entail",
        ),
        (RELATIONS, "c.jsonl", f'{PAIR}, "label": "-"}}', f", line 1: the label '-' {KNOWN}"),
        (RELATIONS, "c.jsonl", f'{PAIR}, "label": 3}}', f", line 1: the label '3' {KNOWN}"),
        (RELATIONS, "c.jsonl", f'{PAIR}, "label": -1}}', f", line 1: the label '-1' {KNOWN}"),
        (RELATIONS, "c.jsonl", f'{PAIR}, "label": true}}', f", line 1: the label 'True' {KNOWN}"),
        (RELATIONS, "c.jsonl", f'{PAIR}, "label": 0.5}}', f", line 1: the label '0.5' {KNOWN}"),
        (RELATIONS, "c.jsonl", f'{PAIR}, "label": NaN}}', f", line 1: the label 'nan' {KNOWN}"),
        (
            RELATIONS,
            "c.jsonl",
            f'{PAIR}, "label": ["neutral"]}}',
            f""", line 1: the label "['neutral']" {KNOWN}""",
        ),
        (
            RELATIONS,
            "c.jsonl",
            f'{PAIR}, "label": "{"x" * 99}"}}',
            f", line 1: the label '{'x' * 40}' {KNOWN}",
        ),
        (
            PAIRS,
            "c.txt",
            "a\n",
            ": this recipe reads rows of anchor, positive: give a .jsonl or a .tsv with them.",
        ),
        (
            RELATIONS,
            "c.txt.gz",
            "a\n",
            ": this recipe reads rows of anchor, positive, label: give a .jsonl or a",
        ),
    ],
)
def test_rows_that_are_not_what_the_recipe_reads_are_named(
    tmp_path: Path, kind: Kind, name: str, content: str, message: str
) -> None:
    file = write(tmp_path, name, content)
    with pytest.raises(TrainingError) as refused:
        read_corpus(file, kind)
    assert str(refused.value).startswith(f"{file}{message}")


def test_a_missing_file_is_said_to_be_missing_whatever_is_read_from_it(tmp_path: Path) -> None:
    for kind in (TEXTS, PAIRS):
        with pytest.raises(TrainingError, match=r"There is no file .*none\.txt"):
            read_corpus(tmp_path / "none.txt", kind)


def test_many_rows_are_read_as_they_are(tmp_path: Path) -> None:
    content = "".join(
        f'{{"anchor": "a{n % 18_000}", "positive": "\\ud83d\\ude00 {n % 18_000}"}}\n' for n in range(20_000)
    )
    corpus = read_corpus(write(tmp_path, "c.jsonl", content), PAIRS)
    assert (len(corpus), corpus.repeated) == (18_000, 2_000)
    assert set(zip(corpus.texts[::2], corpus.texts[1::2], strict=True)) == {
        (f"a{n}", f"😀 {n}") for n in range(18_000)
    }
